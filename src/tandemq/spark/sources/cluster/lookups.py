"""Lookups of messages on a running cluster: the first one at an offset, or at a time.

Source: docs/guides/pipeline.md, "Offsets"; docs/reference/requests.md.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tandemq.client.consumer.offsets.lookup import ask_member, time_offset
from tandemq.client.core.operations import Invoke, Steps, ask_all, number, refusal, run_together
from tandemq.client.core.requests import pull_request
from tandemq.client.core.routes import Routes
from tandemq.codec.record.record import decode_messages
from tandemq.errors import NetworkError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue, StoredMessage
from tandemq.spark.sources.cluster.members import QueueLayout, ordered
from tandemq.spark.sources.cluster.options import ReadFrom

WALK_MESSAGES = 32
MESSAGES_AT_ONCE = 64
"""Maximum number of pulls in flight: each response has a message, which may be large."""
PASSING_CODES = (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY)
"""Response codes without messages that give the next offset."""
ABSENT_CODES = (*PASSING_CODES, ResponseCode.PULL_NOT_FOUND)


def find_offset_at(
    routes: Routes, layout: QueueLayout, queue: MessageQueue, wall_ms: int, start: int, end: int, read_from: ReadFrom
) -> Steps[int]:
    """Return the offset of the first message in [start, end) stored at or after a timestamp; `end` if there is none.

    The master searches, unless only slaves are read. Slaves that serve no consumers answer replica reads but no search
    by time; then this function does a binary search with pulls.

    Raises:
        NetworkError, RemoteError: brokers do not answer, or refuse.
    """
    if read_from is not ReadFrom.SLAVE:
        return (yield from _ask_offset_at(routes, queue, wall_ms, start, end))
    addresses = ordered(layout.members[queue.broker_name], read_from)
    while start < end:
        middle = (start + end) // 2
        message = yield from first_from(queue, middle, addresses)
        if message is None or message.queue_offset >= end or message.store_ms >= wall_ms:
            end = middle
        else:
            start = message.queue_offset + 1
    return end


def first_from(queue: MessageQueue, offset: int, addresses: Sequence[str]) -> Steps[StoredMessage | None]:
    """Return the first message of a queue at or after an offset, from the first member that has one; None if none
    has."""
    failure: TandemError | None = None
    for address in addresses:
        code, queue_offset = RequestCode.PULL_MESSAGE, offset
        while True:
            try:
                answer = yield Invoke(address, pull_request(queue, queue_offset, 1, code=code))
            except NetworkError as error:
                failure = error
                break
            following = int(answer.fields.get("nextBeginOffset", queue_offset))
            if answer.code == ResponseCode.NO_PERMISSION and code is RequestCode.PULL_MESSAGE:
                code = RequestCode.TANDEM_REPLICA_PULL
            elif answer.code == ResponseCode.SUCCESS:
                return decode_messages(answer.body, inflates=False)[0]
            elif answer.code in PASSING_CODES and following > queue_offset:
                queue_offset = following
            else:
                failure = failure if answer.code in ABSENT_CODES else refusal(answer)
                break
    if failure is not None:
        raise failure
    return None


class FirstMessage(NamedTuple):
    """Where and when the first message at or after an offset is stored."""

    queue_offset: int
    store_ms: int
    log_offset: int


def find_firsts(
    layout: QueueLayout, offsets: Mapping[MessageQueue, int], read_from: ReadFrom
) -> Steps[dict[MessageQueue, FirstMessage | None]]:
    """Return the first message at or after an offset of each queue.

    None: the two preferred members did not return it. This is no statement about the queue.
    """
    operations = [_first_of(queue, offset, layout, read_from) for queue, offset in offsets.items()]
    return dict(zip(offsets, (yield from run_together(operations, MESSAGES_AT_ONCE)), strict=True))


def _first_of(queue: MessageQueue, offset: int, layout: QueueLayout, read_from: ReadFrom) -> Steps[FirstMessage | None]:
    try:
        addresses = ordered(layout.members.get(queue.broker_name, {}), read_from)
    except NetworkError:
        return None
    for address in addresses[:2]:
        for code in (RequestCode.PULL_MESSAGE, RequestCode.TANDEM_REPLICA_PULL):
            (answer,) = yield from ask_all([Invoke(address, pull_request(queue, offset, 1, code=code))])
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                message = decode_messages(answer.body, inflates=False)[0]
                return FirstMessage(message.queue_offset, message.store_ms, message.log_offset)
            if not isinstance(answer, Command) or answer.code != ResponseCode.NO_PERMISSION:
                break
    return None


def _ask_offset_at(routes: Routes, queue: MessageQueue, wall_ms: int, start: int, end: int) -> Steps[int]:
    """As `find_offset_at`, with the search of the brokers.

    RocketMQ brokers return any of several messages of one millisecond, or a neighbour. The search is therefore for the
    millisecond before, followed by a scan message by message.

    Raises:
        NetworkError, RemoteError: brokers do not answer, or refuse.
    """
    offset = max(start, min((yield from time_offset(routes, queue, max(0, wall_ms - 1))), end))
    while offset < end:
        answer = yield from ask_member(routes, queue.broker_name, lambda: pull_request(queue, offset, WALK_MESSAGES))  # noqa: B023
        if answer.code != ResponseCode.SUCCESS:
            following = int(answer.fields.get("nextBeginOffset", offset))
            if answer.code == ResponseCode.PULL_NOT_FOUND or following <= offset:
                return offset
            offset = following
            continue
        for message in decode_messages(answer.body, inflates=False):
            if message.store_ms >= wall_ms:
                return min(message.queue_offset, end)
        offset = number(answer, "nextBeginOffset")
    return end
