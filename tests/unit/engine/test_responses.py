"""Responses to sends: the compiled engine takes none that the code in Python judges otherwise."""

from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tandemq.codec.remoting.frame import FRAME_BYTES_MAX, encode_command, encode_frame
from tandemq.engine import python
from tandemq.model.command import FLAG_RESPONSE, Command
from tests.unit.engine.modules import compiled_engine

FIELDS = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "3", "queueOffset": "12"}
NUMBERS = st.one_of(
    st.integers(0, 2**31 - 1).map(str),
    st.sampled_from(("0", "00", "-1", "+1", " 1", "", "2147483648", "9" * 18, "9" * 19, "1_0", "\uff11", "1.0")),
)
ODD_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "msgId": st.text("Aé,支 /", max_size=5),
    "queueId": NUMBERS,
    "queueOffset": NUMBERS,
    "recallHandle": st.just("h"),
    "MSG_REGION": st.text("Aé,支 /", max_size=3),
}
CHANGES = st.dictionaries(st.sampled_from(tuple(ODD_FIELDS)), st.none(), max_size=2).flatmap(
    lambda names: st.fixed_dictionaries({name: ODD_FIELDS[name] for name in names})
)


PIECES = (b"", b'"', b"\\", b"0", b"x", b" ", b",", b"\xff", b"\xc3\xa9", b'"queueId":"1",', b"null")


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    return compiled_engine()


def response(opaque: int, **changes: Any) -> bytes:
    """Return the frame of a response; `changes` of its parts."""
    command = Command(0, opaque, FLAG_RESPONSE, fields={**FIELDS, **changes.pop("fields", {})})
    return encode_command(replace(command, **changes))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), CHANGES), max_size=4),
    st.sampled_from(({}, {"code": 10}, {"flag": 0}, {"flag": 3}, {"remark": "r"}, {"body": b"x"}, {"binary": True})),
    st.integers(0, 300),
    st.sampled_from((FRAME_BYTES_MAX, 200)),
)
@example([(1, {"msgId": "A,B"})], {}, 0, FRAME_BYTES_MAX)
@example([(1, {}), (2, {"recallHandle": "h"})], {}, 0, FRAME_BYTES_MAX)
def test_both_engines_take_the_same_responses(
    compiled: ModuleType, some: list[tuple[int, dict[str, str]]], last: dict[str, Any], cut: int, bytes_max: int
) -> None:
    data = b"".join([response(opaque, fields=fields) for opaque, fields in some]) + response(7, **last)
    data = data[: max(0, len(data) - cut)]
    assert compiled.stored_sends(data, 0, bytes_max) == python.stored_sends(data, 0, bytes_max)


def test_responses_are_taken_up_to_the_first_other_frame(compiled: ModuleType) -> None:
    data = response(1) + response(2, fields={"queueOffset": "0", "transactionId": "T"}) + response(3, code=10)
    for engine in (compiled, python):
        found, end = engine.stored_sends(data + response(4), 0, FRAME_BYTES_MAX)
        assert [(*one[:4],) for one in found] == [(1, 3, 12, FIELDS["msgId"]), (2, 3, 0, FIELDS["msgId"])]
        assert [data[: one[4]] for one in found] == [response(1), data[:end]]
        assert engine.stored_sends(data, end, FRAME_BYTES_MAX) == ([], end)
        assert engine.stored_sends(data, -1, FRAME_BYTES_MAX) == ([], -1)


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_taken_header_is_one_that_the_decoder_reads_alike(compiled: ModuleType, data: st.DataObject) -> None:
    raw = bytearray(response(5)[8:])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 4))] = data.draw(
            st.sampled_from(
                (b"", b'"', b"\\", b"0", b"x", b" ", b",", b"\xff", b"\xc3\xa9", b'"queueId":"1",', b"null")
            )
        )
    frame = encode_frame((0, bytes(raw), b""))
    found = compiled.stored_sends(frame, 0, FRAME_BYTES_MAX)
    if found[0]:
        assert found == python.stored_sends(frame, 0, FRAME_BYTES_MAX)
