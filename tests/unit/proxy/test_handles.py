"""Receipt handles: those that the proxy makes are read the short way, with the same result as all others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.model.pop import Handle, TopicKind
from tandemq.proxy.handles import _LOG_OFFSET_MAX, Receipt, _any_receipt, parse_receipt
from tandemq.proxy.status import CallRefused

NUMBERS = st.sampled_from([0, 1, 7, 999_999_999, 10**9, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63, 10**19, 10**20])
PARTS = NUMBERS.map(str) | st.sampled_from(["", "-1", "+1", "٣", "00", "1.0", "x", "1\n", "broker-a", "b\nc"])


def outcome(read: object, text: str) -> object:
    """Return what a function makes of a text, or the reason why it refuses it."""
    assert callable(read)
    try:
        return read(text)
    except CallRefused as refused:
        return refused.grpc_code, str(refused)


@given(st.lists(PARTS, min_size=7, max_size=11), NUMBERS)
def test_both_ways_read_the_same(parts: list[str], number: int) -> None:
    usual = ["0", "1795446714426", "10000", "1", "0", "broker-a", "0", "5", "16818"]
    changed = [*usual[: number % 9], *parts[:1], *usual[number % 9 + 1 :]]
    for text in (" ".join(parts), " ".join(usual), " ".join(changed), " ".join(changed) + " "):
        assert outcome(parse_receipt, text) == outcome(_any_receipt, text), text


@pytest.mark.parametrize("kind", TopicKind)
def test_what_a_receipt_says_is_read_back(kind: TopicKind) -> None:
    for log_offset in (0, _LOG_OFFSET_MAX - 1, None):
        receipt = Receipt(Handle(3, 1_795_446_714_426, 10_000, 999, kind, "broker-a", 2, 5), log_offset)
        found = parse_receipt(str(receipt))
        assert found == receipt and found.handle.kind is kind
