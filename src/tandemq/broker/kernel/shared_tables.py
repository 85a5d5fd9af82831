"""Topics, consumer groups and offsets, as slaves copy them."""

import logging
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from tandemq.broker.kernel.copied_tables import Polled, StreamedTable, Table
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.state.consumer_offsets import SEPARATOR, WHOLE, ConsumerOffsets, parse_offsets_body
from tandemq.broker.state.groups import Groups
from tandemq.broker.state.table_journal import REMOVED, removed_names
from tandemq.broker.state.topics import Topics, parse_topics
from tandemq.codec.ha import KIND_GROUPS, KIND_OFFSETS, KIND_TOPICS
from tandemq.codec.remoting.fastjson import dumps, dumps_java, loads
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.storage.json_tables import DataVersion
from tandemq.storage.store import Store

log = logging.getLogger(__name__)
ATTRIBUTE_DEFECT_VERSIONS = (477, 479)
"""Versions (5.3.2, 5.3.3) of Java slaves that fail on topics or groups with attributes: they get them without."""
LOGGED_MAX = 20


class _LastPolled(NamedTuple):
    """The last response of a master, so that the same one, each few seconds, is not read again."""

    digest: bytes
    versions: tuple[DataVersion, DataVersion]
    """Versions of our tables after it."""
    names: frozenset[str]
    """Its topics."""


def _versions(topics: Topics) -> tuple[DataVersion, DataVersion]:
    return topics.version.copy(), topics.mappings.version.copy()


class TopicsTable(StreamedTable):
    """Topics and the mappings of static topics. A message is never copied before its topic."""

    code = RequestCode.GET_ALL_TOPIC_CONFIG
    kind = KIND_TOPICS
    precedes_log = True

    def __init__(self, topics: Topics) -> None:
        """Begin to compare versions."""
        self._topics = topics
        self._published = -1
        """Version whose changes were taken last."""
        self._listed: tuple[str, frozenset[str]] = ("", frozenset())
        """The master that sent its topics since the last `take_listed`, and their names."""
        self._last: _LastPolled | None = None

    def polled(self, command: Command) -> bytes:
        """See `Table`."""
        table = _plain(self._topics.as_json(), "topicConfigTable", command)
        return dumps(table | self._topics.mappings.for_slaves())

    def take_polled(self, polled: Polled) -> None:
        """See `Table`."""
        digest, last, topics = sha256(polled.body).digest(), self._last, self._topics
        if last is not None and last.digest == digest and last.versions == _versions(topics):
            self._listed = (polled.master, last.names)
            return
        raw = loads(polled.body, is_trusted=True)
        version, configs = DataVersion.from_json(raw.get("dataVersion")), parse_topics(raw)
        names = frozenset(config.topic_name for config in configs)
        self._listed = (polled.master, names)
        if version != topics.version:
            topics.replace(configs, version)
            log.info("metadata: took over %d topics", len(topics.table))
        topics.follow_mappings(raw)
        self._last = _LastPolled(digest, _versions(topics), names)

    def take_listed(self, master: str) -> frozenset[str] | None:
        """Return the names of all topics that this master sent last, once; None if it sent none since."""
        (sender, names), self._listed = self._listed, ("", frozenset())
        return names if sender == master else None

    @property
    def has_changes(self) -> bool:
        """See `Table`."""
        return self._topics.version.counter != self._published

    def collect_changes(self, *, is_wanted: bool) -> None:
        """See `Table`."""
        self._topics.collect_changes(is_wanted=is_wanted)

    def take_changes(self) -> bytes | None:
        """See `Table`."""
        if not self.has_changes:
            return None
        self._published = self._topics.version.counter
        names = self._topics.take_changed_names()
        removed = [name for name in names if name not in self._topics.table]
        return dumps(self._topics.as_json(names) | self._topics.mappings.for_slaves() | {REMOVED: removed})

    def whole(self) -> bytes:
        """See `Table`."""
        return dumps(self._topics.as_json() | self._topics.mappings.for_slaves() | {WHOLE: True})

    def take(self, table: dict[str, Any], _payload: bytes) -> None:
        """See `Table`."""
        topics, version = self._topics, DataVersion.from_json(table.get("dataVersion"))
        if not table.get(WHOLE):
            topics.follow(parse_topics(table), removed_names(table), version)
        elif version != topics.version:
            topics.replace(parse_topics(table), version)
            log.info("replication: took over %d topics", len(topics.table))
        topics.follow_mappings(table)


