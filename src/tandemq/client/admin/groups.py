"""Administration of consumer groups: configuration, members, progress, and resets of offsets.

An online group is reset through its brokers (222), which notify its members; an offline group by commits of the new
offsets (15). To reset one queue, or to an offset instead of a time, the group must be offline, or its brokers must
support more than 222 of version 4.9.

Source: docs/reference/requests.md, "administration" and "offsets".
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from warnings import warn

import msgspec

from tandemq.client.admin.cluster import cluster_info, each_name_server, numbers, queue_table, topic_route
from tandemq.client.consumer.offsets.lookup import ask_member, queue_offset, time_offset
from tandemq.client.core.operations import Steps, ask, ask_any_code, checked, json_object, refusal, request
from tandemq.client.core.requests import update_offset_request
from tandemq.client.core.routes import MASTER_ID, Routes
from tandemq.codec.remoting.bodies import convert
from tandemq.errors import LocalError, NoRoute, RemoteError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.group import SubscriptionGroupConfig
from tandemq.model.message import MessageQueue
from tandemq.model.topic import dead_letter_topic, group_name_error, retry_topic

VERSION_5 = 413
MOVE_TIMEOUT_MS = 10_000
_TANDEMQ_LANGUAGE = "PYTHON"
_RENAMED = {"Progress": "ConsumeProgress", "Connection": "ClientConnection", "Target": "ResetTarget"}


def __getattr__(name: str) -> Any:
    """Return a class by its name of release 0.1, which is deprecated."""
    renamed = _RENAMED.get(name)
    if renamed is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn(f"{__name__}.{name} is called {renamed}", DeprecationWarning, stacklevel=2)
    return globals()[renamed]


@dataclass(frozen=True, slots=True)
class ConsumeProgress:
    """Progress of a group in a queue.

    `broker_offset`: the end of the queue; `consumer_offset`: the committed offset; `last_ms`: when the last consumed
    message was stored, milliseconds since 1970.
    """

    broker_offset: int
    consumer_offset: int
    last_ms: int

    @property
    def lag(self) -> int:
        """Number of messages that are not consumed."""
        return max(0, self.broker_offset - self.consumer_offset)


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """One member of a producer or consumer group, and its connection. `version`: of the protocol it speaks."""

    client_id: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class GroupConnections:
    """Members of a consumer group, and their subscriptions: expressions by topic."""

    consume_type: str
    message_model: str
    consume_from: str
    connections: list[ClientConnection] = field(default_factory=list)
    subscriptions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """Target of an offset reset: `time_ms`, since 1970, or `offset`; of one `queue`, or of all queues of the topic."""

    time_ms: int | None = None
    offset: int | None = None
    queue: MessageQueue | None = None


def create_group(
    routes: Routes, config: SubscriptionGroupConfig, cluster: str | None, broker_name: str | None
) -> Steps[list[str]]:
    """Create or change a consumer group on all masters of a cluster, or on one broker; returns their addresses.

    Raises:
        LocalError: the name is invalid, or there is no master.
        NetworkError, RemoteError: a master failed; others may have been changed.
    """
    fault = group_name_error(config.group_name)
    if fault is not None:
        raise LocalError(fault)
    info = yield from cluster_info(routes)
    addresses = info.masters(cluster, broker_name)
    body = msgspec.json.encode(config)
    for address in addresses:
        yield from ask(address, request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body))
    return addresses


def delete_group(routes: Routes, group: str, cluster: str | None, *, clean: bool) -> Steps[None]:
    """Delete a consumer group on all masters; with `clean` also its offsets, retry topic and dead letter topic.

    Raises:
        NetworkError, RemoteError: a server failed; others may have been changed.
    """
    info = yield from cluster_info(routes)
    for address in info.masters(cluster):
        yield from ask(
            address,
            request(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName=group, removeOffset=clean, cleanOffset=clean),
        )
        for topic in (retry_topic(group), dead_letter_topic(group)) if clean else ():
            yield from ask(address, request(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic))
    for topic in (retry_topic(group), dead_letter_topic(group)) if clean else ():
        yield from each_name_server(routes, request(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic=topic))


def groups(routes: Routes, broker_name: str | None = None) -> Steps[dict[str, SubscriptionGroupConfig]]:
    """Return the consumer groups configured on all masters, or on that of one broker, by name, sorted.

    Raises:
        NetworkError, RemoteError: a master does not report them.
    """
    info = yield from cluster_info(routes)
    found: dict[str, SubscriptionGroupConfig] = {}
    for address in info.masters(None, broker_name):
        answer = yield from ask(address, request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        for name, item in (json_object(answer).get("subscriptionGroupTable") or {}).items():
            found.setdefault(name, convert(item, SubscriptionGroupConfig, f"group {name}"))
    return dict(sorted(found.items()))


def group_brokers(routes: Routes, group: str, topic: str | None) -> Steps[list[str]]:
    """Return the names of the brokers that know a group: those of its retry topic, or of a topic that it consumes.

    Raises:
        NoRoute, NetworkError: the route cannot be fetched.
    """
    route = yield from topic_route(routes, topic if topic is not None else retry_topic(group))
    return list(route.brokers)


def progress(routes: Routes, group: str, topic: str | None) -> Steps[dict[MessageQueue, ConsumeProgress]]:
    """Return the progress of a group, sorted by queue.

    Raises:
        NoRoute, NetworkError, RemoteError: a broker does not report it.
    """
    found: dict[MessageQueue, ConsumeProgress] = {}
    question = partial(request, RequestCode.GET_CONSUME_STATS, consumerGroup=group, topic=topic)
    for answer in (yield from _ask_brokers(routes, group, topic, question)):
        for queue, item in queue_table(json_object(checked(answer)), "offsetTable").items():
            found[queue] = ConsumeProgress(*numbers(item, "brokerOffset", "consumerOffset", "lastTimestamp"))
    return dict(sorted(found.items()))


def _ask_brokers(routes: Routes, group: str, topic: str | None, make: Callable[[], Command]) -> Steps[list[Command]]:
    """Return the response of each broker group that knows a consumer group; of all broker groups if it has no retry
    topic, because no member has joined it yet."""
    answers: list[Command] = []
    try:
        names = yield from group_brokers(routes, group, topic)
    except NoRoute:
        if topic is not None:
            raise
        for members in (yield from cluster_info(routes)).brokers.values():
            answer = yield from ask_any_code(members.members[min(members.members)], make())
            answers.append(answer)
        return answers
    for name in names:
        answer = yield from ask_member(routes, name, make)
        answers.append(answer)
    return answers


def connections(routes: Routes, group: str, topic: str | None) -> Steps[GroupConnections | None]:
    """Return the members of a consumer group; None if it has none.

    Raises:
        NoRoute, NetworkError, RemoteError: no broker reports them.
    """
    for name in (yield from group_brokers(routes, group, topic)):
        answer = yield from ask_member(
            routes, name, lambda: request(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
        )
        if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
            continue
        raw = json_object(checked(answer))
        return GroupConnections(
            str(raw.get("consumeType", "")),
            str(raw.get("messageModel", "")),
            str(raw.get("consumeFromWhere", "")),
            [_connection(item) for item in raw.get("connectionSet") or ()],
            {str(read): str(item.get("subString", "*")) for read, item in (raw.get("subscriptionTable") or {}).items()},
        )
    return None


def _connection(item: dict[str, Any]) -> ClientConnection:
    return ClientConnection(
        str(item.get("clientId", "")),
        str(item.get("clientAddr", "")),
        str(item.get("language", "")),
        *numbers(item, "version"),
    )


def producer_connections(routes: Routes, group: str, topic: str) -> Steps[list[ClientConnection]]:
    """Return the members of a producer group, as reported by the brokers of a topic; sorted by client id.

    Raises:
        NoRoute, NetworkError: a broker does not report them.
    """
    found: dict[str, ClientConnection] = {}
    for name in (yield from group_brokers(routes, group, topic)):
        answer = yield from ask_member(
            routes, name, lambda: request(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup=group)
        )
        if answer.code == ResponseCode.SUCCESS:
            for item in json_object(answer).get("connectionSet") or ():
                found[str(item.get("clientId", ""))] = _connection(item)
    return sorted(found.values(), key=lambda connection: connection.client_id)


def running_info(routes: Routes, group: str, client_id: str) -> Steps[dict[str, Any]]:
    """Return the running information of a member of a consumer group, requested through a broker.

    Raises:
        NoRoute, NetworkError, RemoteError: the member does not report it.
        LocalError: no broker knows the group.
    """
    last_error: RemoteError | None = None
    for name in (yield from group_brokers(routes, group, None)):
        answer = yield from ask_member(
            routes,
            name,
            lambda: request(
                RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup=group, clientId=client_id, jstackEnable=False
            ),
        )
        if answer.code == ResponseCode.SUCCESS:
            return json_object(answer)
        last_error = refusal(answer)
    raise last_error or LocalError(f"no broker knows the group {group}")


def topic_groups(routes: Routes, topic: str) -> Steps[list[str]]:
    """Return the groups that consume a topic or have consumed it, sorted.

    Raises:
        NoRoute, NetworkError, RemoteError: a broker does not report them.
    """
    found: set[str] = set()
    for name in (yield from topic_route(routes, topic)).brokers:
        answer = yield from ask_member(
            routes, name, lambda: request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic=topic)
        )
        found.update(str(group) for group in json_object(checked(answer)).get("groupList") or ())
    return sorted(found)


def plan_reset(routes: Routes, topic: str, target: ResetTarget) -> Steps[dict[MessageQueue, int]]:
    """Return the offsets that a reset would set; nothing is changed. They are limited to the bounds of the queues.

    Raises:
        LocalError: neither or both of time and offset are given, or the queue does not belong to the topic.
        NoRoute, NetworkError, RemoteError: the route or an offset cannot be fetched.
    """
    if (target.time_ms is None) == (target.offset is None):
        raise LocalError("give either a time or an offset")
    route = yield from topic_route(routes, topic)
    queues = sorted(route.subscribe_queues())
    if target.queue is not None:
        if target.queue not in queues:
            raise LocalError(f"{topic} has no queue {target.queue.queue_id} on {target.queue.broker_name}")
        queues = [target.queue]
    plan: dict[MessageQueue, int] = {}
    for queue in queues:
        if target.time_ms is not None:
            plan[queue] = yield from time_offset(routes, queue, target.time_ms)
        elif target.offset is not None:
            first = yield from queue_offset(routes, queue, RequestCode.GET_MIN_OFFSET)
            end = yield from queue_offset(routes, queue, RequestCode.GET_MAX_OFFSET)
            plan[queue] = min(max(target.offset, first), end)
    return plan


def reset_offsets(routes: Routes, group: str, topic: str, target: ResetTarget) -> Steps[dict[MessageQueue, int]]:
    """Move a group to other offsets, backwards or forwards, online or not; returns the new offsets.

    Raises:
        LocalError: as `plan_reset`; or the group is online and its brokers can only reset all queues to a time.
        NoRoute, NetworkError, RemoteError: a broker failed; other queues may have been reset.
    """
    plan = yield from plan_reset(routes, topic, target)
    for name in sorted({queue.broker_name for queue in plan}):
        of_broker = {queue: offset for queue, offset in plan.items() if queue.broker_name == name}
        address = routes.members(name).get(MASTER_ID)
        if address is None:
            raise LocalError(f"{name} has no master now, which stores the offsets")
        members = yield from ask_any_code(
            address, request(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
        )
        if members.code == ResponseCode.SUCCESS:
            supports_queues = members.version >= VERSION_5 or members.language == _TANDEMQ_LANGUAGE
            yield from _reset_online(address, group, topic, target, of_broker, supports_queues=supports_queues)
        else:
            for queue, offset in of_broker.items():
                yield from ask(address, update_offset_request(group, queue, offset))
    return plan


def _reset_online(
    address: str, group: str, topic: str, target: ResetTarget, plan: dict[MessageQueue, int], *, supports_queues: bool
) -> Steps[None]:
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    if target.queue is None and target.time_ms is not None:
        fields = {"topic": topic, "group": group, "timestamp": str(target.time_ms), "isForce": "true"}
        moved = yield from ask_any_code(address, Command(code, fields=fields), MOVE_TIMEOUT_MS)
        if moved.code == ResponseCode.SYSTEM_ERROR:
            # A 4.9 broker refuses if a queue has no committed offset: commit one for each queue, and retry.
            for queue, offset in plan.items():
                yield from ask(address, update_offset_request(group, queue, offset))
            moved = yield from ask_any_code(address, Command(code, fields=fields), MOVE_TIMEOUT_MS)
        checked(moved)
        return
    if not supports_queues:
        raise LocalError(
            f"the broker at {address} can reset an online group only for all queues and only to a time",
            hint="stop the group's consumers first",
        )
    for queue, offset in plan.items():
        yield from ask(
            address,
            request(
                code,
                topic=topic,
                group=group,
                timestamp=target.time_ms if target.time_ms is not None else -1,
                isForce=True,
                queueId=queue.queue_id,
                offset=offset,
            ),
            timeout_ms=MOVE_TIMEOUT_MS,
        )


def clone_offsets(routes: Routes, source: str, destination: str, topic: str) -> Steps[None]:
    """Copy the offsets of one group to another, in one topic.

    Raises:
        NoRoute, NetworkError, RemoteError: a broker failed; others may have been changed.
    """
    for name in (yield from topic_route(routes, topic)).brokers:
        answer = yield from ask_member(
            routes,
            name,
            lambda: request(
                RequestCode.CLONE_GROUP_OFFSET, srcGroup=source, destGroup=destination, topic=topic, offline=True
            ),
        )
        checked(answer)
