"""Administration of a cluster, its brokers and topics: operations that any client node can run.

Requests that change a topic are sent to every master of a cluster; queries go to a member that has the data.
Source: docs/reference/requests.md, "administration"; RocketMQ DefaultMQAdminExt and what its requests do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tandemq.client.consumer.offsets.lookup import ask_member
from tandemq.client.core.operations import (
    REQUESTS_AT_ONCE,
    Invoke,
    Steps,
    ask,
    ask_all,
    checked,
    current_time,
    json_object,
    number,
    request,
    wait,
)
from tandemq.client.core.requests import queue_from_json
from tandemq.client.core.routes import MASTER_ID, BrokerGroup, Routes, TopicRoute, decode_group
from tandemq.codec.remoting.bodies import convert, integer
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import LocalError, NoRoute, ProtocolError, RemoteError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tandemq.model.topic import AUTO_CREATE_TOPIC, ORDER_NAMESPACE, TopicConfig, topic_name_error


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Brokers registered at a name server: broker groups by name, and broker names by cluster."""

    brokers: dict[str, BrokerGroup]
    clusters: dict[str, list[str]]

    def masters(self, cluster: str | None = None, broker_name: str | None = None) -> list[str]:
        """Return the addresses of the masters of all brokers, of one cluster, or of one broker name.

        Raises:
            LocalError: there is none.
        """
        names = self.clusters.get(cluster, []) if cluster is not None else list(self.brokers)
        groups = [self.brokers[name] for name in names if broker_name in (None, name) and name in self.brokers]
        found = [group.members[MASTER_ID] for group in groups if MASTER_ID in group.members]
        if not found:
            where = f"broker {broker_name}" if broker_name is not None else f"cluster {cluster or 'any'}"
            raise LocalError(f"no master is registered for {where}")
        return found

    def addresses(self) -> list[str]:
        """Return the addresses of all members, slaves included."""
        return [address for group in self.brokers.values() for address in group.members.values()]


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Offsets of a queue at its broker.

    `min_offset`: of the first message; `max_offset`: after the last message; `last_ms`: when the last message was
    stored, milliseconds since 1970, 0 if there is none.
    """

    min_offset: int
    max_offset: int
    last_ms: int


def cluster_info(routes: Routes) -> Steps[ClusterInfo]:
    """Return all brokers that are registered at the name server.

    Raises:
        NetworkError: no name server responds.
    """
    answer = yield from routes.ask_name_server(lambda: request(RequestCode.GET_BROKER_CLUSTER_INFO))
    raw = json_object(checked(answer))
    try:
        brokers = {name: decode_group(item) for name, item in (raw.get("brokerAddrTable") or {}).items()}
        clusters = {name: sorted(members) for name, members in (raw.get("clusterAddrTable") or {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"the cluster information cannot be decoded: {error!r}") from error
    return ClusterInfo(dict(sorted(brokers.items())), clusters)


def topic_route(routes: Routes, topic: str) -> Steps[TopicRoute]:
    """Return the route of a topic.

    Raises:
        NoRoute: no name server knows the topic.
        NetworkError: no name server responds.
    """
    now = yield from current_time()
    return (yield from wait(routes.fetch(topic, now)))


def topic_routes(routes: Routes, topics: Sequence[str]) -> Steps[dict[str, TopicRoute]]:
    """Return the routes of topics; one that no name server knows is left out.

    Raises:
        NetworkError: no name server responds.
        RemoteError: a topic is static.
    """
    found: dict[str, TopicRoute] = {}
    for start in range(0, len(topics), REQUESTS_AT_ONCE):
        now = yield from current_time()
        tickets = {topic: routes.fetch(topic, now) for topic in topics[start : start + REQUESTS_AT_ONCE]}
        for topic, ticket in tickets.items():
            try:
                found[topic] = ticket.result() if ticket.done else (yield from wait(ticket))
            except NoRoute:
                continue
    return found


def topic_names(routes: Routes) -> Steps[list[str]]:
    """Return all topics that are registered at the name server, sorted.

    Raises:
        NetworkError: no name server responds.
    """
    answer = yield from routes.ask_name_server(lambda: request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
    return sorted(str(name) for name in json_object(checked(answer)).get("topicList") or ())


def order_brokers(routes: Routes, topic: str) -> Steps[list[str]]:
    """Return the brokers in the order configuration of a topic, sorted; empty if it has none.

    Name servers keep these configurations on disk, whether brokers are registered or not.

    Raises:
        NetworkError: no name server responds.
    """
    answer = yield from routes.ask_name_server(
        lambda: request(RequestCode.GET_KV_CONFIG, namespace=ORDER_NAMESPACE, key=topic)
    )
    if answer.code != ResponseCode.SUCCESS:
        return []
    entries = answer.fields.get("value", "").split(";")
    return sorted({name for name, colon, _ in (entry.partition(":") for entry in entries) if colon and name})


def create_topic(routes: Routes, config: TopicConfig, cluster: str | None, broker_name: str | None) -> Steps[list[str]]:
    """Create or change a topic on all masters of a cluster, or on one broker; returns their addresses.

    Raises:
        LocalError: the name is invalid, or there is no master.
        RemoteError: the topic is static; nothing was changed.
        NetworkError, RemoteError: a master failed; others may have been changed.
    """
    fault = topic_name_error(config.topic_name)
    if fault is not None:
        raise LocalError(fault)
    yield from refresh_route(routes, config.topic_name)
    info = yield from cluster_info(routes)
    addresses = info.masters(cluster, broker_name)
    for address in addresses:
        yield from ask(address, _create_request(config))
    yield from refresh_route(routes, config.topic_name)
    return addresses


def _create_request(config: TopicConfig) -> Command:
    attributes = ",".join(f"+{name.removeprefix('+')}={value}" for name, value in config.attributes.items())
    return request(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=config.topic_name,
        defaultTopic=AUTO_CREATE_TOPIC,
        readQueueNums=config.read_queue_nums,
        writeQueueNums=config.write_queue_nums,
        perm=config.perm,
        topicFilterType=config.topic_filter_type,
        topicSysFlag=config.topic_sys_flag,
        order=config.order,
        attributes=attributes or None,
    )


def refresh_route(routes: Routes, topic: str) -> Steps[None]:
    """Fetch a route again; it is not an error if there is none yet."""
    try:
        yield from topic_route(routes, topic)
    except NoRoute:
        return


def delete_topic(routes: Routes, topic: str, cluster: str | None) -> Steps[None]:
    """Delete a topic on all masters, then in all name servers.

    Raises:
        NetworkError, RemoteError: a server failed; others may have been changed.
    """
    info = yield from cluster_info(routes)
    for address in info.masters(cluster):
        yield from ask(address, request(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic))
    yield from each_name_server(routes, request(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic=topic, clusterName=cluster))


def each_name_server(routes: Routes, command: Command) -> Steps[list[Command]]:
    """Send a request to all name servers and return their responses.

    Raises:
        NetworkError, RemoteError: of the first that failed; others may have been changed.
    """
    servers = routes.name_servers
    asks = [Invoke(address, Command(command.code, fields=command.fields, body=command.body)) for address in servers]
    answers = yield from ask_all(asks)
    for answer in answers:
        if isinstance(answer, TandemError):
            raise answer
    return [checked(answer) for answer in answers if isinstance(answer, Command)]


def topic_config(routes: Routes, topic: str) -> Steps[dict[str, TopicConfig]]:
    """Return the configuration of a topic, by broker name.

    Raises:
        NoRoute: no name server knows the topic.
        NetworkError, RemoteError: a broker does not report it (code 3: a broker older than 5.0).
    """
    route = yield from topic_route(routes, topic)
    found: dict[str, TopicConfig] = {}
    for name in route.brokers:
        answer = yield from ask_member(routes, name, lambda: request(RequestCode.GET_TOPIC_CONFIG, topic=topic))
        found[name] = convert({**json_object(checked(answer)), "topicName": topic}, TopicConfig, "topic config")
    return found


def topic_stats(routes: Routes, topic: str) -> Steps[dict[MessageQueue, QueueStats]]:
    """Return the offsets of a topic's queues at their brokers, sorted by queue.

    Raises:
        NoRoute: no name server knows the topic.
        NetworkError, RemoteError: a broker does not report them.
    """
    route = yield from topic_route(routes, topic)
    found: dict[MessageQueue, QueueStats] = {}
    for name in route.brokers:
        answer = yield from ask_member(routes, name, lambda: request(RequestCode.GET_TOPIC_STATS_INFO, topic=topic))
        for queue, item in queue_table(json_object(checked(answer)), "offsetTable").items():
            found[queue] = QueueStats(*numbers(item, "minOffset", "maxOffset", "lastUpdateTimestamp"))
    return dict(sorted(found.items()))


def queue_table(raw: dict[str, Any], name: str) -> dict[MessageQueue, Any]:
    """Decode a JSON object whose keys are queues, as Java writes it.

    Raises:
        ProtocolError: it is not such an object.
    """
    try:
        return {queue_from_json(loads(key.encode())): value for key, value in (raw.get(name) or {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"{name} is not a table of queues: {error!r}") from error


def numbers(item: dict[str, Any], *names: str) -> list[int]:
    """Return integer fields of a JSON object; 0 for a missing one.

    Raises:
        ProtocolError: a field is not an integer.
    """
    return [integer(item.get(name), name) for name in names]


def broker_runtime(address: str) -> Steps[dict[str, str]]:
    """Return the runtime information of a broker; all values are text.

    Raises:
        NetworkError, RemoteError: the broker does not report it.
    """
    answer = yield from ask(address, request(RequestCode.GET_BROKER_RUNTIME_INFO))
    return {str(key): str(value) for key, value in (json_object(answer).get("table") or {}).items()}


def broker_config(address: str) -> Steps[dict[str, str]]:
    """Return the settings of a broker.

    Raises:
        NetworkError, RemoteError: the broker does not report them.
    """
    answer = yield from ask(address, request(RequestCode.GET_BROKER_CONFIG))
    return read_properties(answer.body)


def update_broker_config(address: str, settings: dict[str, str]) -> Steps[None]:
    """Change settings of a running broker.

    Raises:
        NetworkError, RemoteError: the broker does not respond, or refuses.
    """
    body = "".join(f"{key}={value}\n" for key, value in settings.items()).encode()
    yield from ask(address, request(RequestCode.UPDATE_BROKER_CONFIG, body))


def ha_status(address: str) -> Steps[dict[str, Any]]:
    """Return the replication status of a broker, as it reports it.

    Raises:
        NetworkError, RemoteError: the broker does not report it (code 3: a broker older than 5.0).
    """
    return json_object((yield from ask(address, request(RequestCode.GET_BROKER_HA_STATUS))))


def broker_stats(address: str, name: str, key: str) -> Steps[dict[str, Any] | None]:
    """Return a counter of a broker: sums and rates of the last minute, hour and day; None if there is no such counter.

    Raises:
        NetworkError: the broker does not respond.
    """
    try:
        answer = yield from ask(address, request(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key))
    except RemoteError as error:
        if error.code == ResponseCode.SYSTEM_ERROR:
            return None
        raise
    return json_object(answer)


def set_write_permission(routes: Routes, broker_name: str, *, may_write: bool) -> Steps[int]:
    """Grant or revoke the write permission of a broker in all name servers; returns the number of topics changed.

    Raises:
        NetworkError, RemoteError: a name server failed; others may have been changed.
    """
    code = RequestCode.ADD_WRITE_PERM_OF_BROKER if may_write else RequestCode.WIPE_WRITE_PERM_OF_BROKER
    answers = yield from each_name_server(routes, request(code, brokerName=broker_name))
    return max(number(answer, "addTopicCount" if may_write else "wipeTopicCount") for answer in answers)


def get_value(routes: Routes, namespace: str, key: str) -> Steps[str | None]:
    """Return a value of the name servers' key-value table; None if there is none.

    Raises:
        NetworkError, RemoteError: no name server reports it.
    """
    answer = yield from routes.ask_name_server(lambda: request(RequestCode.GET_KV_CONFIG, namespace=namespace, key=key))
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    return checked(answer).fields.get("value")


def put_value(routes: Routes, namespace: str, key: str, value: str | None) -> Steps[None]:
    """Set a value in all name servers; None deletes it.

    Raises:
        NetworkError, RemoteError: a name server failed; others may have been changed.
    """
    if value is None:
        yield from each_name_server(routes, request(RequestCode.DELETE_KV_CONFIG, namespace=namespace, key=key))
    else:
        yield from each_name_server(
            routes, request(RequestCode.PUT_KV_CONFIG, namespace=namespace, key=key, value=value)
        )


def read_properties(body: bytes) -> dict[str, str]:
    """Decode lines `key=value`, as brokers write them."""
    lines = (line.partition("=") for line in body.decode("utf-8", "replace").splitlines() if not line.startswith("#"))
    return {key.strip(): value.strip() for key, separator, value in lines if separator}
