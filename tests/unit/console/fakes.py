"""A cluster in memory, in place of the administration client and the producer."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tandemq.client.admin.cluster import ClusterInfo, QueueStats
from tandemq.client.admin.groups import ConsumeProgress, GroupConnections, ResetTarget
from tandemq.client.admin.queries import LocatedMessage
from tandemq.client.admin.quotas import Exceeded
from tandemq.client.admin.traces import FoundTraces, MessageTrace
from tandemq.client.consumer.offsets.lookup import QueueBounds
from tandemq.client.core.routes import BrokerGroup, QueueData, TopicRoute
from tandemq.errors import NoRoute, NotConnected, RemoteError, TandemError
from tandemq.model.codes import RequestCode
from tandemq.model.group import SubscriptionGroupConfig
from tandemq.model.message import (
    UNIQ_KEY,
    Message,
    MessageQueue,
    SendResult,
    SendStatus,
    StoredMessage,
)
from tandemq.model.quota import Quota
from tandemq.model.topic import TRACE_TOPIC, TopicConfig

CLUSTER = "DefaultCluster"
MASTER, SLAVE = "10.0.0.1:10911", "10.0.0.2:10911"


def stored(topic: str, offset: int, body: bytes = b"body", **fields: Any) -> StoredMessage:
    """Return a message of queue 0."""
    values: dict[str, Any] = {
        "topic": topic,
        "queue_id": 0,
        "queue_offset": offset,
        "log_offset": offset * 100,
        "body": body,
        "properties": {UNIQ_KEY: f"UK{offset}", "KEYS": f"k{offset}", "TAGS": "paid"},
        "flag": 0,
        "sys_flag": 0,
        "born_ms": 1_700_000_000_000,
        "born_host": "10.0.0.9:5000",
        "store_ms": 1_700_000_000_000 + offset,
        "store_host": MASTER,
        "reconsume_times": 0,
        "prepared_offset": 0,
        "size": 100,
        "offset_message_id": "0A000001" + "00002A9F" + f"{offset * 100:016X}",
    }
    return StoredMessage(**{**values, **fields})


def failover(broker_id: int, *, master: int = 0, in_sync: tuple[int, ...] = (0, 1), **fields: Any) -> dict[str, Any]:
    """Return the failover status of a member of broker-a."""
    is_master = broker_id == master
    members = [
        {
            "brokerId": each,
            "role": "master" if each == 0 else "slave",
            "permission": "FULL",
            "weight": 100,
            "priority": 0,
            "address": (MASTER, SLAVE)[each],
            "lagBytes": 512 if is_master and each != master else None,
            "lagMs": 1_500 if is_master and each != master else None,
        }
        for each in (0, 1)
    ]
    status = {
        "brokerName": "broker-a",
        "brokerId": broker_id,
        "mode": "elect",
        "stage": "serving" if is_master else "slave",
        "epoch": 3,
        "master": master,
        "reader": master,
        "groupMode": "normal",
        "inSync": list(in_sync),
        "mayRead": is_master,
        "mayWrite": is_master,
        "why": "elected",
        "trouble": "",
        "isMaster": is_master,
        "timeline": [{"ms": 1_700_000_000_000, "epoch": 3, "text": "elected"}],
        "members": members,
    }
    return {**status, **fields}


@dataclass
class FakeAdmin:
    """The administration client of a cluster with the group broker-a."""

    answers: dict[str, dict[str, Any] | TandemError] = field(default_factory=dict)
    messages: list[StoredMessage] = field(default_factory=list)
    configs: dict[str, dict[str, TopicConfig]] = field(default_factory=dict)
    groups_progress: dict[str, dict[MessageQueue, ConsumeProgress]] = field(default_factory=dict)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    refusal: TandemError | None = None
    retries: int = 16
    traces: list[MessageTrace] = field(default_factory=list)
    unreadable: int = 0
    limits: dict[tuple[str, str], Quota] = field(default_factory=dict)
    exceeded: dict[tuple[str, str], Exceeded] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.answers = self.answers or {MASTER: failover(0), SLAVE: failover(1)}
        self.configs = self.configs or {"Orders": {"broker-a": TopicConfig("Orders", 1, 1)}}

    def _change(self, *call: Any) -> None:
        self.calls.append(call)
        if self.refusal is not None:
            raise self.refusal

    async def cluster_info(self) -> ClusterInfo:
        group = BrokerGroup(CLUSTER, "broker-a", {0: MASTER, 1: SLAVE})
        return ClusterInfo({"broker-a": group}, {CLUSTER: ["broker-a"]})

    async def ask_brokers(
        self, codes: Mapping[str, RequestCode], *, timeout_ms: int = 0
    ) -> dict[str, dict[str, Any] | TandemError]:
        found: dict[str, dict[str, Any] | TandemError] = {}
        for address, code in codes.items():
            self.calls.append((code, address))
            answer = self.answers.get(address, NotConnected("refused"))
            if code is RequestCode.GET_BROKER_RUNTIME_INFO and not isinstance(answer, TandemError):
                answer = {"table": {"putTps": "12.5 1 1", "commitLogMaxOffset": "4096", "commitLogDiskRatio": "0.5"}}
            found[address] = answer
        return found

    async def topic_configs(self) -> dict[str, dict[str, TopicConfig]]:
        self.calls.append(("topic_configs",))
        return self.configs

    async def all_progress(self) -> dict[str, dict[MessageQueue, ConsumeProgress]]:
        self.calls.append(("all_progress",))
        return self.groups_progress

    async def group_progress(self, group: str) -> dict[MessageQueue, ConsumeProgress]:
        self.calls.append(("group_progress", group))
        return self.groups_progress.get(group, {})

    async def message_counts(self, topics: Mapping[str, Collection[str]]) -> dict[str, int]:
        self.calls.append(("message_counts", *topics))
        return {topic: sum(one.topic == topic for one in self.messages) for topic in topics}

    async def quotas(self) -> list[tuple[Quota, Exceeded]]:
        if self.refusal is not None:
            raise self.refusal
        return [(quota, self.exceeded.get(key, Exceeded(*key))) for key, quota in sorted(self.limits.items())]

    async def set_quotas(self, quotas: Sequence[Quota]) -> None:
        self._change("set_quotas", *quotas)
        for quota in quotas:
            self.limits.pop(quota.key, None)
            if not quota.is_unlimited:
                self.limits[quota.key] = quota

    async def topic_route(self, topic: str) -> TopicRoute:
        configs = self.configs.get(topic)
        if configs is None:
            raise NoRoute(f"no name server knows {topic}")
        queues = tuple(QueueData(name, one.read_queue_nums, one.write_queue_nums, 6) for name, one in configs.items())
        return TopicRoute(topic, {"broker-a": BrokerGroup(CLUSTER, "broker-a", {0: MASTER, 1: SLAVE})}, queues)

    async def topic_stats(self, topic: str) -> dict[MessageQueue, QueueStats]:
        await self.topic_route(topic)
        end = sum(one.topic == topic for one in self.messages)
        return {MessageQueue(topic, "broker-a", 0): QueueStats(0, end, 1_700_000_000_000)}

    async def topic_groups(self, topic: str) -> list[str]:
        return [name for name, queues in self.groups_progress.items() if any(q.topic == topic for q in queues)]

    async def located_messages(self, topic: str, key: str, **options: Any) -> list[LocatedMessage]:
        await self.topic_route(topic)
        unique = options.get("unique", False)
        return [
            LocatedMessage(MessageQueue(topic, "broker-a", 0), one)
            for one in self.messages
            if one.topic == topic and (one.unique_key == key if unique else key in one.keys)
        ]

    async def message_by_id(self, message_id: str) -> StoredMessage:
        self.calls.append(("message_by_id", message_id))
        return next(one for one in self.messages if one.offset_message_id == message_id)

    async def message_traces(self, key: str) -> FoundTraces:
        await self.topic_route(TRACE_TOPIC)
        self.calls.append(("message_traces", key))
        return FoundTraces([one for one in self.traces if one.message_id == key], len(self.traces) > 1, self.unreadable)

    async def messages_from(self, queue: MessageQueue, offset: int, count_max: int = 32) -> list[StoredMessage]:
        found = [one for one in self.messages if one.topic == queue.topic and one.queue_offset >= offset]
        return found[:count_max] if queue.queue_id == 0 else []

    async def message_at(self, queue: MessageQueue, offset: int) -> StoredMessage | None:
        return next((one for one in await self.messages_from(queue, offset) if one.queue_offset == offset), None)

    async def bounds(self, queue: MessageQueue) -> QueueBounds:
        return QueueBounds(0, sum(one.topic == queue.topic for one in self.messages))

    async def offset_by_time(self, queue: MessageQueue, wall_ms: int) -> int:
        return sum(one.topic == queue.topic and one.store_ms < wall_ms for one in self.messages)

    async def create_topic(self, topic: str, **options: Any) -> list[str]:
        self._change("create_topic", topic, options)
        self.configs[topic] = {"broker-a": TopicConfig(topic, options["queues"], options["queues"], options["perm"])}
        return [MASTER]

    async def delete_topic(self, topic: str, **_: Any) -> None:
        self._change("delete_topic", topic)
        self.configs.pop(topic, None)

    async def groups(self) -> dict[str, SubscriptionGroupConfig]:
        return {name: SubscriptionGroupConfig(name, retry_max_times=self.retries) for name in self.groups_progress}

    async def create_group(self, config: SubscriptionGroupConfig, **_: Any) -> list[str]:
        self._change("create_group", config.group_name)
        self.groups_progress.setdefault(config.group_name, {})
        return [MASTER]

    async def delete_group(self, group: str, *, clean: bool = False, **_: Any) -> None:
        self._change("delete_group", group, clean)
        self.groups_progress.pop(group, None)

    async def connections(self, group: str, topic: str | None = None) -> GroupConnections | None:
        return None

    async def plan_reset(self, topic: str, target: ResetTarget) -> dict[MessageQueue, int]:
        self.calls.append(("plan_reset", topic, target))
        return {MessageQueue(topic, "broker-a", 0): target.offset or 0}

    async def reset_offsets(self, group: str, topic: str, target: ResetTarget) -> dict[MessageQueue, int]:
        self._change("reset_offsets", group, topic, target)
        return await self.plan_reset(topic, target)

    async def switch_master(self, address: str, target: int, **_: Any) -> str:
        self._change("switch_master", address, target)
        self.answers = {MASTER: failover(0, master=target, epoch=4), SLAVE: failover(1, master=target, epoch=4)}
        return f"broker {target} is the master"

    async def force_master(self, address: str, *, preview: bool, **_: Any) -> str:
        if preview:
            return "512 bytes may be lost"
        self._change("force_master", address)
        self.answers = {MASTER: failover(0, master=1, epoch=4), SLAVE: failover(1, master=1, epoch=4)}
        return "it serves"


@dataclass
class FakeProducer:
    """A producer whose messages are kept."""

    sent: list[Message] = field(default_factory=list)
    failing_topic: str = ""

    async def send(self, message: Message) -> SendResult:
        if message.topic == self.failing_topic:
            raise RemoteError("the broker refuses")
        self.sent.append(message)
        queue = MessageQueue(message.topic, "broker-a", 0)
        return SendResult(SendStatus.SEND_OK, f"NEW{len(self.sent)}", "ID", queue, 77)

    async def close(self) -> None:
        return
