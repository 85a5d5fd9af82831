"""What each request needs, by its code: resources, and for each the actions of which one suffices.

A code that is not here is refused to all but super users, and `tests/unit/broker/features/access` fails: every request
that a feature answers has its line. What Java leaves unchecked (its configuration, groups, lite pulls, batches of
acknowledgements, …) is checked here.

A retry topic stands for its group. That of POP stands for its topic and its group, which Java takes for one group of a
joined name.

Source: docs/reference/access.md; RocketMQ DefaultAuthorizationContextBuilder, annotations of request headers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import ProtocolError
from tandemq.model.access import Need, ResourceKind, actions
from tandemq.model.codes import RequestCode as Code
from tandemq.model.command import Command
from tandemq.model.pop import TopicKind, pop_retry_topic
from tandemq.model.topic import DLQ_PREFIX, RETRY_PREFIX

NeedsOf = Callable[[Command], Iterable[Need]]
"""Returns what a request needs. Raises ProtocolError, KeyError, TypeError or ValueError if it cannot be read."""

PUB, SUB = actions("Pub"), actions("Sub")
GET, UPDATE, CREATE, DELETE = actions("Get"), actions("Update"), actions("Create"), actions("Delete")
SUB_OR_GET, SUB_OR_UPDATE = actions("Sub", "Get"), actions("Sub", "Update")
ENTRIES_MAX = 100_000
"""Maximum number of names in a request."""


def _topic(name: str, what: frozenset[str], group: str = "") -> Iterator[Need]:
    """Yield what an action on a topic needs; a retry topic stands for its group.

    Args:
        name: of the topic.
        what: the actions.
        group: the consumer group of the request, "" if it names none.
    """
    if not name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        yield Need(ResourceKind.TOPIC, name, what)
        return
    for kind in (TopicKind.RETRY_V1, TopicKind.RETRY_V2):
        prefix = pop_retry_topic(group, "", kind)
        if group and name.startswith(prefix) and len(name) > len(prefix):
            yield Need(ResourceKind.TOPIC, name.removeprefix(prefix), what)
            yield Need(ResourceKind.GROUP, group, what)
            return
    rest = name.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)
    own, plus, topic = rest.partition("+")
    if plus:
        yield Need(ResourceKind.TOPIC, topic, what)
    yield Need(ResourceKind.GROUP, own, what)


def _group(name: str, what: frozenset[str]) -> Iterator[Need]:
    yield Need(ResourceKind.GROUP, name.removeprefix(RETRY_PREFIX), what)


def _topic_field(what: frozenset[str], field: str = "topic") -> NeedsOf:
    return lambda command: _topic(command.fields[field], what)


def _group_field(what: frozenset[str], field: str) -> NeedsOf:
    return lambda command: _group(command.fields[field], what)


def _both(what: frozenset[str], group: str = "consumerGroup", topic: str = "topic") -> NeedsOf:
    """Return what needs the same actions on a group and, if one is named, on a topic."""

    def needs(command: Command) -> Iterator[Need]:
        own = command.fields[group]
        yield from _group(own, what)
        name = command.fields.get(topic, "")
        if name:
            yield from _topic(name, what, own)

    return needs


def _nothing(_command: Command) -> Iterable[Need]:
    return ()


def _send(topic: str, group: str) -> NeedsOf:
    """Return the needs of a send; one to a retry topic is that of a consumer."""

    def needs(command: Command) -> Iterator[Need]:
        name = command.fields[topic]
        yield from _topic(name, SUB if name.startswith(RETRY_PREFIX) else PUB, command.fields.get(group, ""))

    return needs


def _end_transaction(command: Command) -> Iterator[Need]:
    """Yield nothing without a topic, which clients before 5.1.4 do not send; see `needs_of_half`."""
    topic = command.fields.get("topic", "")
    return _topic(topic, PUB) if topic else iter(())


def needs_of_half(topic: str) -> list[Need]:
    """Return what the end of a transaction needs. `topic`: of its half message, whatever the request says."""
    return list(_topic(topic, PUB))


def needs_of_sent_back(topic: str, group: str) -> list[Need]:
    """Return what a message that is sent back needs besides the group. `topic`: the one in which it lies."""
    return list(_topic(topic, SUB, group))


def _heartbeat(command: Command) -> Iterator[Need]:
    body = _json(command.body)
    for consumer in _listed(body, "consumerDataSet"):
        group = str(consumer["groupName"])
        yield from _group(group, SUB)
        for subscription in _listed(consumer, "subscriptionDataSet"):
            name = str(subscription["topic"])
            if not name.startswith(RETRY_PREFIX):
                yield from _topic(name, SUB)


def _unregister(command: Command) -> Iterable[Need]:
    group = command.fields.get("consumerGroup", "")
    return _group(group, SUB) if group else ()


def _locks(command: Command) -> Iterator[Need]:
    body = _json(command.body)
    group = str(body["consumerGroup"])
    yield from _group(group, SUB)
    for queue in _listed(body, "mqSet"):
        yield from _topic(str(queue["topic"]), SUB, group)


def _batch_acks(command: Command) -> Iterator[Need]:
    for entry in _listed(_json(command.body), "acks"):
        yield from _group(str(entry["c"]), SUB)
        yield from _topic(str(entry["t"]), SUB)


def _of_body(what: frozenset[str]) -> NeedsOf:
    """Return the needs of a request whose body names a group and a topic."""

    def needs(command: Command) -> Iterator[Need]:
        body = _json(command.body)
        yield from _group(str(body["consumerGroup"]), what)
        yield from _topic(str(body["topic"]), what, str(body["consumerGroup"]))

    return needs


def _created_topics(command: Command) -> Iterator[Need]:
    for config in _listed(_json(command.body), "topicConfigList"):
        yield from _topic(str(config["topicName"]), CREATE)


def _created_group(command: Command) -> Iterable[Need]:
    return _group(str(_json(command.body)["groupName"]), actions("Create", "Update"))


def _created_groups(command: Command) -> Iterator[Need]:
    for config in _listed(_json(command.body), "groupConfigList"):
        yield from _group(str(config["groupName"]), actions("Create", "Update"))


def _consume_stats(command: Command) -> Iterator[Need]:
    yield from _both(GET)(command)
    for name in command.fields.get("topicList", "").split(";"):
        if name:
            yield from _topic(name, GET)


def _cloned(command: Command) -> Iterator[Need]:
    yield from _group(command.fields["srcGroup"], GET)
    yield from _both(UPDATE, "destGroup")(command)


def _forbidden(command: Command) -> Iterator[Need]:
    yield from _group(command.fields["group"], UPDATE)
    yield from _topic(command.fields["topic"], UPDATE)


def _listed_topics(command: Command) -> Iterator[Need]:
    for topic in _listed(_json(command.body), "topics"):
        yield from _topic(str(topic), actions("Sub", "Get", "Pub"))


def _json(body: bytes) -> dict[str, Any]:
    found = loads(body)
    if not isinstance(found, dict):
        raise ProtocolError("the body is not a JSON object")
    return found


def _listed(table: Mapping[str, Any], name: str) -> Iterable[Any]:
    found = table.get(name) or ()
    if len(found) > ENTRIES_MAX:
        raise ProtocolError(f"{name} has {len(found)} entries, the maximum is {ENTRIES_MAX}")
    return found


class _Cluster:
    """Needs of an action on the cluster."""

    def __init__(self, what: frozenset[str]) -> None:
        self.what = what


CLUSTER_GET, CLUSTER_UPDATE = _Cluster(GET), _Cluster(UPDATE)
SUPER_USERS_ONLY = None
NEEDS: dict[int, NeedsOf | _Cluster | None] = {
    Code.SEND_MESSAGE: _send("topic", "producerGroup"),
    Code.SEND_MESSAGE_V2: _send("b", "a"),
    Code.SEND_BATCH_MESSAGE: _send("b", "a"),
    Code.SEND_REPLY_MESSAGE: _send("topic", "producerGroup"),
    Code.SEND_REPLY_MESSAGE_V2: _send("b", "a"),
    Code.RECALL_MESSAGE: _topic_field(PUB),
    Code.END_TRANSACTION: _end_transaction,
    Code.CONSUMER_SEND_MSG_BACK: _group_field(SUB, "group"),
    Code.PULL_MESSAGE: _both(SUB),
    Code.LITE_PULL_MESSAGE: _both(SUB),
    Code.QUERY_MESSAGE: _topic_field(SUB_OR_GET),
    Code.VIEW_MESSAGE_BY_ID: CLUSTER_GET,
    Code.HEART_BEAT: _heartbeat,
    Code.UNREGISTER_CLIENT: _unregister,
    Code.CHECK_CLIENT_CONFIG: _nothing,
    Code.GET_CONSUMER_LIST_BY_GROUP: _group_field(SUB_OR_GET, "consumerGroup"),
    Code.QUERY_CONSUMER_OFFSET: _both(SUB_OR_GET),
    Code.UPDATE_CONSUMER_OFFSET: _both(SUB_OR_UPDATE),
    Code.LOCK_BATCH_MQ: _locks,
    Code.UNLOCK_BATCH_MQ: _locks,
    Code.POP_MESSAGE: _both(SUB),
    Code.PEEK_MESSAGE: _both(SUB),
    Code.NOTIFICATION: _both(SUB),
    Code.POLLING_INFO: _both(GET),
    Code.ACK_MESSAGE: _both(SUB),
    Code.CHANGE_MESSAGE_INVISIBLETIME: _both(SUB),
    Code.BATCH_ACK_MESSAGE: _batch_acks,
    Code.QUERY_ASSIGNMENT: _of_body(SUB),
    Code.SET_MESSAGE_REQUEST_MODE: _of_body(UPDATE),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _topic_field(actions("Sub", "Get", "Pub")),
    Code.GET_MAX_OFFSET: _topic_field(actions("Sub", "Get", "Pub")),
    Code.GET_MIN_OFFSET: _topic_field(actions("Sub", "Get", "Pub")),
    Code.TANDEM_QUEUE_BOUNDS: _listed_topics,
    Code.TANDEM_QUEUE_ENTRIES: _topic_field(SUB_OR_GET),
    Code.TANDEM_QUEUE_HEADS: _topic_field(SUB),
    Code.GET_EARLIEST_MSG_STORETIME: _topic_field(actions("Sub", "Get", "Pub")),
    Code.UPDATE_AND_CREATE_TOPIC: _topic_field(CREATE),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _created_topics,
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: _topic_field(CREATE),
    Code.DELETE_TOPIC_IN_BROKER: _topic_field(DELETE),
    Code.GET_TOPIC_CONFIG: _topic_field(GET),
    Code.GET_TOPIC_STATS_INFO: _topic_field(GET),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _topic_field(GET),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _created_group,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _created_groups,
    Code.DELETE_SUBSCRIPTIONGROUP: _group_field(DELETE, "groupName"),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _group_field(GET, "group"),
    Code.GET_CONSUMER_CONNECTION_LIST: _group_field(GET, "consumerGroup"),
    Code.GET_CONSUMER_RUNNING_INFO: _group_field(GET, "consumerGroup"),
    Code.QUERY_TOPICS_BY_CONSUMER: _group_field(GET, "group"),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _both(GET, "group"),
    Code.GET_CONSUME_STATS: _consume_stats,
    Code.QUERY_CONSUME_TIME_SPAN: _both(GET, "group"),
    Code.QUERY_CORRECTION_OFFSET: _both(GET, "compareGroup"),
    Code.QUERY_CONSUME_QUEUE: _both(GET),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _both(GET, "group"),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _both(UPDATE, "group"),
    Code.CLONE_GROUP_OFFSET: _cloned,
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _forbidden,
    Code.CONSUME_MESSAGE_DIRECTLY: _both(SUB),
    Code.RESUME_CHECK_HALF_MESSAGE: CLUSTER_UPDATE,
    Code.GET_PRODUCER_CONNECTION_LIST: CLUSTER_GET,
    Code.GET_ALL_PRODUCER_INFO: CLUSTER_GET,
    Code.VIEW_BROKER_STATS_DATA: CLUSTER_GET,
    Code.GET_BROKER_CONSUME_STATS: CLUSTER_GET,
    Code.GET_BROKER_CONFIG: CLUSTER_GET,
    Code.UPDATE_BROKER_CONFIG: CLUSTER_UPDATE,
    Code.GET_BROKER_RUNTIME_INFO: CLUSTER_GET,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: CLUSTER_GET,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: CLUSTER_UPDATE,
    Code.CLEAN_UNUSED_TOPIC: CLUSTER_UPDATE,
    Code.DELETE_EXPIRED_COMMITLOG: CLUSTER_UPDATE,
    Code.GET_ALL_TOPIC_CONFIG: CLUSTER_GET,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: CLUSTER_GET,
    Code.GET_ALL_CONSUMER_OFFSET: CLUSTER_GET,
    Code.GET_ALL_DELAY_OFFSET: CLUSTER_GET,
    Code.GET_ALL_MESSAGE_REQUEST_MODE: CLUSTER_GET,
    Code.GET_TIMER_CHECK_POINT: CLUSTER_GET,
    Code.GET_TIMER_METRICS: CLUSTER_GET,
    Code.GET_BROKER_HA_STATUS: CLUSTER_GET,
    Code.GET_BROKER_EPOCH_CACHE: CLUSTER_GET,
    Code.TANDEM_PEER_INFO: CLUSTER_GET,
    Code.TANDEM_LOG_DIGEST: CLUSTER_GET,
    Code.TANDEM_FAILOVER_STATUS: CLUSTER_GET,
    Code.TANDEM_POP_ORDERS: CLUSTER_GET,
    Code.TANDEM_ACCESS: SUPER_USERS_ONLY,
    Code.TANDEM_QUOTAS: CLUSTER_GET,
    Code.TANDEM_SET_QUOTAS: CLUSTER_UPDATE,
    Code.TANDEM_PROXIED_CONSUMERS: CLUSTER_UPDATE,
    Code.TANDEM_LOG_RECORDS: CLUSTER_UPDATE,
    Code.TANDEM_LOG_SUSPECT: CLUSTER_UPDATE,
    Code.TANDEM_SCRUB: CLUSTER_UPDATE,
    Code.TANDEM_REPLICA_PULL: CLUSTER_UPDATE,
    Code.TANDEM_SWITCH: CLUSTER_UPDATE,
    Code.TANDEM_FORCE_MASTER: CLUSTER_UPDATE,
    Code.TANDEM_HAND_OFFSETS: CLUSTER_UPDATE,
    Code.UPDATE_AND_CREATE_ACL_CONFIG: CLUSTER_UPDATE,
    Code.DELETE_ACL_CONFIG: CLUSTER_UPDATE,
    Code.GET_BROKER_CLUSTER_ACL_INFO: CLUSTER_GET,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: CLUSTER_UPDATE,
    Code.AUTH_CREATE_USER: CLUSTER_UPDATE,
    Code.AUTH_UPDATE_USER: CLUSTER_UPDATE,
    Code.AUTH_DELETE_USER: CLUSTER_UPDATE,
    Code.AUTH_GET_USER: CLUSTER_GET,
    Code.AUTH_LIST_USER: CLUSTER_GET,
    Code.AUTH_CREATE_ACL: CLUSTER_UPDATE,
    Code.AUTH_UPDATE_ACL: CLUSTER_UPDATE,
    Code.AUTH_DELETE_ACL: CLUSTER_UPDATE,
    Code.AUTH_GET_ACL: CLUSTER_GET,
    Code.AUTH_LIST_ACL: CLUSTER_GET,
}
"""By code."""
OPEN = frozenset({Code.TANDEM_CHALLENGE})
"""Requests that need no user: what they give is of use only to those who know the secret of replication."""


def needs_of(command: Command, cluster: str) -> list[Need] | None:
    """Return what a request needs; None: only super users may send it.

    Raises:
        ProtocolError: a field that names its topic or group is missing or malformed.
    """
    found = NEEDS.get(command.code)
    if found is None:
        return None
    if isinstance(found, _Cluster):
        return [Need(ResourceKind.CLUSTER, cluster, found.what)]
    try:
        return list(dict.fromkeys(found(command)))
    except (KeyError, TypeError, AttributeError, ValueError, msgspec.MsgspecError) as error:
        raise ProtocolError(f"a field that names a topic or group is missing or malformed: {error!r}") from error
