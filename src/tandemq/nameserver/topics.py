"""Topics by broker group: the queues that brokers declared and those that clients see.

    places      topic -> {broker name: place}          groups      broker name -> its topics and mappings

`declared` is what the broker registered last, `offered` what clients see: they differ after an operator removed the
write permission. A topic has at least one place, and a place names a group that has registered topics here.

Owner: the route table. Does not know: brokers, addresses, encodings.
Source: docs/reference/requests.md, "Name server"; RocketMQ RouteInfoManager.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tandemq.errors import RemoteError
from tandemq.model.topic import Permission
from tandemq.nameserver.broker_data import TopicQueues

GROUP_TOPICS_MAX = 100_000
"""Topics of one broker name, over all its registrations."""
TOPIC_PLACES_MAX = 500_000
"""(topic, broker name) pairs in the table."""
_WRITE = int(Permission.WRITE)

PermissionChange = Callable[[int], int]


class TopicPlace(NamedTuple):
    """One topic on one broker group."""

    declared: TopicQueues
    offered: TopicQueues


@dataclass(slots=True)
class _GroupTopics:
    topics: set[str] = field(default_factory=set)
    mappings: dict[str, dict[str, Any]] = field(default_factory=dict)
    is_changed: bool = False
    """Whether permissions were changed here, by an operator or because the master left, since a member registered for
    the first time or with a new data version."""


def without_write(perm: int) -> int:
    """Remove the write permission."""
    return perm & ~_WRITE


class TopicTable:
    """All topics that one name server knows. Methods that change routes return the names of the topics concerned."""

    __slots__ = ("_groups", "_place_count", "_places")

    def __init__(self) -> None:
        """An empty table."""
        self._places: dict[str, dict[str, TopicPlace]] = {}
        self._groups: dict[str, _GroupTopics] = {}
        self._place_count = 0

    # Reading.

    def __len__(self) -> int:
        """The number of topics."""
        return len(self._places)

    def __contains__(self, topic: str) -> bool:
        return topic in self._places

    def names(self) -> list[str]:
        """All topics, sorted."""
        return sorted(self._places)

    def of_group(self, broker_name: str) -> set[str]:
        """The topics of a group; not to be changed."""
        group = self._groups.get(broker_name)
        return group.topics if group is not None else set()

    def offered(self, topic: str) -> dict[str, TopicQueues]:
        """Return the queues of a topic that clients see, by broker name in order; empty for an unknown topic."""
        return {name: place.offered for name, place in sorted(self._places.get(topic, {}).items())}

    def mapping(self, topic: str, broker_name: str) -> dict[str, Any] | None:
        """The queue mapping of a static topic on one group."""
        group = self._groups.get(broker_name)
        return group.mappings.get(topic) if group is not None else None

    def with_flag(self, wanted: int, unwanted: int = 0) -> list[str]:
        """Topics whose system flag, on their first group, has all bits of `wanted` and none of `unwanted`."""
        return [topic for topic, flag in self._flags() if flag & wanted == wanted and not flag & unwanted]

    def _flags(self) -> Iterator[tuple[str, int]]:
        for topic in sorted(self._places):
            places = self._places[topic]
            yield topic, places[min(places)].offered.topic_sys_flag

    # Registering.

    def no_room(self, broker_name: str, topics: dict[str, TopicQueues]) -> str | None:
        """Return why the new ones among these topics exceed a limit; None if they do not."""
        known = self.of_group(broker_name)
        added = sum(1 for topic in topics if topic not in known)
        if added and self._place_count + added > TOPIC_PLACES_MAX:
            return f"this name server is full: it holds {self._place_count} topic places of at most {TOPIC_PLACES_MAX}"
        if added and len(known) + added > GROUP_TOPICS_MAX:
            return (
                f"broker {broker_name} has {len(known)} topics here and registers {added} more, at most "
                f"{GROUP_TOPICS_MAX} are allowed"
            )
        return None

    def merge(
        self,
        broker_name: str,
        topics: dict[str, TopicQueues],
        mappings: dict[str, dict[str, Any]],
        *,
        is_new_version: bool,
        is_write_withheld: bool,
    ) -> list[str]:
        """Merge registered topics into those of the group.

        Args:
            broker_name: the group.
            topics: all or some of its topics; a broker may send one new topic, or many in several requests.
            mappings: queue mappings of static topics.
            is_new_version: the member registers for the first time or with a new data version. Otherwise topics
                declared as before keep a permission that was changed here meanwhile.
            is_write_withheld: clients may not write, because an acting master stands in for the master.
        """
        group = self._groups.setdefault(broker_name, _GroupTopics())
        if is_new_version:
            group.is_changed = False
        changed: list[str] = []
        for topic, declared in topics.items():
            places = self._places.setdefault(topic, {})
            known = places.get(broker_name)
            if known is None:
                self._place_count += 1
                group.topics.add(topic)
            elif known.declared == declared and group.is_changed:
                continue
            offered = declared._replace(perm=without_write(declared.perm)) if is_write_withheld else declared
            place = TopicPlace(declared, offered)
            if known != place:
                places[broker_name] = place
                changed.append(topic)
        for topic, mapping in mappings.items():
            if topic in group.topics and group.mappings.get(topic) != mapping:
                group.mappings[topic] = mapping
                changed.append(topic)
        return changed

    def add(self, topic: str, places: dict[str, TopicQueues]) -> None:
        """Add a topic, or change its queues, on some groups.

        Raises:
            RemoteError: the table is full; nothing changed.
        """
        if self._place_count + len(places) > TOPIC_PLACES_MAX:
            raise RemoteError(f"this name server is full: {TOPIC_PLACES_MAX} topic places")
        for name, queues in places.items():
            entries = self._places.setdefault(topic, {})
            if name not in entries:
                self._place_count += 1
            entries[name] = TopicPlace(queues, queues)
            self._groups.setdefault(name, _GroupTopics()).topics.add(topic)

    # Changing and removing.

    def change_permissions(self, broker_name: str, change: PermissionChange) -> list[str]:
        """Change the permission that clients see on all topics of a group."""
        group = self._groups.get(broker_name)
        if group is None:
            return []
        group.is_changed = True
        for topic in group.topics:
            place = self._places[topic][broker_name]
            offered = place.offered._replace(perm=change(place.offered.perm))
            self._places[topic][broker_name] = place._replace(offered=offered)
        return list(group.topics)

    def groups_of(self, topic: str) -> list[str]:
        """The names of the groups that have a topic, sorted."""
        return sorted(self._places.get(topic, ()))

    def remove(self, topic: str, broker_name: str) -> None:
        """Remove a topic from a group that has it."""
        group = self._groups[broker_name]
        group.topics.discard(topic)
        group.mappings.pop(topic, None)
        self._remove_place(topic, broker_name)

    def remove_group(self, broker_name: str) -> None:
        """Remove all topics of a group; nothing happens if it has none."""
        group = self._groups.pop(broker_name, None)
        for topic in sorted(group.topics) if group is not None else ():
            self._remove_place(topic, broker_name)

    def _remove_place(self, topic: str, broker_name: str) -> None:
        places = self._places[topic]
        del places[broker_name]
        self._place_count -= 1
        if not places:
            del self._places[topic]
