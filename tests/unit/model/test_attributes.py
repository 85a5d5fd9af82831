"""Attributes of topics: accepted and refused changes."""

import pytest

from tandemq.errors import ProtocolError
from tandemq.model.attributes import ATTRIBUTES_BYTES_MAX, GROUP_ATTRIBUTES, changed, parse_changes


@pytest.mark.parametrize("value", ["UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"])
def test_message_types_are_accepted_and_can_be_changed(value: str) -> None:
    assert changed({}, {"+message.type": value}, is_new=True) == {"message.type": value}
    assert changed({"message.type": "NORMAL"}, {"+message.type": value}, is_new=False) == {"message.type": value}


def test_supported_values_of_other_attributes_are_accepted_at_creation() -> None:
    told = parse_changes("+queue.type=SimpleCQ, +cleanup.policy=DELETE,+reserve.time=-1")
    assert changed({}, told, is_new=True) == {
        "queue.type": "SimpleCQ",
        "cleanup.policy": "DELETE",
        "reserve.time": "-1",
    }


def test_attribute_is_removed_by_its_name() -> None:
    assert changed({"message.type": "FIFO"}, parse_changes("-message.type"), is_new=False) == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("+other=1", "unsupported key: 'other'; known are message.type, queue.type, cleanup.policy, reserve.time"),
        ("+message.type=Nonsense", "value is not in set"),
        ("+message.type=fifo", "value is not in set"),
        ("+message.type=", "value is not in set"),
        ("+queue.type=Nonsense", "value is not in set"),
        ("+queue.type=BatchCQ", "not supported; SimpleCQ is"),
        ("+cleanup.policy=COMPACTION", "compaction is not supported"),
        ("+reserve.time=-2", "value is not in range"),
        ("+reserve.time=9223372036854775808", "value is not in range"),
        ("+reserve.time=" + "9" * 5_000, "value is not in range"),
        ("+reserve.time=x", "value is not in range"),
        ("+reserve.time=1000", "retention time per topic is not supported"),
        ("message.type=FIFO", "+name=value or -name"),
        ("message.type", "+name=value or -name"),
        ("+message.type", "+name=value or -name"),
        ("-message.type=FIFO", "+name=value or -name"),
        ("+=FIFO", "+name=value or -name"),
        ("++message.type=FIFO", "+name=value or -name"),
        ("+a-b=1", "+name=value or -name"),
        ("+message.type=FIFO,+message.type=DELAY", "is repeated"),
        ("+message.type=FIFO,-message.type", "is repeated"),
        ("-message.type", "only add attribute is supported while creating"),
        ("+message.type=" + "x" * ATTRIBUTES_BYTES_MAX, "at most 16384"),
        ("," * (ATTRIBUTES_BYTES_MAX + 1), "at most 16384"),
    ],
)
def test_attribute_of_a_new_topic_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        changed({}, parse_changes(text), is_new=True)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("+queue.type=SimpleCQ", "attempt to update an unchangeable attribute. key: queue.type"),
        ("+cleanup.policy=DELETE", "attempt to update an unchangeable attribute. key: cleanup.policy"),
        ("-cleanup.policy", "attempt to update an unchangeable attribute. key: cleanup.policy"),
        ("-message.type", "attempt to delete a nonexistent key: message.type"),
        ("-other", "unsupported key"),
    ],
)
def test_change_of_an_existing_topic_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        changed({"cleanup.policy": "DELETE"}, parse_changes(text), is_new=False)
    assert reason in str(caught.value)


def test_groups_have_no_attributes() -> None:
    assert changed({}, {}, is_new=True, known=GROUP_ATTRIBUTES) == {}
    with pytest.raises(ProtocolError, match="known are none"):
        changed({}, {"+message.type": "FIFO"}, is_new=True, known=GROUP_ATTRIBUTES)
