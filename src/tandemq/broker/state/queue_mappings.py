"""Queue mappings of this broker's static topics, in topicQueueMapping.json as RocketMQ 5 writes it.

Few topics are static, so the file is written whole with each change. Slaves get the table beside that of the topics.

Limits: `BYTES_MAX` of all mappings, so that they fit into a frame beside the topics.
Source: docs/internals/storage.md, "config files"; RocketMQ TopicQueueMappingManager.
"""

import logging
from collections.abc import Container, Mapping
from typing import Any

import msgspec

from tandemq.broker.state.persistence import Saver
from tandemq.codec.remoting.bodies import convert, integer
from tandemq.errors import ProtocolError
from tandemq.model.java_types import Int32, Int64
from tandemq.model.queue_mapping import (
    GLOBAL_SCOPE,
    LogicalQueue,
    QueueMapping,
    QueueSegment,
    change_problem,
    segments_problem,
)
from tandemq.model.text import brief
from tandemq.storage.json_tables import DataVersion, TableFile

log = logging.getLogger(__name__)
TABLE = "topicQueueMappingInfoMap"
DETAILS, VERSION = "topicQueueMappingDetailMap", "mappingDataVersion"
"""Names of the table and its version where they stand beside the topics: on the way to slaves."""
BYTES_MAX = 3 << 20
_SEGMENT_BYTES = 160
"""Upper bound of a segment as JSON, without the name of its broker."""


class _Detail(msgspec.Struct, rename="camel"):
    topic: str
    bname: str
    total_queues: Int32
    epoch: Int64
    scope: str = GLOBAL_SCOPE
    hosted_queues: dict[str, list[QueueSegment]] = {}


def parse_mapping(value: Any, what: str) -> QueueMapping:
    """Decode a mapping with all its segments.

    Raises:
        ProtocolError: it is malformed, or not possible.
    """
    detail = convert(value, _Detail, what)
    if detail.total_queues < 0 or detail.epoch < 0:
        raise ProtocolError(f"{what}: totalQueues and epoch are 0 or more")
    queues: dict[int, LogicalQueue] = {}
    for key, segments in detail.hosted_queues.items():
        number, queue = integer(key, "hostedQueues"), LogicalQueue(tuple(segments))
        problem = segments_problem(queue.segments)
        if not 0 <= number < detail.total_queues:
            problem = f"there are {detail.total_queues} queues"
        if problem is not None:
            raise ProtocolError(f"{what}: logical queue {number}: {problem}")
        queues[number] = queue
    return QueueMapping(detail.topic, detail.total_queues, detail.bname, detail.epoch, queues, detail.scope)


def _mappings(raw: Mapping[str, Any], key: str = TABLE) -> dict[str, QueueMapping]:
    """Return the mappings that stand under a key.

    Raises:
        ProtocolError: they are malformed.
    """
    details = raw.get(key) or {}
    if not isinstance(details, dict):
        raise ProtocolError(f"{key} is not an object")
    return {name: parse_mapping(value, f"mapping of {name}") for name, value in details.items()}


FILE = TableFile("topicQueueMapping.json", _mappings)


