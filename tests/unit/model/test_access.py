"""Decisions of policies: the most specific resource decides, Deny between equals, whatever the order."""

import itertools
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.errors import ProtocolError
from tandemq.model.access import (
    SIZE_MAX,
    Need,
    Policy,
    PolicyEntry,
    ResourceKind,
    Rules,
    actions,
    check_entry,
    merged,
    parse_source,
    size_of,
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


def test_the_number_of_source_addresses_is_bounded() -> None:
    sources = tuple(f"10.0.{number // 256}.{number % 256}" for number in range(SIZE_MAX))
    with pytest.raises(ProtocolError, match="at most 10000 entries and source"):
        merged([], [Policy("Custom", (entry("Topic:t", "Allow", sources=sources),))])
    with pytest.raises(ProtocolError, match="10001 source addresses"):
        check_entry(entry("Topic:t", "Allow", sources=(*sources, "::1")))
    assert size_of([Policy("Custom", (entry("Topic:t", "Allow", sources=sources[:5]),))]) == 6


@given(
    st.lists(
        st.tuples(
            st.integers(0, 255), st.integers(0, 8).map(lambda bits: 32 - bits), st.sampled_from(["10.0.0", "::"])
        ),
        max_size=12,
    )
)
def test_sources_are_what_their_ranges_have(ranges: list[tuple[int, int, str]]) -> None:
    texts = tuple(
        f"{prefix}.{low}/{bits}" if prefix != "::" else f"::{low:x}/{bits + 96}" for low, bits, prefix in ranges
    )
    networks = [ip_network(text, strict=False) for text in texts]
    rules = Rules([Policy("Custom", (entry("Topic:t", "Allow", sources=texts or ("192.0.2.1",)),))])
    for number in range(256):
        for address in (f"10.0.0.{number}", f"::{number:x}"):
            is_in = any(ip_address(address) in network for network in networks)
            assert rules.allows(Need(ResourceKind.TOPIC, "t", PUB), address) is (True if is_in else None), address


_NAMES = st.text("ab", min_size=1, max_size=4)
_RESOURCES = st.one_of(
    st.just("*"), st.builds("{}:{}{}".format, st.sampled_from(["Topic", "Group"]), _NAMES, st.sampled_from(["", "*"]))
) | st.sampled_from(["Topic:*", "Group:*"])


@given(st.lists(st.tuples(_RESOURCES, st.sampled_from(["Allow", "Deny"])), max_size=8), _NAMES)
def test_the_index_decides_as_a_search_through_all_entries(listed: list[tuple[str, str]], topic: str) -> None:
    def rank(resource: str) -> int:
        """Return how specific a resource is that matches the topic; 0: it does not match."""
        if resource == "*":
            return 1
        kind, _, name = resource.partition(":")
        if kind != "Topic" or not (topic.startswith(name[:-1]) if name.endswith("*") else topic == name):
            return 0
        return 2 + len(name) if name.endswith("*") else 1_000

    best = max((rank(resource) for resource, _ in listed), default=0)
    decisions = {decision for resource, decision in listed if best and rank(resource) == best}
    expected = None if not decisions else "Deny" not in decisions
    found = Rules([Policy("Custom", tuple(entry(*each) for each in listed))])
    assert found.allows(Need(ResourceKind.TOPIC, topic, PUB), HERE) is expected


def test_retry_topics_stand_for_their_groups() -> None:
    rules = Rules([Policy("Custom", (entry("Group:%RETRY%g", "Allow", "Sub"),))])
    assert rules.allows(Need(ResourceKind.GROUP, "g", actions("Sub")), HERE) is True
