"""The administration client for asyncio.

async with Admin("127.0.0.1:9876") as admin:
    await admin.create_topic("Orders", queues=8)
    for queue, progress in (await admin.progress("billing")).items(): …
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from tandemq.client.admin import access, groups, overview, queries, traces
from tandemq.client.admin import cluster as administration
from tandemq.client.admin import quotas as limits
from tandemq.client.admin.cluster import ClusterInfo, QueueStats
from tandemq.client.admin.groups import ClientConnection, ConsumeProgress, GroupConnections, ResetTarget
from tandemq.client.aio.lifecycle import AsyncClient
from tandemq.client.consumer.offsets.lookup import (
    QueueBounds,
    ask_member,
    committed_offset,
    queue_offset,
    time_offset,
)
from tandemq.client.core.operations import checked
from tandemq.client.core.requests import update_offset_request
from tandemq.client.core.routes import Routes, TopicRoute
from tandemq.config.tls import ClientTls
from tandemq.errors import TandemError
from tandemq.model.access import AclUser, Credentials, Policy
from tandemq.model.codes import RequestCode
from tandemq.model.group import SubscriptionGroupConfig
from tandemq.model.message import MessageQueue, StoredMessage
from tandemq.model.quota import Quota
from tandemq.model.topic import TRACE_TOPIC, TopicConfig

T = TypeVar("T")
COMMAND_MS = 20_000
"""Timeout of a change of the master."""
FORCE_MS = 120_000
"""Timeout of a forced takeover: the broker gives up after 15 s, with the longest session and most checks 101 s."""


class Admin(AsyncClient[Routes]):
    """Administers clusters, topics, groups and offsets. Use it with `async with`, or call `start` and `close`.

    Every method raises NetworkError when no response comes, RemoteError when the server refuses, and ProtocolError when
    the response is invalid; other errors are listed at the method. When a method that changes several brokers or name
    servers fails, some of them may have been changed.

    Offsets are positions in a queue, the first message of which has offset 0. Times are milliseconds since 1970.
    """

    _kind = "administration client"

    def __init__(
        self, name_servers: str, *, tls: ClientTls | bool = False, credentials: Credentials | None = None
    ) -> None:
        """Create a client that is not connected yet.

        Args:
            name_servers: "host:port", several separated by ";".
            tls: TLS on all connections; True: servers are verified with the authorities of the system.
            credentials: user that signs all requests; by default that of the environment, if there is one.
        """
        super().__init__(name_servers, "", tls, credentials)

    async def start(self) -> None:
        """Start the client; it connects on demand.

        Raises:
            ConfigError: an address is not "host:port".
            LocalError: it is started already.
        """
        self._core = self._open().node.routes

    async def close(self) -> None:
        """Close all connections; has no effect a second time."""
        await self._close(after_error=False)

    @property
    def _routes(self) -> Routes:
        _, routes = self._running()
        return routes

    # The cluster and its brokers.

    async def cluster_info(self) -> ClusterInfo:
        """Return all brokers that are registered at the name server."""
        return await self._run(administration.cluster_info(self._routes))

    async def broker_runtime(self, address: str) -> dict[str, str]:
        """Return the runtime information of a broker by its names (GET_BROKER_RUNTIME_INFO); all values are text."""
        return await self._run(administration.broker_runtime(address))

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return the settings of a broker."""
        return await self._run(administration.broker_config(address))

    async def update_broker_config(self, address: str, settings: dict[str, str]) -> None:
        """Change settings of a running broker; unknown keys are ignored."""
        await self._run(administration.update_broker_config(address, settings))

    async def broker_stats(self, address: str, name: str, key: str) -> dict[str, Any] | None:
        """Return a counter of a broker, for instance ("TOPIC_PUT_NUMS", "Orders"): sums and rates of the last minute,
        hour and day; None if there is no such counter."""
        return await self._run(administration.broker_stats(address, name, key))

    async def ha_status(self, address: str) -> dict[str, Any]:
        """Return the replication status of a broker, as it reports it (GET_BROKER_HA_STATUS)."""
        return await self._run(administration.ha_status(address))

    async def ask_brokers(
        self, codes: Mapping[str, RequestCode], *, timeout_ms: int = 0
    ) -> dict[str, dict[str, Any] | TandemError]:
        """Send a request without fields to each broker at once.

        Returns, by address, the JSON object in the response, or the error if there is none.

        Args:
            codes: request codes by address.
            timeout_ms: 0 for the client's default.
        """
        return await self._run(overview.ask_brokers(codes, timeout_ms))

    async def switch_master(self, address: str, target: int, *, timeout_ms: int = COMMAND_MS) -> str:
        """Make another member of an elect group the master; returns what was done.

        Args:
            address: of the present master.
            target: broker id of the next one.
        """
        return await self._run(overview.order(address, RequestCode.TANDEM_SWITCH, {"target": str(target)}, timeout_ms))

    async def force_master(self, address: str, *, preview: bool, timeout_ms: int = 0) -> str:
        """Force the member at an address to serve, although messages may be lost; returns what was done, or with
        `preview` what may be lost or delivered again. `timeout_ms`: 0 for 20 s, without `preview` 2 minutes."""
        timeout_ms = timeout_ms or (COMMAND_MS if preview else FORCE_MS)
        fields = {"preview": "true"} if preview else {}
        return await self._run(overview.order(address, RequestCode.TANDEM_FORCE_MASTER, fields, timeout_ms))

    async def set_write_permission(self, broker_name: str, *, may_write: bool) -> int:
        """Grant or revoke the write permission of a broker for all its topics; returns the number of topics."""
        return await self._run(administration.set_write_permission(self._routes, broker_name, may_write=may_write))

    async def get_value(self, namespace: str, key: str) -> str | None:
        """Return a value of the name servers' key-value table; None if there is none."""
        return await self._run(administration.get_value(self._routes, namespace, key))

    async def put_value(self, namespace: str, key: str, value: str | None) -> None:
        """Set a value in all name servers; None deletes it."""
        await self._run(administration.put_value(self._routes, namespace, key, value))

    # Topics.

    async def topics(self) -> list[str]:
        """Return all topics that are registered at the name server, sorted."""
        return await self._run(administration.topic_names(self._routes))

    async def topic_route(self, topic: str) -> TopicRoute:
        """Return the route of a topic.

        Raises:
            NoRoute: no name server knows the topic.
        """
        return await self._run(administration.topic_route(self._routes, topic))

    async def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """Return the configuration of a topic by broker name.

        Raises:
            NoRoute: no name server knows the topic.
            RemoteError: with code 3, a Java broker older than 5.0.
        """
        return await self._run(administration.topic_config(self._routes, topic))

    async def topic_configs(self) -> dict[str, dict[str, TopicConfig]]:
        """Return the configurations of all topics, by topic and broker name, with one request per broker group."""
        return await self._run(overview.topic_configs(self._routes))

    async def topic_stats(self, topic: str) -> dict[MessageQueue, QueueStats]:
        """Return the offsets of a topic's queues at their brokers, sorted by queue.

        Raises:
            NoRoute: no name server knows the topic.
        """
        return await self._run(administration.topic_stats(self._routes, topic))

    async def message_counts(self, topics: Mapping[str, Collection[str]]) -> dict[str, int]:
        """Return the number of stored messages of topics, all asked for at once.

        Args:
            topics: names of brokers by topic. A topic of which one does not report is left out.
        """
        return await self._run(overview.message_counts(self._routes, topics))

    async def topic_groups(self, topic: str) -> list[str]:
        """Return the groups that consume a topic or have consumed it, sorted.

        Raises:
            NoRoute: no name server knows the topic.
        """
        return await self._run(groups.topic_groups(self._routes, topic))

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
        """Create or change a topic on all masters, those of one cluster, or one broker.

        Args:
            queues: number of read and write queues per broker.
            perm: bits: 4 read, 2 write, 1 inherit.
            order: whether the order of queues over all brokers is fixed.
            attributes: RocketMQ 5 topic attributes, by name.

        Returns:
            the addresses of the masters.

        Raises:
            LocalError: the name is invalid, or there is no such master.
        """
        config = TopicConfig(topic, queues, queues, perm, order=order, attributes=attributes or {})
        return await self._run(administration.create_topic(self._routes, config, cluster, broker_name))

    async def put_topic(self, config: TopicConfig, broker_name: str) -> None:
        """Create or change a topic on the master of one broker.

        Raises:
            LocalError: the name is invalid, or there is no such master.
            RemoteError: the topic is static.
        """
        await self._run(administration.create_topic(self._routes, config, None, broker_name))

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic on all masters, or those of one cluster, and in all name servers."""
        await self._run(administration.delete_topic(self._routes, topic, cluster))

    # Access control.

    async def create_user(self, name: str, key: str, *, is_super: bool = False) -> None:
        """Create a user on all masters. `key`: with which it signs."""
        kind = "Super" if is_super else "Normal"
        await self._run(access.put_user(self._routes, name, is_new=True, password=key, userType=kind))

    async def update_user(self, name: str, *, key: str | None = None, is_enabled: bool | None = None) -> None:
        """Change the key of a user, or whether its requests are accepted, on all masters."""
        changes = {} if key is None else {"password": key}
        if is_enabled is not None:
            changes["userStatus"] = "enable" if is_enabled else "disable"
        await self._run(access.put_user(self._routes, name, is_new=False, **changes))

    async def delete_user(self, name: str) -> None:
        """Delete a user and its policies on all masters."""
        await self._run(access.delete_user(self._routes, name))

    async def users(self) -> dict[str, dict[str, str]]:
        """Return `type` and `status` of all users, by name."""
        return await self._run(access.users(self._routes))

    async def put_policy(
        self, user: str, resource: str, actions: Iterable[str], *, decision: str = "Allow", sources: Iterable[str] = ()
    ) -> None:
        """Decide what a user may do with a resource, instead of what was decided for it before, on all masters.

        Args:
            resource: for instance "Topic:Orders" or "Group:billing*".
            actions: for instance "Pub", "Sub", "All".
            decision: "Allow" or "Deny".
            sources: IP addresses and ranges; none: from everywhere.
        """
        await self._run(access.put_entry(self._routes, user, resource, actions, decision, sources))

    async def adopt_user(self, user: AclUser, policies: Iterable[Policy]) -> bool:
        """Create a user with its policies on all masters that do not have it; returns whether there were any."""
        return await self._run(access.adopt_user(self._routes, user, policies)) > 0

    async def delete_policy(self, user: str, resource: str = "") -> None:
        """Delete what was decided for a user and a resource, "" for all, on all masters."""
        await self._run(access.delete_entry(self._routes, user, resource))

    async def set_quotas(self, quotas: Sequence[Quota]) -> None:
        """Limit users, topics and groups on all masters; a limit without values is deleted."""
        await self._run(limits.set_quotas(self._routes, quotas))

    async def quotas(self) -> list[tuple[Quota, limits.Exceeded]]:
        """Return the limits of users, topics and groups, and how often each was exceeded."""
        return await self._run(limits.quotas(self._routes))

    async def policies(self) -> list[dict[str, Any]]:
        """Return the entries of all policies: user, resource, decision, actions, sourceIps."""
        return await self._run(access.policies(self._routes))

    # Groups and offsets.

    async def groups(self, broker_name: str | None = None) -> dict[str, SubscriptionGroupConfig]:
        """Return the consumer groups configured on all masters, or on that of one broker, by name, sorted."""
        return await self._run(groups.groups(self._routes, broker_name))

    async def create_group(
        self, config: SubscriptionGroupConfig | str, *, cluster: str | None = None, broker_name: str | None = None
    ) -> list[str]:
        """Create or change a consumer group on all masters, those of one cluster, or one broker; returns their
        addresses.

        Args:
            config: the configuration, or the name of a group with default settings.

        Raises:
            LocalError: the name is invalid, or there is no master.
        """
        if isinstance(config, str):
            config = SubscriptionGroupConfig(config)
        return await self._run(groups.create_group(self._routes, config, cluster, broker_name))

    async def delete_group(self, group: str, *, cluster: str | None = None, clean: bool = False) -> None:
        """Delete a consumer group; with `clean` also its offsets, retry topic and dead letter topic."""
        await self._run(groups.delete_group(self._routes, group, cluster, clean=clean))

    async def progress(self, group: str, topic: str | None = None) -> dict[MessageQueue, ConsumeProgress]:
        """Return the progress of a group, sorted by queue.

        Args:
            topic: only this topic; by default all topics of the group.
        """
        return await self._run(groups.progress(self._routes, group, topic))

    async def all_progress(self) -> dict[str, dict[MessageQueue, ConsumeProgress]]:
        """Return the progress of all groups, by group, with one request per broker group."""
        return await self._run(overview.all_progress(self._routes))

    async def group_progress(self, group: str) -> dict[MessageQueue, ConsumeProgress]:
        """Return the progress of a group as `all_progress` has it, with one request per broker group."""
        return await self._run(overview.group_progress(self._routes, group))

    async def connections(self, group: str, topic: str | None = None) -> GroupConnections | None:
        """Return the members of a consumer group; None if it has none."""
        return await self._run(groups.connections(self._routes, group, topic))

    async def producer_connections(self, group: str, topic: str) -> list[ClientConnection]:
        """Return the members of a producer group, as reported by the brokers of a topic; sorted by client id."""
        return await self._run(groups.producer_connections(self._routes, group, topic))

    async def running_info(self, group: str, client_id: str) -> dict[str, Any]:
        """Return the running information of a member of a consumer group (GET_CONSUMER_RUNNING_INFO).

        Raises:
            LocalError: no broker knows the group.
        """
        return await self._run(groups.running_info(self._routes, group, client_id))

    async def offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return a group's committed offset of a queue; None if there is none."""
        await self._fetch_route(queue)
        shell, routes = self._running()
        return await self._run(committed_offset(routes, shell.node.availability, group, queue))

    async def set_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commit a group's offset of a queue; for groups without online members. See `reset_offsets` for the others."""
        await self._fetch_route(queue)
        make = partial(update_offset_request, group, queue, offset)
        checked(await self._run(ask_member(self._routes, queue.broker_name, make)))

    async def bounds(self, queue: MessageQueue) -> QueueBounds:
        """Return the offset of a queue's first message, and the offset after its last."""
        await self._fetch_route(queue)
        first = await self._run(queue_offset(self._routes, queue, RequestCode.GET_MIN_OFFSET))
        end = await self._run(queue_offset(self._routes, queue, RequestCode.GET_MAX_OFFSET))
        return QueueBounds(first, end)

    async def offset_by_time(self, queue: MessageQueue, wall_ms: int) -> int:
        """Return the offset of a queue's first message stored at or after a time, milliseconds since 1970."""
        await self._fetch_route(queue)
        return await self._run(time_offset(self._routes, queue, wall_ms))

    async def plan_reset(self, topic: str, target: ResetTarget) -> dict[MessageQueue, int]:
        """Return the offsets that `reset_offsets` would set; nothing is changed.

        Raises:
            LocalError: the target is invalid.
        """
        return await self._run(groups.plan_reset(self._routes, topic, target))

    async def reset_offsets(self, group: str, topic: str, target: ResetTarget) -> dict[MessageQueue, int]:
        """Move a group to other offsets, backwards or forwards, online or not; returns the new offsets.

        Raises:
            LocalError: the target is invalid, or the brokers cannot move an online group to it.
        """
        return await self._run(groups.reset_offsets(self._routes, group, topic, target))

    async def clone_offsets(self, source: str, destination: str, topic: str) -> None:
        """Copy the offsets of one group to another, in one topic."""
        await self._run(groups.clone_offsets(self._routes, source, destination, topic))

    # Messages.

    async def message_by_id(self, message_id: str) -> StoredMessage:
        """Return the message with an offset message id.

        Raises:
            ProtocolError: the text is not an id, or the message is damaged.
        """
        return await self._run(queries.message_by_id(message_id))

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
        """Return the messages of a topic with a key, oldest first.

        Args:
            count_max: maximum number of messages.
            begin_ms: stored at or after this time.
            end_ms: stored at or before this time.
            unique: whether `key` is a unique key.
        """
        return await self._run(
            queries.messages_by_key(self._routes, topic, key, count_max, begin_ms, end_ms, unique=unique)
        )

    async def located_messages(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 64,
        begin_ms: int = 0,
        end_ms: int = queries.FAR_FUTURE_MS,
        unique: bool = False,
    ) -> list[queries.LocatedMessage]:
        """Return the messages of a topic with a key and their queues. Arguments as `messages_by_key`."""
        return await self._run(
            queries.located_messages(self._routes, topic, key, count_max, begin_ms, end_ms, unique=unique)
        )

    async def message_traces(
        self, key: str, *, topic: str = TRACE_TOPIC, begin_ms: int = 0, end_ms: int | None = None
    ) -> traces.FoundTraces:
        """Return what clients reported about the messages with a unique key, an offset message id, or a key.

        Args:
            topic: the trace topic.
            begin_ms: reported at or after this time.
            end_ms: reported at or before this time.

        Raises:
            NoRoute: the trace topic does not exist.
        """
        last_ms = queries.FAR_FUTURE_MS if end_ms is None else end_ms
        return await self._run(traces.message_traces(self._routes, key, topic, begin_ms, last_ms))

    async def message_at(self, queue: MessageQueue, offset: int) -> StoredMessage | None:
        """Return the message at an offset of a queue; None if there is none."""
        return await self._run(queries.message_at(self._routes, queue, offset))

    async def messages_from(self, queue: MessageQueue, offset: int, count_max: int = 32) -> list[StoredMessage]:
        """Return messages of a queue from an offset on: at most `count_max`, perhaps fewer than there are."""
        return await self._run(queries.messages_from(self._routes, queue, offset, count_max))

    async def _fetch_route(self, queue: MessageQueue) -> None:
        if not self._routes.members(queue.broker_name):
            await self.topic_route(queue.topic)
