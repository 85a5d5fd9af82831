"""The topics of this broker: configuration, and what the hot paths need of each at hand.

Source: docs/storage.md, "topics.json"; RocketMQ TopicConfigManager.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from tandemq.broker.saver import Saver
from tandemq.config import BrokerConfig
from tandemq.errors import StoreDamaged
from tandemq.model.topic import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    FORBIDDEN_FOR_SENDING,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    REPLY_TOPIC_SUFFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    Permission,
    TopicConfig,
)
from tandemq.storage.consumequeue import ConsumeQueue
from tandemq.storage.store import Store
from tandemq.storage.tables import DataVersion, load_table

FILE = "topics.json"
BENCHMARK_QUEUES = 1024


class Topic:
    """One topic. `encoded` is its name as a record holds it, length byte first; `queues` are opened on first use."""

    __slots__ = ("config", "encoded", "queues", "takes_plain", "write_queue_nums")

    def __init__(self, config: TopicConfig) -> None:
        """A topic whose queues nobody touched yet."""
        name = config.topic_name.encode()
        self.config = config
        self.write_queue_nums = config.write_queue_nums
        self.encoded = bytes([min(len(name), 255)]) + name
        self.queues: dict[int, ConsumeQueue] = {}
        self.takes_plain = (
            0 < len(name) <= 127
            and name[:1] != b"%"
            and config.topic_name not in FORBIDDEN_FOR_SENDING
            and bool(config.perm & Permission.WRITE)
        )
        """Whether an ordinary send needs no further check of the topic."""


class Topics:
    """All topics, saved to topics.json on every change."""

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
        """Set on every change; cleared by whoever tells the name servers."""
        self.news: dict[str, None] | None = None
        """Names that changed since somebody looked; None: nobody looks."""
        self._load()
        for topic in system_topics(config, len(store.config.delays_ms)):
            if topic.topic_name not in self.table:
                self.table[topic.topic_name] = Topic(topic)

    def _load(self) -> None:
        raw = load_table(self._saver.disk, FILE)
        if raw:
            self.version = DataVersion.from_json(raw.get("dataVersion"))
            for config in parse_topics(raw):
                self.table[config.topic_name] = Topic(config)

    def get(self, name: str) -> Topic | None:
        """The topic, None if there is none."""
        return self.table.get(name)

    def queue(self, topic: Topic, queue_id: int) -> ConsumeQueue:
        """One of a topic's queues."""
        found = topic.queues.get(queue_id)
        if found is None:
            found = self._store.queue(topic.config.topic_name, queue_id)
            topic.queues[queue_id] = found
        return found

    def put(self, config: TopicConfig, wall_ms: int) -> Topic:
        """Create or change a topic."""
        topic = Topic(config)
        self.table[config.topic_name] = topic
        self._note(config.topic_name)
        self.touch(wall_ms)
        return topic

    def _note(self, name: str) -> None:
        if self.news is not None:
            self.news[name] = None

    def remove(self, name: str, wall_ms: int) -> bool:
        """Delete a topic and its queues; False if there is none."""
        if self.table.pop(name, None) is None:
            return False
        self._store.drop_topic(name)
        self._note(name)
        self.touch(wall_ms)
        return True

    def replace(self, configs: list[TopicConfig], version: DataVersion) -> None:
        """Take over another broker's table; topics of our own that it lacks go, their queues stay."""
        kept = {config.topic_name for config in configs}
        self.follow(configs, [name for name in self.table if name not in kept], version)

    def follow(self, configs: list[TopicConfig], removed: list[str], version: DataVersion) -> None:
        """Take over what changed in another broker's table; queues of removed topics stay."""
        for name in removed:
            self.table.pop(name, None)
        for config in configs:
            present = self.table.get(config.topic_name)
            if present is None or present.config != config:
                self.table[config.topic_name] = Topic(config)
        self.version = version
        self.changed = True
        self.save()

    def adopt_config(self, config: BrokerConfig, wall_ms: int) -> None:
        """The settings changed: the topic that new ones are made from gets theirs."""
        before, self._config = self._config, config
        if _template(config) != _template(before):
            self.put(_template(config), wall_ms)

    def create_on_send(self, name: str, default_topic: str, queue_nums: int, wall_ms: int) -> Topic | None:
        """Create a topic the way a send to an unknown one does; None if that is not allowed."""
        template = self.table.get(default_topic)
        if template is None or not template.config.perm & Permission.INHERIT:
            return None
        if template.config.topic_name == AUTO_CREATE_TOPIC and not self._config.auto_create_topic:
            return None
        nums = max(1, min(queue_nums, template.config.write_queue_nums))
        perm = int(template.config.perm & ~Permission.INHERIT)
        return self.put(TopicConfig(name, nums, nums, perm), wall_ms)

    def create_internal(self, name: str, queue_nums: int, wall_ms: int) -> Topic:
        """The topic, created readable and writable if it is not there: retry, dead letter and the like."""
        found = self.table.get(name)
        return found or self.put(TopicConfig(name, queue_nums, queue_nums, int(Permission.READ_WRITE)), wall_ms)

    def touch(self, wall_ms: int) -> None:
        """Something about the topics changed: a new version, saved, and told to the name servers."""
        self.version.next(wall_ms)
        self.changed = True
        self.save()

    def as_json(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """The table as peers and the file have it, or these topics of it."""
        wanted = self.table if names is None else [name for name in names if name in self.table]
        return {
            "dataVersion": self.version.as_json(),
            "topicConfigTable": msgspec.to_builtins({name: self.table[name].config for name in wanted}),
        }

    def save(self) -> None:
        """Have the file written."""
        self._saver.later(FILE, self.as_json)


def parse_topics(raw: dict[str, Any]) -> list[TopicConfig]:
    """Topic configurations from a table as peers and the file have it.

    Raises:
        StoreDamaged: an entry is not a topic configuration.
    """
    try:
        return [
            msgspec.convert(value, TopicConfig, strict=False) for value in (raw.get("topicConfigTable") or {}).values()
        ]
    except (msgspec.ValidationError, AttributeError) as error:
        raise StoreDamaged(f"topic table: {error}") from error


def system_topics(config: BrokerConfig, delay_levels: int) -> list[TopicConfig]:
    """The topics a RocketMQ broker creates at its start."""
    full, inherit = int(Permission.READ_WRITE), int(Permission.READ_WRITE | Permission.INHERIT)
    return [
        TopicConfig(SELF_TEST_TOPIC, 1, 1, full),
        _template(config),
        TopicConfig(BENCHMARK_TOPIC, BENCHMARK_QUEUES, BENCHMARK_QUEUES, full),
        TopicConfig(config.cluster, 16, 16, inherit if config.cluster_topic else int(Permission.INHERIT)),
        TopicConfig(config.broker_name, 1, 1, inherit if config.broker_topic else int(Permission.INHERIT)),
        TopicConfig(OFFSET_MOVED_TOPIC, 1, 1, full),
        TopicConfig(SCHEDULE_TOPIC, max(1, delay_levels), max(1, delay_levels), full),
        TopicConfig(f"{config.cluster}_{REPLY_TOPIC_SUFFIX}", 1, 1, full),
        TopicConfig(HALF_TOPIC, 1, 1, full),
        TopicConfig(OP_HALF_TOPIC, 1, 1, full),
    ]


def _template(config: BrokerConfig) -> TopicConfig:
    """The topic whose queues and permission a topic created by sending gets."""
    perm = Permission.READ_WRITE | Permission.INHERIT if config.auto_create_topic else Permission.READ_WRITE
    return TopicConfig(AUTO_CREATE_TOPIC, config.default_queue_nums, config.default_queue_nums, int(perm))
