"""Offsets asked of brokers: where a group continues, the bounds of a queue, the message stored at a time.

The master is asked first, then the slaves. A member that refuses a consumer offset with NO_PERMISSION may not serve at
all: it is marked inactive, and the next member is asked.

Source: docs/reference/requests.md, "offsets"; RocketMQ RemoteBrokerOffsetStore, RebalancePushImpl.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tandemq.client.core.availability import BrokerAvailability
from tandemq.client.core.operations import Steps, ask_any_code, current_time, number, refusal, request
from tandemq.client.core.requests import query_offset_request
from tandemq.client.core.routes import Routes
from tandemq.client.core.settings import ConsumeFrom, ConsumerOptions
from tandemq.errors import NetworkError, NotConnected
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tandemq.model.topic import RETRY_PREFIX


class QueueBounds(NamedTuple):
    """Offsets of a queue: of its first message, and after its last; equal for an empty queue."""

    first: int
    end: int


def ask_member(routes: Routes, broker_name: str, make: Callable[[], Command]) -> Steps[Command]:
    """Return the response, with any code, of the first member of a broker group that responds; the master is first.

    Args:
        make: makes a request for each member.

    Raises:
        NetworkError: no member responds.
    """
    last_error: NetworkError | None = None
    for address in routes.read_addresses(broker_name):
        try:
            return (yield from ask_any_code(address, make()))
        except NetworkError as error:
            last_error = error
    raise last_error or NotConnected(f"no address of {broker_name} is known")


def ask_active_member(
    routes: Routes,
    availability: BrokerAvailability,
    broker_name: str,
    make: Callable[[], Command],
    check: Callable[[], Command],
) -> Steps[Command]:
    """As `ask_member`, for requests that only a broker that may not serve refuses with NO_PERMISSION.

    Such a broker is marked inactive until it responds to `check`, and the next member is asked. If all members refuse,
    the refusal is returned.

    Raises:
        NetworkError: no member responds.
    """
    last_error: NetworkError | None = None
    refused: Command | None = None
    for address in routes.read_addresses(broker_name):
        try:
            answer = yield from ask_any_code(address, make())
        except NetworkError as error:
            last_error = error
            continue
        if answer.code != ResponseCode.NO_PERMISSION:
            return answer
        refused = answer
        availability.mark_inactive(address, check, (yield from current_time()))
    if refused is not None:
        return refused
    raise last_error or NotConnected(f"no address of {broker_name} is known")


def committed_offset(
    routes: Routes, availability: BrokerAvailability, group: str, queue: MessageQueue
) -> Steps[int | None]:
    """Return a group's committed offset of a queue; None if the group has committed none.

    Raises:
        NetworkError, RemoteError: no member of the broker group reports it.
    """
    make = partial(query_offset_request, group, queue)
    answer = yield from ask_active_member(routes, availability, queue.broker_name, make, make)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer)
    return number(answer, "offset")


def queue_offset(routes: Routes, queue: MessageQueue, code: RequestCode, timestamp: int | None = None) -> Steps[int]:
    """Return the offset with which GET_MAX_OFFSET, GET_MIN_OFFSET or SEARCH_OFFSET_BY_TIMESTAMP is answered.

    Args:
        timestamp: for SEARCH_OFFSET_BY_TIMESTAMP, milliseconds since 1970.

    Raises:
        NetworkError, RemoteError: no member of the broker group reports it.
    """
    answer = yield from ask_member(
        routes,
        queue.broker_name,
        lambda: request(code, topic=queue.topic, queueId=queue.queue_id, timestamp=timestamp, bname=queue.broker_name),
    )
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer)
    return max(0, number(answer, "offset"))


def time_offset(routes: Routes, queue: MessageQueue, wall_ms: int) -> Steps[int]:
    """Return the offset of a queue's first message stored at or after a time, milliseconds since 1970.

    Raises:
        NetworkError, RemoteError: no member of the broker group reports it.
    """
    return (yield from queue_offset(routes, queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, wall_ms))


def first_offset(routes: Routes, options: ConsumerOptions, queue: MessageQueue) -> Steps[int]:
    """Return the offset at which a group without a committed offset starts: by its `consume_from`; a retry topic is
    read from its first message.

    Raises:
        NetworkError, RemoteError: no member of the broker group reports it.
    """
    if queue.topic.startswith(RETRY_PREFIX) or options.consume_from is ConsumeFrom.FIRST:
        return (yield from queue_offset(routes, queue, RequestCode.GET_MIN_OFFSET))
    if options.consume_from is ConsumeFrom.LAST:
        return (yield from queue_offset(routes, queue, RequestCode.GET_MAX_OFFSET))
    return (yield from time_offset(routes, queue, options.consume_from_ms))


def starting_offset(
    routes: Routes, availability: BrokerAvailability, options: ConsumerOptions, queue: MessageQueue
) -> Steps[int]:
    """Return the offset at which a member of the group starts to read a queue: the committed one, else `first_offset`.

    Raises:
        NetworkError, RemoteError: no member of the broker group reports it.
    """
    found = yield from committed_offset(routes, availability, options.group, queue)
    if found is not None:
        return found
    return (yield from first_offset(routes, options, queue))
