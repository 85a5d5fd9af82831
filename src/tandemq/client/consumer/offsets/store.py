"""Offsets of a group: asked for when a queue is taken over, told to the broker while it is read.

Asked of and told to the master; to a slave when the master is down or may not serve. What was told to a slave is told
again to the master when it is back, because where an offset was told is remembered beside it. A member that refuses it
with NO_PERMISSION may serve nobody now: the next one is asked.

Source: docs/reference/requests.md, "offsets"; RocketMQ RemoteBrokerOffsetStore, RebalancePushImpl.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from tandemq.client.core.context import Kit
from tandemq.client.core.operations import Steps, ask_any_code, current_time, number, refusal, request
from tandemq.client.core.settings import ConsumeFrom, ConsumerOptions
from tandemq.errors import NetworkError, NotConnected
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tandemq.model.topic import RETRY_PREFIX


class OffsetStorage(Protocol):
    """Where a broadcasting group's member keeps its own offsets."""

    def read(self, group: str) -> dict[MessageQueue, int]:
        """All offsets of a group; empty if there are none."""

    def write(self, group: str, offsets: dict[MessageQueue, int]) -> None:
        """Replace all offsets of a group, in one piece."""


class MemoryOffsetStorage:
    """Offsets that last as long as the object."""

    def __init__(self) -> None:
        """None."""
        self.groups: dict[str, dict[MessageQueue, int]] = {}

    def read(self, group: str) -> dict[MessageQueue, int]:
        """See `OffsetStorage`."""
        return dict(self.groups.get(group, {}))

    def write(self, group: str, offsets: dict[MessageQueue, int]) -> None:
        """See `OffsetStorage`."""
        self.groups[group] = dict(offsets)


def ask_member(
    kit: Kit, broker_name: str, make: Callable[[], Command], *, check: Callable[[], Command] | None = None
) -> Steps[Command]:
    """The answer of the first member of a broker group that answers, the master first; whatever its code.

    Args:
        check: given for what only a broker that may not serve refuses with NO_PERMISSION, consumer offsets: then it
            counts as shut until it answers this, and the next member is asked.
    Raises:
        NetworkError: nobody answers.
    """
    last: NetworkError | None = None
    refused: Command | None = None
    for address in kit.routes.read_addresses(broker_name):
        try:
            answer = yield from ask_any_code(address, make())
        except NetworkError as error:
            last = error
            continue
        if check is None or answer.code != ResponseCode.NO_PERMISSION:
            return answer
        refused = answer
        kit.standing.shut(address, check, (yield from current_time()))
    if refused is not None:
        return refused
    raise last or NotConnected(f"no address of {broker_name} is known")


def offset_question(group: str, queue: MessageQueue) -> Command:
    """The request that asks for a group's offset; a broker that may not serve refuses it."""
    return request(
        RequestCode.QUERY_CONSUMER_OFFSET,
        consumerGroup=group,
        topic=queue.topic,
        queueId=queue.queue_id,
        bname=queue.broker_name,
    )


def committed_offset(kit: Kit, group: str, queue: MessageQueue) -> Steps[int | None]:
    """Where a group goes on; None if it never committed.

    Raises:
        NetworkError, RemoteError: it cannot be told now.
    """
    question = partial(offset_question, group, queue)
    answer = yield from ask_member(kit, queue.broker_name, question, check=question)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer)
    return number(answer, "offset")


def queue_offset(kit: Kit, queue: MessageQueue, code: RequestCode, timestamp: int | None = None) -> Steps[int]:
    """What GET_MAX_OFFSET, GET_MIN_OFFSET or SEARCH_OFFSET_BY_TIMESTAMP says of a queue.

    Raises:
        NetworkError, RemoteError: it cannot be told now.
    """
    answer = yield from ask_member(
        kit,
        queue.broker_name,
        lambda: request(code, topic=queue.topic, queueId=queue.queue_id, timestamp=timestamp, bname=queue.broker_name),
    )
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer)
    return max(0, number(answer, "offset"))


def first_offset(kit: Kit, options: ConsumerOptions, queue: MessageQueue) -> Steps[int]:
    """Where a group starts that has no offset of a queue: by its `consume_from`; retry topics from the start.

    Raises:
        NetworkError, RemoteError: it cannot be told now.
    """
    if queue.topic.startswith(RETRY_PREFIX) or options.consume_from is ConsumeFrom.FIRST:
        return (yield from queue_offset(kit, queue, RequestCode.GET_MIN_OFFSET))
    if options.consume_from is ConsumeFrom.LAST:
        return (yield from queue_offset(kit, queue, RequestCode.GET_MAX_OFFSET))
    return (yield from time_offset(kit, queue, options.consume_from_ms))


def time_offset(kit: Kit, queue: MessageQueue, wall_ms: int) -> Steps[int]:
    """The first offset of a queue stored at or after a calendar time.

    Raises:
        NetworkError, RemoteError: it cannot be told now.
    """
    return (yield from queue_offset(kit, queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, wall_ms))


def starting_offset(kit: Kit, options: ConsumerOptions, queue: MessageQueue) -> Steps[int]:
    """Where a member of the group goes on in a queue it takes over.

    Raises:
        NetworkError, RemoteError: it cannot be told now.
    """
    found = yield from committed_offset(kit, options.group, queue)
    if found is not None:
        return found
    return (yield from first_offset(kit, options, queue))


def commit_request(group: str, queue: MessageQueue, offset: int) -> Command:
    """The request that tells an offset."""
    return request(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        consumerGroup=group,
        topic=queue.topic,
        queueId=queue.queue_id,
        commitOffset=offset,
        bname=queue.broker_name,
    )
