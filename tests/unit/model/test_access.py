"""Decisions of policies: the most specific resource decides, Deny between equals, whatever the order."""

import itertools

import pytest

from tandemq.errors import ProtocolError
from tandemq.model.access import (
    Need,
    Policy,
    PolicyEntry,
    ResourceKind,
    Rules,
    actions,
    check_entry,
    merged,
    parse_source,
    without,
)

HERE = "10.1.2.3"
PUB = actions("Pub")


def entry(resource: str, decision: str, *what: str, sources: tuple[str, ...] = ()) -> PolicyEntry:
    return PolicyEntry(resource, what or ("Pub",), decision, sources)  # type: ignore[arg-type]


def decide(*entries: PolicyEntry, topic: str = "pre-x-1", kind: str = "Custom", address: str = HERE) -> bool | None:
    """Return the decision, which must not depend on the order of the entries."""
    found = {
        Rules([Policy(kind, order)]).allows(Need(ResourceKind.TOPIC, topic, PUB), address)  # type: ignore[arg-type]
        for order in itertools.permutations(entries)
    }
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize(
    ("entries", "decision"),
    [
        ([("Topic:*", "Allow"), ("Topic:pre-x-1", "Deny")], False),
        ([("Topic:*", "Deny"), ("Topic:pre-x-1", "Allow")], True),
        ([("Topic:pre-*", "Allow"), ("Topic:pre-x-*", "Deny")], False),
        ([("Topic:pre-*", "Deny"), ("Topic:pre-x-*", "Allow")], True),
        ([("*", "Allow"), ("Topic:*", "Deny")], False),
        ([("*", "Deny"), ("Topic:pre*", "Allow")], True),
        ([("topic:pre-x-1", "Allow"), ("Topic:pre-x-1", "Deny")], False),
        ([("Group:pre-x-1", "Allow"), ("Cluster:*", "Allow")], None),
        ([("Topic:pre-x-2", "Allow")], None),
        ([], None),
    ],
)
def test_the_most_specific_entry_decides(entries: list[tuple[str, str]], decision: bool | None) -> None:
    assert decide(*(entry(*each) for each in entries)) is decision


def test_only_entries_for_the_action_and_the_address_count() -> None:
    assert decide(entry("Topic:pre-x-1", "Deny", "Sub"), entry("Topic:*", "Allow", "Pub")) is True
    assert decide(entry("Topic:pre-x-1", "Allow", "All")) is True
    deny_here = entry("Topic:pre-x-1", "Deny", sources=("10.1.0.0/16", "::1"))
    assert decide(deny_here, entry("Topic:*", "Allow")) is False
    assert decide(deny_here, entry("Topic:*", "Allow"), address="10.2.0.1") is True
    assert decide(deny_here, entry("Topic:*", "Allow"), address="::ffff:10.1.9.9") is False
    assert decide(deny_here, address="not an address") is None


def test_custom_entries_come_before_default_ones() -> None:
    policies = [Policy("Default", (entry("Topic:t", "Allow"),)), Policy("Custom", (entry("Topic:*", "Deny"),))]
    assert Rules(policies).allows(Need(ResourceKind.TOPIC, "t", PUB), HERE) is False
    assert Rules(policies[:1]).allows(Need(ResourceKind.TOPIC, "t", PUB), HERE) is True


def test_changes_replace_entries_of_the_same_resource() -> None:
    before = [Policy("Custom", (entry("Topic:a", "Allow"), entry("Topic:b", "Allow")))]
    after = merged(before, [Policy("Custom", (entry("Topic:b", "Deny"),)), Policy("Default", (entry("*", "Allow"),))])
    assert [(policy.policy_type, [each.resource for each in policy.entries]) for policy in after] == [
        ("Custom", ["Topic:a", "Topic:b"]),
        ("Default", ["*"]),
    ]
    assert after[0].entries[1].decision == "Deny"
    assert [policy.policy_type for policy in without(without(after, "Custom", "Topic:a"), "Custom", "Topic:b")] == [
        "Default"
    ]


@pytest.mark.parametrize("resource", ["", "Topic", "Topic:", "Tpic:x", ":x", "**", "Topic:" + "x" * 300])
def test_invalid_resources_are_refused(resource: str) -> None:
    with pytest.raises(ProtocolError):
        check_entry(entry(resource, "Allow"))


def test_unknown_actions_are_left_out_and_none_is_an_error() -> None:
    assert check_entry(entry("*", "Allow", "pub", "Fly", "SUB")).actions == ("Pub", "Sub")
    with pytest.raises(ProtocolError, match="none of the actions"):
        check_entry(entry("*", "Allow", "Fly", "Any"))
    for source in ("10.0.0.0/33", "x", "1.2.3", "*"):
        with pytest.raises(ProtocolError):
            parse_source(source)


def test_the_number_of_entries_is_bounded() -> None:
    many = Policy("Custom", tuple(entry(f"Topic:t{number}", "Allow") for number in range(5_001)))
    with pytest.raises(ProtocolError, match="at most 5000"):
        merged([], [many])


def test_retry_topics_stand_for_their_groups() -> None:
    rules = Rules([Policy("Custom", (entry("Group:%RETRY%g", "Allow", "Sub"),))])
    assert rules.allows(Need(ResourceKind.GROUP, "g", actions("Sub")), HERE) is True
