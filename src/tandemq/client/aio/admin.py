"""Administration for asyncio.

async with Admin("127.0.0.1:9876") as admin:
    await admin.create_topic("Orders", queues=8)
    for queue, progress in (await admin.progress("billing")).items(): …
"""

from types import TracebackType
from typing import Any, Self, TypeVar

from tandemq.client.admin import cluster as administration
from tandemq.client.admin import groups, queries
from tandemq.client.admin.cluster import ClusterInfo, QueueStats
from tandemq.client.admin.groups import ClientConnection, ConsumeProgress, GroupConnections, ResetTarget
from tandemq.client.aio.transport import Shell, make_config
from tandemq.client.consumer.offsets.store import (
    ask_member,
    commit_request,
    committed_offset,
    queue_offset,
    time_offset,
)
from tandemq.client.core.context import Kit
from tandemq.client.core.operations import Steps, checked
from tandemq.client.core.routes import TopicRoute
from tandemq.errors import ClosedError
from tandemq.model.codes import RequestCode
from tandemq.model.group import SubscriptionGroupConfig
from tandemq.model.message import MessageQueue, StoredMessage
from tandemq.model.topic import TopicConfig

T = TypeVar("T")


class Admin:
    """Asks and tells name servers and brokers. Use it with `async with`, or call `start` and `close`.

    Every method raises NetworkError when nobody answers, and RemoteError when the answer is no; what else it may raise
    is said at the method. A method that changes something in several places may have done it in some of them then.
    """

    def __init__(self, name_servers: str) -> None:
        """Not connected yet. Args: name_servers: "host:port", several separated by ";"."""
        self._name_servers = name_servers
        self._shell: Shell | None = None

    async def start(self) -> None:
        """Get ready; connections are made when needed.

        Raises:
            ConfigError: an address is none.
        """
        self._shell = Shell(make_config(self._name_servers))

    async def close(self) -> None:
        """Close all connections. Harmless a second time."""
        if self._shell is not None and not self._shell.is_closed:
            await self._shell.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def _kit(self) -> Kit:
        return self._running().node.kit

    def _running(self) -> Shell:
        if self._shell is None:
            raise ClosedError("the administration client is not started", hint="use it with `async with`")
        self._shell.check_open()
        return self._shell

    async def _tell(self, story: Steps[T]) -> T:
        shell = self._running()
        return await shell.done(shell.node.kit.runner.start(story, shell.now))

    # The cluster and its brokers.

    async def cluster_info(self) -> ClusterInfo:
        """All brokers the name server knows."""
        return await self._tell(administration.cluster_info(self._kit))

    async def broker_runtime(self, address: str) -> dict[str, str]:
        """What a broker says of itself: all values are text."""
        return await self._tell(administration.broker_runtime(address))

    async def broker_config(self, address: str) -> dict[str, str]:
        """A broker's settings."""
        return await self._tell(administration.broker_config(address))

    async def update_broker_config(self, address: str, settings: dict[str, str]) -> None:
        """Change settings of a running broker; keys it does not know are ignored."""
        await self._tell(administration.update_broker_config(address, settings))

    async def broker_stats(self, address: str, name: str, key: str) -> dict[str, Any] | None:
        """One of a broker's counters, for instance ("TOPIC_PUT_NUMS", "Orders"); None if it has none of that name."""
        return await self._tell(administration.broker_stats(address, name, key))

    async def ha_status(self, address: str) -> dict[str, Any]:
        """How a broker's replication stands, as it says."""
        return await self._tell(administration.ha_status(address))

    async def set_write_permission(self, broker_name: str, *, may_write: bool) -> int:
        """Let producers use a broker, or keep them from it; returns the number of topics changed."""
        return await self._tell(administration.set_write_permission(self._kit, broker_name, may_write=may_write))

    async def get_value(self, namespace: str, key: str) -> str | None:
        """A value of the name servers' key-value table; None if it is not there."""
        return await self._tell(administration.get_value(self._kit, namespace, key))

    async def put_value(self, namespace: str, key: str, value: str | None) -> None:
        """Set a value in all name servers; None deletes it."""
        await self._tell(administration.put_value(self._kit, namespace, key, value))

    # Topics.

    async def topics(self) -> list[str]:
        """All topics the name server knows, sorted."""
        return await self._tell(administration.topic_names(self._kit))

    async def topic_route(self, topic: str) -> TopicRoute:
        """Where a topic is. Raises NoRoute if nobody knows it."""
        return await self._tell(administration.topic_route(self._kit, topic))

    async def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """How a topic is configured, by broker name. Java brokers older than 5.0 do not tell (code 3)."""
        return await self._tell(administration.topic_config(self._kit, topic))

    async def topic_stats(self, topic: str) -> dict[MessageQueue, QueueStats]:
        """What brokers hold of a topic, by queue; sorted."""
        return await self._tell(administration.topic_stats(self._kit, topic))

    async def topic_groups(self, topic: str) -> list[str]:
        """Groups that read a topic, or did; sorted."""
        return await self._tell(groups.topic_groups(self._kit, topic))

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        cluster: str | None = None,
        broker_name: str | None = None,
        perm: int = 6,
        order: bool = False,
        attributes: dict[str, str] | None = None,
    ) -> list[str]:
        """Create or change a topic on all masters, those of one cluster, or one broker; returns their addresses.

        Raises:
            LocalError: the name cannot be, or no such master is there.
        """
        config = TopicConfig(topic, queues, queues, perm, order=order, attributes=attributes or {})
        return await self._tell(administration.create_topic(self._kit, config, cluster, broker_name))

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic on all masters and in all name servers."""
        await self._tell(administration.delete_topic(self._kit, topic, cluster))

    # Groups and offsets.

    async def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """All consumer groups that masters know, sorted by name."""
        return await self._tell(groups.groups(self._kit))

    async def create_group(self, config: SubscriptionGroupConfig | str, *, cluster: str | None = None) -> list[str]:
        """Create or change a consumer group on all masters, or those of a cluster; returns their addresses.

        Raises:
            LocalError: the name cannot be, or no master is there.
        """
        if isinstance(config, str):
            config = SubscriptionGroupConfig(config)
        return await self._tell(groups.create_group(self._kit, config, cluster))

    async def delete_group(self, group: str, *, cluster: str | None = None, clean: bool = False) -> None:
        """Delete a consumer group; `clean` takes its offsets, retry and dead letter topics along."""
        await self._tell(groups.delete_group(self._kit, group, cluster, clean=clean))

    async def progress(self, group: str, topic: str | None = None) -> dict[MessageQueue, ConsumeProgress]:
        """How far a group is, by queue; sorted."""
        return await self._tell(groups.progress(self._kit, group, topic))

    async def connections(self, group: str, topic: str | None = None) -> GroupConnections | None:
        """Who is in a consumer group; None if nobody is."""
        return await self._tell(groups.connections(self._kit, group, topic))

    async def producer_connections(self, group: str, topic: str) -> list[ClientConnection]:
        """Who is in a producer group, as the brokers of a topic know."""
        return await self._tell(groups.producer_connections(self._kit, group, topic))

    async def running_info(self, group: str, client_id: str) -> dict[str, Any]:
        """What a member of a consumer group says of itself."""
        return await self._tell(groups.running_info(self._kit, group, client_id))

    async def offset(self, group: str, queue: MessageQueue) -> int | None:
        """A group's offset of a queue; None if it has none."""
        await self._know(queue)
        return await self._tell(committed_offset(self._kit, group, queue))

    async def set_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Tell a group's offset of a queue, as its member would; for groups that are offline."""
        await self._know(queue)
        checked(
            await self._tell(ask_member(self._kit, queue.broker_name, lambda: commit_request(group, queue, offset)))
        )

    async def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """The offsets of a queue's first message and behind its last."""
        await self._know(queue)
        first = await self._tell(queue_offset(self._kit, queue, RequestCode.GET_MIN_OFFSET))
        return first, await self._tell(queue_offset(self._kit, queue, RequestCode.GET_MAX_OFFSET))

    async def offset_by_time(self, queue: MessageQueue, wall_ms: int) -> int:
        """The first offset of a queue stored at or after a calendar time."""
        await self._know(queue)
        return await self._tell(time_offset(self._kit, queue, wall_ms))

    async def plan_reset(self, topic: str, target: ResetTarget) -> dict[MessageQueue, int]:
        """The offsets `reset_offsets` would set; nothing is changed.

        Raises:
            LocalError: the target is none.
        """
        return await self._tell(groups.plan_reset(self._kit, topic, target))

    async def reset_offsets(self, group: str, topic: str, target: ResetTarget) -> dict[MessageQueue, int]:
        """Have a group go on elsewhere, backwards or forwards, online or not; returns the new offsets.

        Raises:
            LocalError: the target is none, or cannot be reached while the group is online.
        """
        return await self._tell(groups.reset_offsets(self._kit, group, topic, target))

    async def clone_offsets(self, source: str, destination: str, topic: str) -> None:
        """Give a group the offsets of another, in one topic."""
        await self._tell(groups.clone_offsets(self._kit, source, destination, topic))

    # Messages.

    async def message_by_id(self, message_id: str) -> StoredMessage:
        """The message with an offset message id. Raises ProtocolError if the text is none."""
        return await self._tell(queries.message_by_id(message_id))

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 64,
        begin_ms: int = 0,
        end_ms: int = queries.FAR_FUTURE_MS,
        unique: bool = False,
    ) -> list[StoredMessage]:
        """Messages of a topic with a key (or a unique key), stored within a time, oldest first."""
        return await self._tell(
            queries.messages_by_key(self._kit, topic, key, count_max, begin_ms, end_ms, unique=unique)
        )

    async def message_at(self, queue: MessageQueue, offset: int) -> StoredMessage | None:
        """The message at an offset of a queue; None if there is none."""
        return await self._tell(queries.message_at(self._kit, queue, offset))

    async def _know(self, queue: MessageQueue) -> None:
        if not self._kit.routes.members(queue.broker_name):
            await self.topic_route(queue.topic)
