"""QueryRoute and QueryAssignment: the queues of a topic, all of them at the address under which clients know the proxy.

A queue is listed with its broker group as the broker 0, whichever member is the master now: the proxy finds it. So
clients keep their queues through a failover.

Source: docs/reference/grpc.md; RocketMQ RouteActivity.
"""

from collections.abc import Iterable, Iterator

from tandemq.client.core.operations import Steps
from tandemq.client.core.routes import MASTER_ID, QueueData, TopicRoute
from tandemq.model.pop import ANY_QUEUE
from tandemq.model.topic import Permission as TopicPermission
from tandemq.proxy.brokers import Brokers
from tandemq.proxy.names import Caller, group_of, topic_of
from tandemq.proxy.protocol.messaging_pb2 import (
    Assignment,
    Broker,
    Code,
    Endpoints,
    MessageQueue,
    Permission,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
    Resource,
)
from tandemq.proxy.status import OK, CallRefused

REPEATED_BYTES_MAX = 4_096
"""Maximum size of what a request has for each queue of its response."""


class Routing:
    """Routes for clients."""

    def __init__(self, brokers: Brokers) -> None:
        """`brokers`: of all clusters that the name servers know."""
        self._brokers = brokers

    def route(self, caller: Caller, query: QueryRouteRequest) -> Steps[QueryRouteResponse]:
        """Return the queues of a topic, with what each may be used for.

        Raises:
            CallRefused: there is no such topic, or the request's endpoints are too large.
            TandemError: its route or its types cannot be had.
        """
        topic = topic_of(query.topic)
        _check_repeated(query.topic, query.endpoints)
        route = yield from self._brokers.route(topic)
        types = yield from self._brokers.message_types(topic, caller.deadline_ms)
        queues = [
            MessageQueue(
                topic=query.topic,
                id=queue_id,
                permission=permission,
                broker=_broker(data, query.endpoints),
                accept_message_types=types,
            )
            for data, queue_id, permission in _in_turn(_listed(route))
        ]
        return QueryRouteResponse(status=OK, message_queues=queues)

    def assignment(self, caller: Caller, query: QueryAssignmentRequest) -> Steps[QueryAssignmentResponse]:
        """Return what a member of a group receives from: each broker group; its queues if the group is ordered.

        Raises:
            CallRefused: there is no such topic, or it has no queue that may be read.
            TandemError: its route or the group's configuration cannot be had.
        """
        topic, group = topic_of(query.topic), group_of(query.group)
        _check_repeated(query.topic, query.endpoints)
        route = yield from self._brokers.route(topic)
        readable = [data for data in _listed(route) if data.perm & TopicPermission.READ and data.read_queue_nums]
        if not readable:
            raise CallRefused(Code.FORBIDDEN, f"the topic {topic} has no queue that may be read")
        config = yield from self._brokers.group(group, topic, caller.deadline_ms)
        assignments = [
            Assignment(
                message_queue=MessageQueue(
                    topic=query.topic,
                    id=queue_id,
                    permission=Permission.READ_WRITE if data.perm & TopicPermission.WRITE else Permission.READ,
                    broker=_broker(data, query.endpoints),
                )
            )
            for data in readable
            for queue_id in (range(data.read_queue_nums) if config.consume_message_orderly else (ANY_QUEUE,))
        ]
        return QueryAssignmentResponse(status=OK, assignments=assignments)


def _check_repeated(topic: Resource, endpoints: Endpoints) -> None:
    """Check the size of what a response repeats for each queue."""
    if topic.ByteSize() + endpoints.ByteSize() > REPEATED_BYTES_MAX:
        text = f"topic and endpoints have more than {REPEATED_BYTES_MAX} bytes"
        raise CallRefused(Code.ILLEGAL_ACCESS_POINT, text)


def _listed(route: TopicRoute) -> Iterator[QueueData]:
    return (data for data in route.queues if data.broker_name in route.brokers)


def _in_turn(route: Iterable[QueueData]) -> list[tuple[QueueData, int, Permission]]:
    """Return the queues of a route, those of its brokers in turn.

    Simple consumers ask queue after queue, and each call waits at one broker for messages of any of its queues: broker
    after broker, they would wait once for each queue of one that has nothing.
    """
    found = [(data, queue_id, it) for data in route for queue_id, it in enumerate(_permissions(data))]
    return sorted(found, key=lambda queue: queue[1])


def _broker(data: QueueData, endpoints: Endpoints) -> Broker:
    return Broker(name=data.broker_name, id=MASTER_ID, endpoints=endpoints)


def _permissions(data: QueueData) -> list[Permission]:
    """Return the permission of each queue; queues that have one of the two come first, as with Java's proxy."""
    reads = data.read_queue_nums if data.perm & TopicPermission.READ else 0
    writes = data.write_queue_nums if data.perm & TopicPermission.WRITE else 0
    both = min(reads, writes)
    return [Permission.READ] * (reads - both) + [Permission.WRITE] * (writes - both) + [Permission.READ_WRITE] * both
