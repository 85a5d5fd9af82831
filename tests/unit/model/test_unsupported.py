"""Remarks for requests without a handler: the name of the request, the reason, and what to do instead."""

import pytest

from tandemq.model.codes import RequestCode
from tandemq.model.unsupported import UNSUPPORTED_CODES, unsupported_remark


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (902, ("(ADD_BROKER)", "tandemq broker -c FILE")),
        (1005, ("(CONTROLLER_GET_METADATA_INFO)", "tandemq ha status")),
        (2003, ("(GET_COLD_DATA_FLOW_CTR_INFO)", "slaveReadEnable")),
        (209, ("(SUSPEND_CONSUMER)", "do not answer it either")),
    ],
)
def test_request_of_rocketmq_has_a_reason_and_a_way_out(code: int, words: tuple[str, ...]) -> None:
    assert [word for word in words if word not in unsupported_remark(code)] == []


def test_remark_begins_as_that_of_rocketmq() -> None:
    for code in (*UNSUPPORTED_CODES, 9_999):
        assert unsupported_remark(code).startswith(f" request type {code} not supported")
    assert unsupported_remark(9_999) == " request type 9999 not supported"


def test_no_supported_request_is_called_unsupported() -> None:
    assert not UNSUPPORTED_CODES & {int(code) for code in RequestCode}
