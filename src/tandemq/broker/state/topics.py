"""Topics of this broker: their configuration, and derived values for the hot paths.

Limits: `TOPICS_MAX` topics, and a table that fits into one frame for slaves. The last tenth of both is reserved for
retry and dead letter topics. A table that is larger already (of an older version or another broker) is served
unchanged, and accepts no new topics. A stored topic whose attributes are too long loses them.

Source: docs/internals/storage.md, "topics.json"; RocketMQ TopicConfigManager.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec

from tandemq.boundary import Disk
from tandemq.broker.state.message_type import takes_any_type
from tandemq.broker.state.persistence import Saver
from tandemq.broker.state.queue_mappings import QueueMappings
from tandemq.broker.state.table_journal import REMOVED, TableJournal, removed_names
from tandemq.codec.record.record import TOPIC_V1_BYTES_MAX
from tandemq.codec.remoting.bodies import convert
from tandemq.config.settings import BrokerConfig
from tandemq.engine import Budget, TopicTarget
from tandemq.errors import ProtocolError, StoreDamaged
from tandemq.model.attributes import (
    ATTRIBUTES_BYTES_MAX,
    BATCH_QUEUES,
    CLEANUP_POLICY,
    COMPACTION,
    QUEUE_TYPE,
    attributes_bytes,
)
from tandemq.model.queue_mapping import QueueMapping
from tandemq.model.topic import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    FORBIDDEN_FOR_SENDING,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SINGLE_TAG,
    TIMER_TOPIC,
    Permission,
    TopicConfig,
    filter_type_error,
    reply_topic,
    topic_name_error,
)
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.json_tables import DataVersion, TableFile, TableOrigin, require
from tandemq.storage.store import Store

log = logging.getLogger(__name__)
BENCHMARK_QUEUES = 1024
HOLDING_TOPICS = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, TIMER_TOPIC})
"""Topics of messages that are delivered to others later."""
TOPICS_MAX = 50_000
"""Maximum number of topics of one broker: half of what a name server accepts."""
TABLE_BYTES_MAX = 12 << 20
"""Maximum size of the table as JSON: it fits into a frame of 16 MiB, the maximum of Java slaves."""
FRAME_SHARE = 0.75
"""Maximum share of frameMaxLength that the table takes, where that is less."""
OWN_SHARE = 0.1
"""Share of both limits that is reserved for topics that this broker creates for consumer groups."""
_ENTRY_BYTES = 180
"""Bytes of a topic in the table besides its name, which appears twice, and its attributes."""


class Topic(TopicTarget):
    """One topic. Its queues are opened on first use."""

    __slots__ = ("bytes_in_table", "config", "queues_seen")
    queues: dict[int, ConsumeQueue]  # type: ignore[assignment]  # only `Topics.queue` enters queues

    def __init__(self, config: TopicConfig, *, checks_type: bool = False, is_static: bool = False) -> None:
        """Derive the values for the engine; open no queue yet.

        Args:
            config: the configuration.
            checks_type: messages must be of the topic's type.
            is_static: queue ids in requests are those of logical queues.
        """
        takes_plain = not is_static and _takes_plain(config, checks_type=checks_type)
        super().__init__(config.topic_name, config.write_queue_nums, takes_plain=takes_plain)
        self.config = config
        self.bytes_in_table = bytes_in_table(config)
        """Upper bound."""
        self.queues_seen = -1
        """Number of queues that the store had opened when `Topics.open_queues` looked for those of this topic."""


class UnregisteredTopics(NamedTuple):
    """Changes that the name servers have not been sent yet."""

    names: dict[str, None]
    """Topics that changed."""
    is_whole: bool
    """Whether every topic has to be sent."""


class Topics:
    """All topics. Each change is saved in a journal, and later in topics.json."""

    def __init__(self, saver: Saver, store: Store, config: BrokerConfig, wall_ms: int) -> None:
        """Load the table and add the system topics.

        Raises:
            StoreDamaged: the table cannot be read.
        """
        self._saver = saver
        self._store = store
        self._config = config
        self.table: dict[str, Topic] = {}
        self.version = DataVersion(wall_ms)
        self.changed = False
        """Set on every change; cleared by `take_unregistered`."""
        self._unregistered = UnregisteredTopics({}, is_whole=False)
        self._changed_names: dict[str, None] | None = None
        """Names of topics that changed since the table was last published; None: changes are not recorded."""
        self._unsaved: dict[str, int] = {}
        """Topics to their last change, as `Saver.asked` counts, in this order; those at the front may be saved."""
        self._unsaved_table = 0
        """The last change that concerns the whole table."""
        self._table_bytes = 0
        self._budget_of: Callable[[str], Budget | None] = lambda _name: None
        self._unserved: dict[str, TopicConfig] = {}
        """Topics whose queues have a format that is not supported; kept in the file for the broker that made them."""
        self.mappings = QueueMappings(saver, config.broker_name)
        """Mappings of the logical queues of static topics."""
        store.watch_drops(self._forget_queues)
        origin = self._load(saver.keep_journal(FILE, self.as_json, self._changes), wall_ms)
        for topic in system_topics(config, len(store.config.delays_ms)):
            if topic.topic_name not in self.table:
                self._enter(topic)
        if origin is not TableOrigin.FILE:
            self._rebuild(wall_ms)
        self.mappings.keep_only(self.table)
        self._restore_mapped_queues(wall_ms)

    def _restore_mapped_queues(self, wall_ms: int) -> None:
        """Give static topics the queues that their mappings name: a damaged table may lack them."""
        for name, mapping in self.mappings.table.items():
            config = self.table[name].config
            needed = 1 + max((segment.queue_id for _, segment in mapping.local_segments()), default=-1)
            if needed > min(config.read_queue_nums, config.write_queue_nums):
                log.error("topics: topic=%s has %d queues, its mapping names %d", name, config.write_queue_nums, needed)
                read, write = max(needed, config.read_queue_nums), max(needed, config.write_queue_nums)
                self.put(msgspec.structs.replace(config, read_queue_nums=read, write_queue_nums=write), wall_ms)

    def _load(self, journal: TableJournal, wall_ms: int) -> TableOrigin:
        try:
            raw, origin = FILE.read(self._saver.disk)
        except StoreDamaged as error:
            log.error("topics: %s; they are rebuilt from the queues of the store", error)
            raw, origin = {}, TableOrigin.NONE
        if raw:
            self.version = DataVersion.from_json(raw.get("dataVersion"))
            for config in parse_topics(raw):
                self._place(config)
        self.version = journal.replay(self.version, wall_ms, self._apply, has_table=bool(raw))
        for name, topic in self.table.items():
            if topic.config.attributes.get(CLEANUP_POLICY) == COMPACTION:
                log.warning(
                    "topics: topic=%s has %s=%s, which is not supported: its messages are deleted by age, "
                    "including the newest of a key",
                    name,
                    CLEANUP_POLICY,
                    COMPACTION,
                )
        return origin

    def _rebuild(self, wall_ms: int) -> None:
        """Enter the topics that the store has queues of, and the table lacks since its file is missing or damaged."""
        queues: dict[str, int] = {}
        for name, queue_id in self._store.queues:
            queues[name] = max(queues.get(name, 0), queue_id + 1)
        for name, count in queues.items():
            if name not in self.table and name not in self._unserved and topic_name_error(name) is None:
                log.error(
                    "topics: topic=%s is rebuilt from its %d queues, with the default permissions and attributes",
                    name,
                    count,
                )
                self._enter(TopicConfig(name, count, count))
        if queues:
            self.version.next(wall_ms)
            self._saver.later(FILE, self.as_json)

    def _apply(self, change: dict[str, Any], adds_only: bool) -> None:
        """Apply a change that the table on the disk lacks."""
        configs, removed = parse_topics(change), removed_names(change)
        self.mappings.recover(change)
        for name in removed:
            self._leave(name)
        for config in configs:
            if not (adds_only and config.topic_name in self.table):
                self._place(config)

    def _place(self, config: TopicConfig) -> None:
        """Enter a topic of the file or of another broker, or set it aside if it cannot be served."""
        if config.attributes.get(QUEUE_TYPE) != BATCH_QUEUES:
            self._enter(config)
            return
        name = config.topic_name
        self._leave(name)
        self._unserved[name] = config
        self._store.without_queues.add(name)
        if self._store.queues_of(name):
            self._store.drop_topic(name)  # beside those of batches they would stop a RocketMQ broker
        log.error("topics: %s; this broker does not serve the topic", _batch_remark(name))

    def unserved_remark(self, name: str) -> str | None:
        """Return why a topic is not served although it exists; None if that is not the case."""
        return _batch_remark(name) if name in self._unserved else None

    def _enter(self, config: TopicConfig) -> Topic:
        self._leave(config.topic_name)
        is_static = config.topic_name in self.mappings.table
        topic = Topic(config, checks_type=self._config.message_type_check, is_static=is_static)
        topic.budget = self._budget_of(config.topic_name)
        self.table[config.topic_name] = topic
        self._table_bytes += topic.bytes_in_table
        return topic

    def _leave(self, name: str) -> Topic | None:
        topic = self.table.pop(name, None)
        if topic is not None:
            self._table_bytes -= topic.bytes_in_table
        if self._unserved.pop(name, None) is not None:
            self._store.without_queues.discard(name)
        return topic

    def full(self, wanted: Iterable[TopicConfig], *, is_own: bool = False) -> str | None:
        """Return why these topics cannot be added or changed; None if there is room for them.

        `is_own`: this broker creates them for a consumer group, and they may use the reserved share.
        """
        share = 1.0 if is_own else 1.0 - OWN_SHARE
        topics_max = int(TOPICS_MAX * share)
        bytes_max = int(min(TABLE_BYTES_MAX, self._config.frame_bytes_max * FRAME_SHARE) * share)
        table, size, changed = self.table, self._table_bytes, {config.topic_name: config for config in wanted}
        count = len(table) + sum(name not in table for name in changed)
        size += sum(map(bytes_in_table, changed.values()))
        size -= sum(table[name].bytes_in_table for name in changed if name in table)
        if count > topics_max and count > len(table):
            return f"this broker has {len(table)} topics, at most {topics_max} are allowed; delete unused topics"
        if size > bytes_max and size > self._table_bytes:
            return (
                f"the topics of this broker would have {size} bytes, at most {bytes_max} are allowed, so that a slave "
                "can copy them; delete unused topics"
            )
        return None

    def get(self, name: str) -> Topic | None:
        """Return a topic; None if there is none."""
        return self.table.get(name)

    def end_of(self, name: str, queue_id: int) -> int | None:
        """Return the end of a queue, 0 if it has no messages; None if there is no such topic."""
        if name not in self.table:
            return None
        queue = self._store.queues.get((name, queue_id))
        return 0 if queue is None else queue.max_offset

    def queue(self, topic: Topic, queue_id: int) -> ConsumeQueue:
        """Return a queue of a topic, opened on first use."""
        found = topic.queues.get(queue_id)
        if found is None:
            found = self._store.queue(topic.config.topic_name, queue_id)
            topic.queues[queue_id] = found
        return found

    def open_queues(self, topic: Topic) -> None:
        """Have a topic know all its queues that exist."""
        if topic.queues_seen == self._store.queues_opened:
            return
        topic.queues_seen = self._store.queues_opened
        name = topic.config.topic_name
        for queue_id in range(topic.config.read_queue_nums):
            if queue_id not in topic.queues and (found := self._store.queues.get((name, queue_id))) is not None:
                topic.queues[queue_id] = found

    def limit_with(self, budget_of: Callable[[str], Budget | None]) -> None:
        """Set what returns the rate of a topic's sends, for topics that are created or changed from now on."""
        self._budget_of = budget_of

    def put(self, config: TopicConfig, wall_ms: int) -> Topic:
        """Create or change a topic."""
        topic = self._enter(config)
        self._changed(config.topic_name, wall_ms)
        return topic

    def put_static(self, config: TopicConfig, mapping: QueueMapping, wall_ms: int) -> None:
        """Create or change a static topic; the mapping is one that `mappings` accepts."""
        self.mappings.put(mapping, wall_ms)
        self.put(config, wall_ms)

    def _changed(self, name: str, wall_ms: int) -> None:
        self.version.next(wall_ms)
        if self._changed_names is not None:
            self._changed_names[name] = None
        self._note((name,))

    def _note(self, names: Sequence[str]) -> None:
        """Save these entries and the version, and register the topics at the name servers."""
        self._saver.change(FILE, names)
        for name in names:
            self._unsaved.pop(name, None)
            self._unsaved[name] = self._saver.asked
        saved = self._saver.saved
        # All are found first: deleting the first key of a dict again and again takes longer each time.
        for name in [name for name, _ in takewhile(lambda item: item[1] <= saved, self._unsaved.items())]:
            del self._unsaved[name]
        self._unregistered.names.update(dict.fromkeys(names))
        self.changed = True

    def remove(self, name: str, wall_ms: int) -> bool:
        """Delete a topic and its queues; False if there is none.

        Raises:
            DiskFull, DiskFailed: the deletion could not be recorded in the log; the topic stays.
        """
        is_known = name in self.table or name in self._unserved
        if is_known or self._store.queues_of(name):
            self._store.delete_topic(name, wall_ms)
        self.mappings.remove(name, wall_ms)
        self._leave(name)
        if is_known:
            self._changed(name, wall_ms)
        return is_known

    def _forget_queues(self, name: str) -> None:
        topic = self.table.get(name)
        if topic is not None:
            topic.queues.clear()

    def replace(self, configs: list[TopicConfig], version: DataVersion) -> None:
        """Replace the table by that of another broker; topics that it lacks are removed, their queues stay."""
        kept = {config.topic_name for config in configs}
        self.follow(configs, [name for name in (*self.table, *self._unserved) if name not in kept], version)
        self.save()

    def follow(self, configs: list[TopicConfig], removed: list[str], version: DataVersion) -> None:
        """Apply changes of another broker's table; queues of removed topics stay."""
        names = list(removed)
        for name in removed:
            self._leave(name)
        for config in configs:
            present = self.table.get(config.topic_name)
            if config in (present and present.config, self._unserved.get(config.topic_name)):
                continue
            self._place(config)
            names.append(config.topic_name)
        self.version = version
        self._note(names)

    def follow_mappings(self, tables: Mapping[str, Any]) -> None:
        """Take the mappings of static topics that another broker sent beside its topics, if they changed.

        Raises:
            StoreDamaged: they cannot be read.
        """
        if self.mappings.follow(tables):
            self._adopt_checks()

    def _adopt_checks(self) -> None:
        for name, topic in self.table.items():
            is_plain = _takes_plain(topic.config, checks_type=self._config.message_type_check)
            topic.takes_plain = is_plain and name not in self.mappings.table

    def take_unregistered(self) -> UnregisteredTopics:
        """Return the changes since the last call."""
        self.changed = False
        found, self._unregistered = self._unregistered, UnregisteredTopics({}, is_whole=False)
        return found

    def adopt_config(self, config: BrokerConfig, wall_ms: int) -> None:
        """Take changed settings; update the template of topics that are created by sending."""
        before, self._config = self._config, config
        if config.message_type_check != before.message_type_check:
            self._adopt_checks()
        if _template(config) != _template(before):
            self.put(_template(config), wall_ms)

    def create_on_send(self, name: str, default_topic: str, queue_nums: int, wall_ms: int) -> Topic | None:
        """Create a topic for a send to an unknown one; return None if that is not allowed, or there is no room."""
        template = None if name in self._unserved else self.table.get(default_topic)
        if template is None or not template.config.perm & Permission.INHERIT:
            return None
        if template.config.topic_name == AUTO_CREATE_TOPIC and not self._config.auto_create_topic:
            return None
        nums = max(1, min(queue_nums, template.config.write_queue_nums))
        perm = int(template.config.perm & ~Permission.INHERIT)
        created = TopicConfig(name, nums, nums, perm)
        return None if self.full([created]) is not None else self.put(created, wall_ms)

    def create_internal(self, name: str, queue_nums: int, wall_ms: int) -> Topic | None:
        """Return a retry, dead letter or similar topic, created readable and writable if missing; None: no room."""
        found = self.table.get(name)
        if found is not None:
            return found
        created = internal_topic(name, queue_nums)
        return None if self.full([created], is_own=True) is not None else self.put(created, wall_ms)

    def touch(self, wall_ms: int) -> None:
        """Note a change of all topics: increment the version, save it, and register them at the name servers."""
        self.version.next(wall_ms)
        self._note(())
        self._unregistered = self._unregistered._replace(is_whole=True)

    def collect_changes(self, *, is_wanted: bool) -> None:
        """Begin or stop collecting the names of changed topics."""
        self._changed_names = {} if is_wanted else None

    def take_changed_names(self) -> dict[str, None]:
        """Return the names of the topics that changed since the last call."""
        names, self._changed_names = self._changed_names or {}, {}
        return names

    def as_json(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the table, or the entries with these names, in the form of the file and of the replication protocol.

        To be encoded by `dumps`.
        """
        table = {name: topic.config for name, topic in self.table.items()} if names is None else {}
        table |= self._unserved if names is None else {}
        for name in names or ():
            found = self.table[name].config if name in self.table else self._unserved.get(name)
            table |= {} if found is None else {name: found}
        return {"dataVersion": self.version.as_json(), "topicConfigTable": table}

    def _changes(self, names: Iterable[str]) -> dict[str, Any]:
        """Return a line of the journal. With a static topic it has the mappings, which make it static."""
        found = self.as_json(names)
        removed = [name for name in names if name not in found["topicConfigTable"]]
        concerns_mappings = bool(removed) or any(name in self.mappings.table for name in names)
        return found | {REMOVED: removed} | (self.mappings.for_slaves() if concerns_mappings else {})

    def save(self) -> None:
        """Schedule writing the file."""
        self._saver.later(FILE, self.as_json)
        self._unsaved_table = self._saver.asked

    def needed_change(self, queues: Iterable[ConsumeQueue]) -> int:
        """Return the last change of tables that is not saved and that messages in these queues need, as `Saver.asked`
        counts; 0: there is none.

        Messages that wait for their delivery name other topics, so they need all changes.
        """
        if not self._saver.has_unsaved:
            return 0
        names = {queue.topic for queue in queues}
        if not names.isdisjoint(HOLDING_TOPICS):
            return self._saver.asked
        changes = [self._unsaved_table, *(self._unsaved[name] for name in names & self._unsaved.keys())]
        if not names.isdisjoint(self.mappings.table):
            changes.append(self.mappings.last_change)
        needed = max(changes)
        return needed if needed > self._saver.saved else 0


def parse_topics(raw: dict[str, Any]) -> list[TopicConfig]:
    """Decode topic configurations from a table in the form of the file and of the replication protocol.

    Raises:
        StoreDamaged: an entry is not a topic configuration.
    """
    try:
        found = [
            convert({**value, "topicName": value.get("topicName") or name}, TopicConfig, name)
            for name, value in (raw.get("topicConfigTable") or {}).items()
            if value is not None
        ]
    except (ProtocolError, AttributeError, TypeError) as error:
        raise StoreDamaged(f"topic table: {error}") from error
    return [_bounded(config) for config in found]


def _bounded(config: TopicConfig) -> TopicConfig:
    """Return a stored topic without attributes and filter types that a request may not contain."""
    size = attributes_bytes(config.attributes)
    if size > ATTRIBUTES_BYTES_MAX:
        log.error(
            "topics: topic=%.255s has %d bytes of attributes, at most %d are allowed: they are ignored",
            config.topic_name,
            size,
            ATTRIBUTES_BYTES_MAX,
        )
        config = msgspec.structs.replace(config, attributes={})
    if filter_type_error(config.topic_filter_type) is not None:
        config = msgspec.structs.replace(config, topic_filter_type=SINGLE_TAG)
    return config


def _check(raw: dict[str, Any]) -> None:
    require(raw, "topicConfigTable")
    parse_topics(raw)


FILE = TableFile("topics.json", _check, loss="topics created since are rebuilt from their queues")


def topics_of_batches(disk: Disk) -> frozenset[str]:
    """Return the stored topics whose queues are queues of batches, before the store is opened."""
    try:
        stored = parse_topics(FILE.load(disk))
    except StoreDamaged:  # reported by `Topics`, which rebuilds them
        return frozenset()
    return frozenset(topic.topic_name for topic in stored if topic.attributes.get(QUEUE_TYPE) == BATCH_QUEUES)


def _batch_remark(name: str) -> str:
    return (
        f"topic[{name}] has {QUEUE_TYPE}={BATCH_QUEUES}: its queues are in batchconsumequeue/, which is not supported; "
        "let RocketMQ serve it, or delete it there"
    )


def _takes_plain(config: TopicConfig, *, checks_type: bool) -> bool:
    """Whether an ordinary send needs no further check of the topic."""
    name = config.topic_name
    return (
        not (checks_type and not takes_any_type(config))
        and 0 < len(name.encode()) <= TOPIC_V1_BYTES_MAX
        and not name.startswith("%")
        and name not in FORBIDDEN_FOR_SENDING
        and topic_name_error(name) is None
        and bool(config.perm & Permission.WRITE)
    )


def bytes_in_table(config: TopicConfig) -> int:
    """Return an upper bound of the bytes that a topic takes in the table as JSON."""
    return 2 * len(config.topic_name) + _ENTRY_BYTES + 2 * attributes_bytes(config.attributes)


def internal_topic(name: str, queue_nums: int) -> TopicConfig:
    """Return the configuration of a topic that this broker creates by itself."""
    return TopicConfig(name, queue_nums, queue_nums, int(Permission.READ_WRITE))


def system_topics(config: BrokerConfig, delay_levels: int) -> list[TopicConfig]:
    """Return the topics that a RocketMQ broker creates at its start."""
    full, inherit = int(Permission.READ_WRITE), int(Permission.READ_WRITE | Permission.INHERIT)
    traces = [internal_topic(config.trace_topic, 1)] if config.trace_topic_enable else []
    return [
        *traces,
        TopicConfig(SELF_TEST_TOPIC, 1, 1, full),
        _template(config),
        TopicConfig(BENCHMARK_TOPIC, BENCHMARK_QUEUES, BENCHMARK_QUEUES, full),
        TopicConfig(config.cluster, 16, 16, inherit if config.cluster_topic else int(Permission.INHERIT)),
        TopicConfig(config.broker_name, 1, 1, inherit if config.broker_topic else int(Permission.INHERIT)),
        TopicConfig(OFFSET_MOVED_TOPIC, 1, 1, full),
        TopicConfig(SCHEDULE_TOPIC, max(1, delay_levels), max(1, delay_levels), full),
        TopicConfig(reply_topic(config.cluster), 1, 1, full),
        TopicConfig(HALF_TOPIC, 1, 1, full),
        TopicConfig(OP_HALF_TOPIC, 1, 1, full),
    ]


def _template(config: BrokerConfig) -> TopicConfig:
    """Return the topic whose queues and permission are copied to topics created by sending."""
    perm = Permission.READ_WRITE | Permission.INHERIT if config.auto_create_topic else Permission.READ_WRITE
    return TopicConfig(AUTO_CREATE_TOPIC, config.default_queue_nums, config.default_queue_nums, int(perm))