class GroupsTable(StreamedTable):
    """Consumer groups, and the topics that operators have forbidden them."""

    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    kind = KIND_GROUPS
    precedes_log = True

    def __init__(self, groups: Groups) -> None:
        """Begin to compare versions."""
        self._groups = groups
        self._published = -1
        """Version whose changes were taken last."""

    def polled(self, command: Command) -> bytes:
        """See `Table`."""
        return dumps(_plain(self._groups.as_json(), "subscriptionGroupTable", command))

    def take_polled(self, polled: Polled) -> None:
        """See `Table`."""
        self.take(loads(polled.body, is_trusted=True) | {WHOLE: True}, polled.body)

    @property
    def has_changes(self) -> bool:
        """See `Table`."""
        return self._groups.version.counter != self._published

    def collect_changes(self, *, is_wanted: bool) -> None:
        """See `Table`."""
        self._groups.collect_changes(is_wanted=is_wanted)

    def take_changes(self) -> bytes | None:
        """See `Table`."""
        if not self.has_changes:
            return None
        self._published = self._groups.version.counter
        names = self._groups.take_changed_names()
        removed = [name for name in names if name not in self._groups.table]
        return dumps(self._groups.as_json(names) | {REMOVED: removed})

    def whole(self) -> bytes:
        """See `Table`."""
        return dumps(self._groups.as_json() | {WHOLE: True})

    def take(self, table: dict[str, Any], _payload: bytes) -> None:
        """See `Table`."""
        version = DataVersion.from_json(table.get("dataVersion"))
        if not table.get(WHOLE):
            self._groups.follow(table, version)
        elif version != self._groups.version:
            self._groups.replace(table, version)


class OffsetsTable(StreamedTable):
    """Offsets of consumers. A slave merges them: a consumer may have committed there while the master was down.

    Offsets of a topic are removed once the master has neither the topic nor offsets of it. A master that lost its
    store, and so refuses our log, removes no offset.
    """

    code = RequestCode.GET_ALL_CONSUMER_OFFSET
    kind = KIND_OFFSETS
    may_be_ahead = True
    handed_as = "offsets"

    def __init__(self, offsets: ConsumerOffsets, topics: TopicsTable, store: Store) -> None:
        """Begin."""
        self._offsets = offsets
        self._topics = topics
        self._store = store

    def polled(self, _command: Command) -> bytes:
        """See `Table`."""
        return dumps_java(self._offsets.for_slaves())

    def take_polled(self, polled: Polled) -> None:
        """See `Table`."""
        theirs = parse_offsets_body(polled.body)
        if theirs.may_lack_commits:
            self._offsets.keep_all()
        self._offsets.copy_from_master(theirs.table, theirs.resets, theirs.version)
        names = self._topics.take_listed(polled.master)
        if names is not None and polled.is_log_accepted:
            self._forget_topics(names, theirs.table)
        self._offsets.save()

    def _forget_topics(self, names: frozenset[str], table: dict[str, dict[int, int]]) -> None:
        """Remove offsets of topics that the master has deleted: in neither its topics nor its offsets."""
        known = names | {key.rpartition(SEPARATOR)[0] for key in table}
        for topic in {key.rpartition(SEPARATOR)[0] for key in self._offsets.table} - known:
            self._offsets.remove_topic(topic)
            log.info("metadata: removed offsets of topic=%s, which the master has deleted", topic)

    @property
    def has_changes(self) -> bool:
        """See `Table`."""
        return self._offsets.has_changes

    def collect_changes(self, *, is_wanted: bool) -> None:
        """See `Table`."""
        self._offsets.collect_changes(is_wanted=is_wanted)

    def take_changes(self) -> bytes | None:
        """See `Table`."""
        return dumps_java(self._offsets.changes()) if self._offsets.has_changes else None

    def whole(self) -> bytes:
        """See `Table`."""
        return dumps_java(self._offsets.as_json() | {WHOLE: True})

    def take(self, table: dict[str, Any], payload: bytes) -> None:
        """See `Table`."""
        self._offsets.follow(table, payload)

    @property
    def is_unnoted(self) -> bool:
        """See `Table`."""
        return self._offsets.is_unnoted

    def note(self, changes: bytes) -> None:
        """See `Table`."""
        self._offsets.note(changes)

    def note_all(self) -> None:
        """See `Table`."""
        self._offsets.note_all()

    def correct(self) -> None:
        """See `Table`."""
        corrected = self._offsets.correct({key: queue.max_offset for key, queue in self._store.queues.items()})
        for key, queue_id, before, now in corrected[:LOGGED_MAX]:
            log.warning("offsets: %s queue=%d was %d, behind the queue's end; now %d", key, queue_id, before, now)
        if len(corrected) > LOGGED_MAX:
            log.warning("offsets: %d more were behind their queue's end and are there now", len(corrected) - LOGGED_MAX)
        self._offsets.save(is_awaited=bool(corrected))

    def handed(self) -> dict[str, Any]:
        """See `Table`."""
        return self._offsets.as_json()

    def take_handed(self, raw: dict[str, Any]) -> None:
        """See `Table`."""
        self._offsets.merge_positions(raw)
        self._offsets.save(is_awaited=True)


class SharedTables(Feature):
    """The tables of the kernel."""

    def __init__(self, topics: Topics, groups: Groups, offsets: ConsumerOffsets, store: Store) -> None:
        """Declare the tables."""
        self._saved = offsets, topics, groups
        shared = TopicsTable(topics)
        self._tables = shared, GroupsTable(groups), OffsetsTable(offsets, shared, store)

    def tables(self) -> tuple[Table, ...]:
        """See `Feature`."""
        return self._tables

    def save_tables(self) -> None:
        """See `Feature`."""
        for table in self._saved:
            table.save()


def _plain(table: dict[str, Any], entries: str, command: Command) -> dict[str, Any]:
    if command.version in ATTRIBUTE_DEFECT_VERSIONS:
        table[entries] = {
            name: msgspec.structs.replace(config, attributes={}) for name, config in table[entries].items()
        }
    return table
