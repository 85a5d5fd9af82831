"""Topics that consumer groups are forbidden to read, by requests 353 of operators.

Kept in subscriptionGroup.json beside the groups, as 5.3 does: `"forbiddenTable": {"<group>": {"<topic>": 4}}`, bits of
permissions. Bits other than that of reading are kept, and have no effect. Neither the group nor the topic has to exist.

Limit: `ENTRIES_MAX`.
Source: RocketMQ 5.3 SubscriptionGroupManager.
"""

from collections.abc import Iterable
from typing import Any

from tandemq.errors import ProtocolError, StoreDamaged

READ = 4
"""Bit of a forbidden read."""
ENTRIES_MAX = 10_000
"""Maximum number of pairs of a group and a topic."""
KEY = "forbiddenTable"
"""Name of the table in subscriptionGroup.json and in the response to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""


class ForbiddenTopics:
    """Bits by group and topic; a pair without bits has no entry."""

    def __init__(self) -> None:
        """Begin without entries."""
        self.table: dict[str, dict[str, int]] = {}

    def forbids(self, group: str, topic: str) -> bool:
        """Return whether a group may not read a topic."""
        topics = self.table.get(group)
        return topics is not None and bool(topics.get(topic, 0) & READ)

    def set(self, group: str, topic: str, *, readable: bool) -> bool:
        """Forbid or allow a group to read a topic; returns whether that is a change.

        Raises:
            ProtocolError: there are `ENTRIES_MAX` entries already.
        """
        topics = self.table.get(group, {})
        bits = topics.get(topic, 0)
        after = bits & ~READ if readable else bits | READ
        if after == bits:
            return False
        if not bits and sum(map(len, self.table.values())) >= ENTRIES_MAX:
            raise ProtocolError(f"{ENTRIES_MAX} topics are forbidden to groups already; allow some that are not in use")
        topics = topics | {topic: after} if after else {name: old for name, old in topics.items() if name != topic}
        self.take({group: topics})
        return True

    def take(self, entries: dict[str, dict[str, int]]) -> None:
        """Replace the entries of these groups."""
        for group, topics in entries.items():
            if topics:
                self.table[group] = topics
            else:
                self.table.pop(group, None)

    def replace(self, entries: dict[str, dict[str, int]]) -> list[str]:
        """Replace all entries; return the groups whose entries changed."""
        groups = [group for group in {**self.table, **entries} if self.table.get(group) != entries.get(group)]
        self.table.clear()  # others hold the dictionary itself
        self.table.update({group: topics for group, topics in entries.items() if topics})
        return groups

    def as_json(self, groups: Iterable[str] | None) -> dict[str, dict[str, int]]:
        """Return all entries, or those of some groups: an empty object for a group without any."""
        return dict(self.table) if groups is None else {group: self.table.get(group, {}) for group in groups}


def parse_forbidden(raw: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Decode the table beside the groups.

    Raises:
        StoreDamaged: it is not bits by group and topic.
    """
    table = raw.get(KEY) or {}
    if not isinstance(table, dict) or not all(
        isinstance(topics, dict) and all(type(bits) is int for bits in topics.values()) for topics in table.values()
    ):
        raise StoreDamaged(f"group table: {KEY} is not an object of topics and bits by group")
    return {group: {topic: bits for topic, bits in topics.items() if bits} for group, topics in table.items()}
