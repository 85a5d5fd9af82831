"""SQL92 subscriptions of consumer groups, kept while their consumers are away; saved in consumerFilter.json.

Source: docs/reference/filters.md; RocketMQ ConsumerFilterManager.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tandemq.broker.filter.bloom import BITS, bit_positions
from tandemq.broker.filter.compiled import SqlExpressions, memory_of_filter
from tandemq.broker.filter.parser import SqlFilter
from tandemq.broker.filter.tokens import FilterInvalid
from tandemq.broker.state.persistence import Saver
from tandemq.codec.remoting.fastjson import dumps
from tandemq.model.group import SQL_EXPRESSION, SubscriptionData, is_tag_expression
from tandemq.storage.json_tables import TableFile

log = logging.getLogger(__name__)
MEMORY_BYTES_MAX = 64 << 20
"""Memory budget of all registered filters; beyond it, those without consumers are dropped, then new ones refused."""
KEPT_MS = 86_400_000
"""How long a filter is kept without consumers."""
COMPILED_AT_ONCE = 16
"""Number of subscriptions of a group that are registered at once; others when they are first used."""
REFUSED_MAX = 10_000
"""Number of refused subscriptions that are known, so that they are not compiled again with each heartbeat."""
CLEAN_MS = 600_000
"""How often the owner calls `clean`."""
_LOADED_MS = 30_000
"""How long ago the consumers left, for filters that had some when the broker stopped."""


@dataclass(frozen=True, slots=True)
class ConsumerFilter:
    """The SQL92 subscription of a group to a topic. A change makes another one: a worker may be saving this one."""

    topic: str
    group: str
    compiled: SqlFilter
    version: int
    """subVersion of the subscription."""
    born_ms: int
    """Since when the group has this expression, wall ms."""
    dead_ms: int = 0
    """When its last consumer left or gave the subscription up, wall ms; 0 while it has consumers."""

    def to_json(self) -> dict[str, Any]:
        """Return the entry of consumerFilter.json."""
        return {
            "bloomFilterData": {"bitNum": BITS, "bitPos": bit_positions(self.group, self.topic)},
            "bornTime": self.born_ms,
            "clientVersion": self.version,
            "consumerGroup": self.group,
            "dead": self.dead_ms >= self.born_ms,
            "deadTime": self.dead_ms,
            "expression": self.compiled.text,
            "expressionType": SQL_EXPRESSION,
            "topic": self.topic,
        }


def _encoded(snapshot: dict[str, Any]) -> bytes:
    """Return the content of the file, encoded in steps, so that the broker goes on meanwhile: a line per filter."""
    lines: dict[str, list[bytes]] = {}
    for found in snapshot[_FILTERS]:
        lines.setdefault(found.topic, []).append(b"%b:%b" % (dumps(found.group), dumps(found.to_json())))
    topics = [
        b'%b:{"groupFilterData":{\n%b},"topic":%b}' % (dumps(topic), b",\n".join(own), dumps(topic))
        for topic, own in lines.items()
    ]
    return b'{"filterDataByTopic":{\n%b}}' % b",\n".join(topics)


_FILTERS = "filters"
"""In a snapshot for `_encoded`: the filters."""
FILE = TableFile("consumerFilter.json", rebuilt="consumers register their filters again", encode=_encoded)


class ConsumerFilters:
    """All SQL92 subscriptions."""

    def __init__(self, saver: Saver, wall_ms: int) -> None:
        """Load the file. What cannot be read of it is dropped: consumers register again."""
        self.expressions = SqlExpressions()
        self._saver = saver
        self._by_group: dict[str, dict[str, ConsumerFilter]] = {}
        """By group, then by topic."""
        self._memory = 0
        self._later: dict[str, dict[str, tuple[SubscriptionData, int]]] = {}
        """Subscriptions that are registered when they are used, each with its wall time; by group, then by topic."""
        self._refused: dict[tuple[str, str], int] = {}
        """Versions of refused subscriptions, by topic and group, the oldest first."""
        raw = FILE.load(saver.disk)
        for entry in _entries_in(raw):
            try:
                self._load(entry, wall_ms)
            except (KeyError, TypeError, ValueError) as error:
                log.warning("%s: an entry is dropped: %r", FILE.path, error)

    def _load(self, entry: dict[str, Any], wall_ms: int) -> None:
        compiled = self.expressions.compile(str(entry["expression"]))
        born_ms, dead_ms = int(entry["bornTime"]), int(entry["deadTime"])
        if dead_ms < born_ms:
            dead_ms = max(born_ms, wall_ms - _LOADED_MS)
        topic, group = str(entry["topic"]), str(entry["consumerGroup"])
        self._put(ConsumerFilter(topic, group, compiled, int(entry["clientVersion"]), born_ms, dead_ms))

    def find(self, topic: str, group: str) -> ConsumerFilter | None:
        """Return the filter of a group for a topic."""
        later = self._later.get(group)
        if later is not None and topic in later:
            self._register(topic, group, *later.pop(topic))
        return self._registered(topic, group)

    def parts_of(self, group: str) -> int:
        """Return the largest number of constants and properties of an expression of a group; 0 if it has none."""
        return max((found.compiled.parts for found in self._by_group.get(group, {}).values()), default=0)

    def follow(self, group: str, subscriptions: dict[str, SubscriptionData], wall_ms: int) -> None:
        """Take the current subscriptions of a group by topic, none if it has no consumers."""
        later = self._later.pop(group, {})
        new = {
            topic: later.get(topic, (subscription, wall_ms))
            for topic, subscription in subscriptions.items()
            if not is_tag_expression(subscription.expression_type) and self._is_new(topic, group, subscription)
        }
        for topic in list(new)[:COMPILED_AT_ONCE]:
            self._register(topic, group, *new.pop(topic))
        if new:
            self._later[group] = new
        of_group = self._by_group.get(group, {})
        for topic, found in of_group.items():
            wanted = subscriptions.get(topic)
            if (wanted is None or is_tag_expression(wanted.expression_type)) and not found.dead_ms:
                of_group[topic] = replace(found, dead_ms=wall_ms)
                self._save()

    def _is_new(self, topic: str, group: str, subscription: SubscriptionData) -> bool:
        """Whether a subscription is to be registered; revive its filter if its consumers are back."""
        found, version = self._registered(topic, group), subscription.sub_version
        if found is None or version > found.version:
            return self._refused.get((topic, group)) != version
        if found.dead_ms and subscription.sub_string == found.compiled.text:
            self._by_group[group][topic] = replace(found, dead_ms=0)
            self._save()
        return False

    def _registered(self, topic: str, group: str) -> ConsumerFilter | None:
        return self._by_group.get(group, {}).get(topic)

    def _register(self, topic: str, group: str, subscription: SubscriptionData, wall_ms: int) -> None:
        found = self._registered(topic, group)
        text, version = subscription.sub_string, subscription.sub_version
        try:
            compiled = self.expressions.compile(text)
            if subscription.expression_type != SQL_EXPRESSION:
                raise FilterInvalid(f"there is no expression type {subscription.expression_type!r:.40}")
        except FilterInvalid as error:
            log.warning("subscription of group=%s to topic=%s is refused: %s", group, topic, error)
            if found is not None:
                self._remove(found)
            self._refuse(topic, group, version)
            return
        is_same = found is not None and found.compiled.text == text
        born_ms = found.born_ms if found is not None and is_same else wall_ms
        self._put(ConsumerFilter(topic, group, compiled, version, born_ms))
        self._save()

    def _refuse(self, topic: str, group: str, version: int) -> None:
        """Note a refused subscription, which comes again with each heartbeat."""
        self._refused.pop((topic, group), None)
        self._refused[topic, group] = version
        if len(self._refused) > REFUSED_MAX:
            del self._refused[next(iter(self._refused))]

    def _put(self, new: ConsumerFilter) -> None:
        old = self._registered(new.topic, new.group)
        if old is not None:
            self._remove(old)
        self._memory += memory_of_filter(new.compiled)
        if self._memory > MEMORY_BYTES_MAX:
            self._remove_dead(older_than_ms=new.born_ms)
        if self._memory > MEMORY_BYTES_MAX:
            self._memory -= memory_of_filter(new.compiled)
            log.warning(
                "the filter of group=%s for topic=%s is refused: all take too much memory", new.group, new.topic
            )
            self._refuse(new.topic, new.group, new.version)
            return
        self._by_group.setdefault(new.group, {})[new.topic] = new

    def _remove(self, old: ConsumerFilter) -> None:
        of_group = self._by_group[old.group]
        del of_group[old.topic]
        if not of_group:
            del self._by_group[old.group]
        self._memory -= memory_of_filter(old.compiled)
        self._refused.clear()  # there may be room now
        self._save()

    def clean(self, wall_ms: int) -> None:
        """Remove filters that had no consumers for KEPT_MS."""
        self._remove_dead(older_than_ms=wall_ms - KEPT_MS)

    def _remove_dead(self, *, older_than_ms: int) -> None:
        for of_group in list(self._by_group.values()):
            for dead in [known for known in of_group.values() if known.dead_ms and known.dead_ms <= older_than_ms]:
                self._remove(dead)

    def _save(self) -> None:
        self._saver.later(FILE, self._snapshot, is_awaited=False)

    def _snapshot(self) -> dict[str, Any]:
        return {_FILTERS: [found for of_group in self._by_group.values() for found in of_group.values()]}


def _entries_in(raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for of_topic in _objects_in(raw.get("filterDataByTopic")):
        yield from _objects_in(of_topic.get("groupFilterData"))


def _objects_in(value: Any) -> list[dict[str, Any]]:
    return [item for item in value.values() if isinstance(item, dict)] if isinstance(value, dict) else []
