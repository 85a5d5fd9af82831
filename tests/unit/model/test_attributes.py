"""Attributes of topics: accepted and refused changes."""

import pytest

from tandemq.errors import ProtocolError
from tandemq.model.attributes import ATTRIBUTES_BYTES_MAX, GROUP_ATTRIBUTES, changed, parse_changes, priority_factor


@pytest.mark.parametrize("value", ["UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"])
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


def test_groups_have_a_priority_factor_only() -> None:
    assert changed({}, {}, is_new=True, known=GROUP_ATTRIBUTES) == {}
    with pytest.raises(ProtocolError, match=r"known are priority\.factor"):
        changed({}, {"+message.type": "FIFO"}, is_new=True, known=GROUP_ATTRIBUTES)


@pytest.mark.parametrize(("value", "factor"), [("0", 0), ("7", 7), ("100", 100)])
def test_priority_factor_of_a_group_is_a_percentage(value: str, factor: int) -> None:
    after = changed({}, {"+priority.factor": value}, is_new=False, known=GROUP_ATTRIBUTES)
    assert priority_factor(after) == factor
    assert changed(after, {"-priority.factor": ""}, is_new=False, known=GROUP_ATTRIBUTES) == {}


@pytest.mark.parametrize("value", ["-1", "101", "x", "", "1.5", "007", "9" * 5_000, "٣"])
def test_priority_factor_that_is_no_percentage_is_refused(value: str) -> None:
    with pytest.raises(ProtocolError, match=r"priority\.factor=.*range\(0, 100\)") as caught:
        changed({}, {"+priority.factor": value}, is_new=True, known=GROUP_ATTRIBUTES)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", ["", "x", "-1", "1000", "٣"])
def test_priority_factor_of_a_foreign_table_counts_as_100_unless_it_is_one(value: str) -> None:
    assert priority_factor({"priority.factor": value}) == 100
    assert priority_factor({}) == 100