class QueueMappings:
    """All mappings, by topic. Empty on a broker without static topics."""

    def __init__(self, saver: Saver, broker_name: str) -> None:
        """Load the file.

        Raises:
            StoreDamaged: it cannot be read.
        """
        self._saver = saver
        self._broker_name = broker_name
        self.table: dict[str, QueueMapping] = {}
        self.version = DataVersion()
        self.last_change = 0
        """Of the table, as `Saver.asked` counts."""
        raw = FILE.load(saver.disk)
        if raw:
            self._take(_mappings(raw, TABLE), raw.get("dataVersion"))

    def _take(self, found: dict[str, QueueMapping], version: Any) -> None:
        self.table.clear()  # others hold the dictionary itself
        for name, mapping in found.items():
            if mapping.bname == self._broker_name:
                self.table[name] = mapping
            else:
                log.error(
                    "static topics: the mapping of topic=%s is that of broker=%s, and ignored",
                    name,
                    brief(mapping.bname),
                )
        self.version = DataVersion.from_json(version)

    def keep_only(self, topics: Container[str]) -> None:
        """Drop mappings without a topic: a broker that ended while it saved both may have saved only these."""
        for name in [name for name in self.table if name not in topics]:
            log.warning("static topics: the mapping of topic=%s is dropped, there is no such topic", name)
            del self.table[name]

    def put(self, mapping: QueueMapping, wall_ms: int) -> None:
        """Enter a mapping, or replace the one of its topic."""
        self.table[mapping.topic] = mapping
        self._changed(wall_ms)

    def remove(self, topic: str, wall_ms: int) -> None:
        """Remove the mapping of a topic, if there is one."""
        if self.table.pop(topic, None) is not None:
            self._changed(wall_ms)

    def _changed(self, wall_ms: int) -> None:
        self.version.next(wall_ms)
        self._save()

    def _save(self) -> None:
        self._saver.later(FILE, self._file)
        self.last_change = self._saver.asked

    def problem(self, wanted: QueueMapping, *, is_forced: bool) -> str | None:
        """Return why a mapping cannot replace the present one of its topic; None if it can."""
        if wanted.bname != self._broker_name:
            return f"the mapping is that of broker {brief(wanted.bname, 64)!r}, this is {self._broker_name}"
        seen: set[int] = set()
        for number, segment in wanted.local_segments():
            if segment.queue_id in seen:
                return f"queue {segment.queue_id} of this broker is in two places, one of them logical queue {number}"
            seen.add(segment.queue_id)
        size = sum(_bytes_of(mapping) for name, mapping in self.table.items() if name != wanted.topic)
        if size + _bytes_of(wanted) > BYTES_MAX:
            return f"the mappings of this broker would have more than {BYTES_MAX} bytes; delete unused static topics"
        present = self.table.get(wanted.topic)
        if present is None or is_forced:
            return None
        if wanted.epoch < present.epoch:
            return f"Can't accept data with small epoch {wanted.epoch} < {present.epoch}"
        if wanted.scope != present.scope:
            return f"Can't accept data with unmatched scope {brief(wanted.scope, 64)} != {brief(present.scope, 64)}"
        for number, queue in present.queues.items():
            after = wanted.queues.get(number)
            if after is None and wanted.epoch == present.epoch:
                return f"logical queue {number} is missing, but the epoch is the same"
            found = after and change_problem(queue, after, is_same_epoch=wanted.epoch == present.epoch)
            if found:
                return f"logical queue {number}: {found}"
        return None

    def merged(self, wanted: QueueMapping) -> QueueMapping:
        """Return a mapping with the logical queues that only the present one of its topic has."""
        present = self.table.get(wanted.topic)
        return wanted if present is None else wanted._replace(queues={**present.queues, **wanted.queues})

    # The file, and slaves.

    def _file(self) -> dict[str, Any]:
        return {"dataVersion": self.version.as_json(), TABLE: self._details()}

    def _details(self) -> dict[str, Any]:
        return {name: mapping.as_detail() for name, mapping in self.table.items()}

    def for_slaves(self) -> dict[str, Any]:
        """Return the table in the form in which it stands beside the topics; {} if there never was a static topic."""
        if not self.version.counter:
            return {}
        return {VERSION: self.version.as_json(), DETAILS: self._details()}

    def recover(self, tables: Mapping[str, Any]) -> None:
        """Take the mappings beside a change of the topics, unless the file has newer ones.

        Raises:
            ProtocolError: they cannot be read.
        """
        if DataVersion.from_json(tables.get(VERSION)).counter > self.version.counter:
            self.follow(tables)

    def follow(self, tables: Mapping[str, Any]) -> bool:
        """Replace the mappings by those that another broker sent beside its topics; returns whether that is a change.

        Raises:
            ProtocolError: they cannot be read.
        """
        version = DataVersion.from_json(tables.get(VERSION))
        if VERSION not in tables or version == self.version:
            return False
        self._take(_mappings(tables, DETAILS), tables.get(VERSION))
        self._save()
        return True


def _bytes_of(mapping: QueueMapping) -> int:
    segments = [segment for queue in mapping.queues.values() for segment in queue.segments]
    return 400 + 3 * len(mapping.topic) + sum(_SEGMENT_BYTES + 3 * len(segment.bname) for segment in segments)
