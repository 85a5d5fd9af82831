"""Resolution of a query's options on a running cluster: start and end offsets, offsets by time, epochs.

All functions are client operations (tandemq.client.core.operations). The end of a queue comes from the master, whose
answer is final. If the master is down, it comes from the slaves, which may lag: such an end may be less than an offset
read before, and that is no loss.

Source: docs/guides/pipeline.md, "Offsets"; docs/reference/requests.md.
"""

import json
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tandemq.client.admin.queries import TOOLS_GROUP
from tandemq.client.consumer.offsets.lookup import ask_member, time_offset
from tandemq.client.core.connections import Answer
from tandemq.client.core.operations import (
    Invoke,
    Steps,
    ask_all,
    checked,
    current_time,
    json_object,
    number,
    refusal,
    request,
    run_together,
)
from tandemq.client.core.requests import update_offset_request
from tandemq.client.core.routes import MASTER_ID, Routes
from tandemq.codec.record.record import decode_messages
from tandemq.errors import ConfigError, NetworkError, NotConnected, ProtocolError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue, StoredMessage
from tandemq.spark.sources.cluster.offsets import EARLIEST, LATEST, Position
from tandemq.spark.sources.cluster.options import Bound, Edge, ReadFrom, SourceOptions, StoreTime, StoreTimes

SUBSCRIPTION = 4
WALK_MESSAGES = 32
TOPICS_MIN, TOPICS_PER_REQUEST = 4, 200
"""Topics of a broker group from which on their ends are asked for together, and those of one request."""
MESSAGES_AT_ONCE = 64
"""Maximum number of pulls in flight: each response has a message, which may be large."""
BEYOND = 1 << 60
"""An offset beyond every queue: the response to a pull there contains the queue's minimum and maximum offset."""
PASSING_CODES = (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY)
"""Response codes without messages that give the next offset."""
ABSENT_CODES = (*PASSING_CODES, ResponseCode.PULL_NOT_FOUND)
Members = Mapping[int, str]
"""Addresses of a broker group by broker id."""


@dataclass(frozen=True, slots=True)
class QueueLayout:
    """Queues of a query, sorted, and the members of their broker groups by broker name."""

    queues: tuple[MessageQueue, ...]
    members: Mapping[str, Members]
    clusters: Mapping[str, str] = field(default_factory=dict)
    """Cluster by broker name."""
    unknown: tuple[str, ...] = ()
    """Topics that the options name and no name server knows."""


@dataclass(frozen=True, slots=True)
class QueueEnd:
    """End offset of a queue. `is_final`: whether it comes from the master."""

    offset: int
    is_final: bool


class QueueSpan(NamedTuple):
    """Minimum and maximum offset of a queue on one member; `high` is exclusive."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Epochs:
    """Epochs of a broker group's log as (epoch, first log offset), ascending; empty if it has none."""

    pairs: tuple[tuple[int, int], ...] = ()
    is_final: bool = False
    """Whether they come from the master: a slave that lags may not know the present one."""
    answer_ms: int | None = field(default=None, compare=False)
    """How long the answers of the group's members took; None: none came."""

    @property
    def epoch(self) -> int:
        """Present epoch; 0 if there is none."""
        return self.pairs[-1][0] if self.pairs else 0

    def at(self, log_offset: int) -> int:
        """Return the epoch of a record by its log offset; 0 if there is none."""
        index = bisect_right([start for _, start in self.pairs], log_offset)
        return self.pairs[index - 1][0] if index else 0

    def start_after(self, epoch: int) -> int | None:
        """Return the log offset from which records belong to later epochs; None if there is no later one."""
        return next((start for number_, start in self.pairs if number_ > epoch), None)


def ordered(members: Members, read_from: ReadFrom) -> list[str]:
    """Return the addresses to read from, in order of preference.

    Raises:
        NotConnected: the group has no such member.
    """
    slaves = [address for broker_id, address in sorted(members.items()) if broker_id != MASTER_ID]
    master = [members[MASTER_ID]] if MASTER_ID in members else []
    chosen = {ReadFrom.ANY: slaves + master, ReadFrom.SLAVE: slaves, ReadFrom.MASTER: master + slaves}[read_from]
    if not chosen:
        raise NotConnected("no slave is registered", hint="readFrom=any reads the master where there is no slave")
    return chosen


# Starts and ends of queues.


def find_ends(layout: QueueLayout, read_from: ReadFrom) -> Steps[dict[MessageQueue, QueueEnd]]:
    """Return the end of each queue.

    Raises:
        NetworkError: no readable member of a broker group answers.
        RemoteError: a response is malformed.
    """
    found: dict[MessageQueue, QueueEnd] = {}
    if read_from is not ReadFrom.SLAVE:
        found = yield from _ends_by_topic(layout)
    rest = [queue for queue in layout.queues if queue not in found]
    operations = [_end_of(queue, layout.members[queue.broker_name], read_from) for queue in rest]
    found |= zip(rest, (yield from run_together(operations)), strict=True)
    return found


def _ends_by_topic(layout: QueueLayout) -> Steps[dict[MessageQueue, QueueEnd]]:
    """Return the ends that masters tell for many topics at once; Java brokers tell none so."""
    of_brokers: dict[str, dict[str, list[MessageQueue]]] = {}
    for queue in layout.queues:
        of_brokers.setdefault(queue.broker_name, {}).setdefault(queue.topic, []).append(queue)
    operations = [
        _ends_of_topics(layout.members[name][MASTER_ID], topics)
        for name, topics in of_brokers.items()
        if len(topics) >= TOPICS_MIN and MASTER_ID in layout.members[name]
    ]
    found: dict[MessageQueue, QueueEnd] = {}
    for ends in (yield from run_together(operations)):
        found |= ends
    return found


def _ends_of_topics(master: str, topics: Mapping[str, list[MessageQueue]]) -> Steps[dict[MessageQueue, QueueEnd]]:
    """Return the ends of the queues of topics, as far as their master tells them at once."""
    found: dict[MessageQueue, QueueEnd] = {}
    left = list(topics)
    while left:
        parts = [left[start : start + TOPICS_PER_REQUEST] for start in range(0, len(left), TOPICS_PER_REQUEST)]
        first = [] if found else parts[:1]  # a master that does not know the request gets one only
        left = []
        for some in (first, parts[len(first) :]):
            answers = yield from ask_all([Invoke(master, _ends_request(part)) for part in some])
            for part, answer in zip(some, answers, strict=True):
                if not isinstance(answer, Command) or answer.code != ResponseCode.SUCCESS:
                    return found
                ends = json_object(answer).get("ends")
                if not isinstance(ends, list) or not ends:
                    return found
                left += part[len(ends) :]
                for topic, of_topic in zip(part, ends, strict=False):
                    known = of_topic or ()
                    found |= {
                        queue: QueueEnd(known[queue.queue_id], is_final=True)
                        for queue in topics[topic]
                        if queue.queue_id < len(known)
                    }
    return found


def _ends_request(topics: Sequence[str]) -> Command:
    return request(RequestCode.TANDEM_QUEUE_ENDS, json.dumps({"topics": topics}).encode())


def _end_of(queue: MessageQueue, members: Members, read_from: ReadFrom) -> Steps[QueueEnd]:
    addresses = [address for id_, address in members.items() if id_ != MASTER_ID]
    answers: list[Answer] = []
    if read_from is not ReadFrom.SLAVE and MASTER_ID in members:
        master = members[MASTER_ID]
        answers = yield from ask_all([Invoke(master, _offset_request(queue, RequestCode.GET_MAX_OFFSET))])
        (answer,) = answers
        if isinstance(answer, Command):
            if answer.code != ResponseCode.NO_PERMISSION:
                return QueueEnd(_offset(answer), is_final=True)
            addresses.append(master)
    spans = yield from find_spans(queue, addresses)
    offsets = [span.high for span in spans if isinstance(span, QueueSpan)]
    if not offsets:
        raise _no_answer(f"no member of {queue.broker_name} returned the end of {queue.topic}", [*spans, *answers])
    return QueueEnd(max(offsets), is_final=False)


def _no_answer(what: str, answers: Sequence[object]) -> NetworkError:
    """Return the error of a broker group whose members all failed: NotConnected if no connection could be opened."""
    errors = [answer for answer in answers if isinstance(answer, TandemError)]
    kind = NotConnected if errors and all(isinstance(error, NotConnected) for error in errors) else NetworkError
    return kind(f"{what}: {errors[0] if errors else 'there is no member to ask'}")


def _offset(answer: Command) -> int:
    return max(0, number(checked(answer), "offset"))


def find_starts(layout: QueueLayout, read_from: ReadFrom) -> Steps[dict[MessageQueue, int]]:
    """Return the offset of the first message of each queue, on the member that has the most.

    Raises: as `find_ends`.
    """
    addresses = {
        name: ordered(layout.members[name], read_from) for name in {queue.broker_name for queue in layout.queues}
    }
    operations = [_start_of(queue, addresses[queue.broker_name]) for queue in layout.queues]
    return dict(zip(layout.queues, (yield from run_together(operations)), strict=True))


def _start_of(queue: MessageQueue, addresses: Sequence[str]) -> Steps[int]:
    code = RequestCode.GET_MIN_OFFSET
    answers = yield from ask_all([Invoke(address, _offset_request(queue, code)) for address in addresses])
    known = [answer for answer in answers if isinstance(answer, Command)]
    if not known:
        raise _no_answer(f"no member of {queue.broker_name} returned the start of {queue.topic}", answers)
    lows = {None if answer.code == ResponseCode.NO_PERMISSION else _offset(answer) for answer in known}
    if len(lows) == 1 and None not in lows:
        return lows.pop() or 0
    # The start of an empty queue says nothing.
    spans = yield from find_spans(queue, addresses)
    if not any(isinstance(span, QueueSpan) for span in spans):
        raise _no_answer(f"no member of {queue.broker_name} returned the start of {queue.topic}", spans)
    return min((span.low for span in spans if isinstance(span, QueueSpan) and span.high > 0), default=0)


def find_spans(queue: MessageQueue, addresses: Sequence[str]) -> Steps[list[QueueSpan | TandemError]]:
    """Return the span of a queue on each of some members, or the error of the member.

    A member that serves no consumers (a slave of a group with a registry) is asked by a replica read.

    Raises:
        RemoteError: a response is malformed.
    """
    codes = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
    answers = yield from ask_all(
        [Invoke(address, _offset_request(queue, code)) for address in addresses for code in codes]
    )
    spans: list[QueueSpan | TandemError] = []
    for address, low, high in zip(addresses, answers[0::2], answers[1::2], strict=True):
        if not isinstance(low, Command) or not isinstance(high, Command):
            spans.append(next(bound for bound in (low, high) if isinstance(bound, TandemError)))
        elif ResponseCode.NO_PERMISSION in (low.code, high.code):
            spans.append((yield from _replica_span(queue, address)))
        else:
            spans.append(QueueSpan(_offset(low), _offset(high)))
    return spans


def _replica_span(queue: MessageQueue, address: str) -> Steps[QueueSpan | TandemError]:
    code = RequestCode.TANDEM_REPLICA_PULL
    try:
        answer = yield Invoke(address, pull_request(queue, BEYOND, 1, code=code))
    except NetworkError as error:
        return error
    if "maxOffset" not in answer.fields:
        return refusal(answer)
    return QueueSpan(number(answer, "minOffset"), number(answer, "maxOffset"))


def _offset_request(queue: MessageQueue, code: RequestCode) -> Command:
    return request(code, topic=queue.topic, queueId=queue.queue_id, bname=queue.broker_name)


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
        message = yield from _first_from(queue, middle, addresses)
        if message is None or message.queue_offset >= end or message.store_ms >= wall_ms:
            end = middle
        else:
            start = message.queue_offset + 1
    return end


def _first_from(queue: MessageQueue, offset: int, addresses: Sequence[str]) -> Steps[StoredMessage | None]:
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


def pull_request(
    queue: MessageQueue,
    offset: int,
    count: int,
    expression: str = "*",
    kind: str = "TAG",
    group: str = TOOLS_GROUP,
    code: RequestCode = RequestCode.PULL_MESSAGE,
    *,
    bulk: bool = False,
) -> Command:
    """Return a pull request that is answered at once and belongs to no subscription; with TANDEM_REPLICA_PULL to no
    group either.

    Args:
        bulk: whether a broker of TandemQ may return more messages than its consumers get at once; others ignore it.
    """
    return request(
        code,
        consumerGroup=group,
        topic=queue.topic,
        queueId=queue.queue_id,
        queueOffset=offset,
        maxMsgNums=count,
        sysFlag=SUBSCRIPTION,
        commitOffset=0,
        suspendTimeoutMillis=0,
        subscription=expression,
        subVersion=0,
        expressionType=kind,
        bname=queue.broker_name,
        bulk="true" if bulk else None,
    )


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """First offsets and ends of queues."""

    starts: Mapping[MessageQueue, int]
    ends: Mapping[MessageQueue, QueueEnd]

    def low(self, queue: MessageQueue) -> int:
        """Return the first offset of a queue."""
        return self.starts[queue]

    def high(self, queue: MessageQueue) -> int:
        """Return the end of a queue, which is not before its first offset."""
        return max(self.starts.get(queue, 0), self.ends[queue].offset)


def find_limits(layout: QueueLayout, read_from: ReadFrom, bounds: Collection[Bound]) -> Steps[QueueLimits]:
    """Return the limits of all queues that some starts or ends of a query need; raises as `find_ends`."""
    starts = ends = {}
    if any(bound is not Edge.LATEST for bound in bounds):
        starts = yield from find_starts(layout, read_from)
    if any(bound is not Edge.EARLIEST for bound in bounds):
        ends = yield from find_ends(layout, read_from)
    return QueueLimits(starts, ends)


def find_position(
    routes: Routes, layout: QueueLayout, limits: QueueLimits, bound: Bound, options: SourceOptions, *, is_start: bool
) -> Steps[dict[MessageQueue, int]]:
    """Resolve the start or end of a query to an offset of each queue.

    Queues that a position does not name are read from their start, or to their end.

    Raises:
        ConfigError: a starting time is later than all messages of a queue, and the options do not allow this.
        NetworkError, RemoteError: brokers do not answer, or refuse.
    """
    default = EARLIEST if is_start else LATEST
    named = bound.offsets if isinstance(bound, Position) else {}
    if isinstance(bound, Edge):
        default = EARLIEST if bound is Edge.EARLIEST else LATEST
    times = _times(layout, bound)
    searches = [
        find_offset_at(routes, layout, queue, wall_ms, limits.low(queue), limits.high(queue), options.read_from)
        for queue, wall_ms in times.items()
    ]
    offsets = dict(zip(times, (yield from run_together(searches, MESSAGES_AT_ONCE)), strict=True))
    for queue, offset in offsets.items():
        if is_start and options.needs_match and offset == limits.high(queue):
            name = f"{queue.topic} {queue.broker_name} queue {queue.queue_id}"
            raise ConfigError(
                f"{name} has no message stored at {times[queue]} or later",
                hint="startingOffsetsByTimestampStrategy=latest starts at its end",
            )
    for queue in layout.queues:
        if queue not in times:
            wanted = named.get(queue, default)
            offsets[queue] = (
                limits.low(queue) if wanted == EARLIEST else limits.high(queue) if wanted == LATEST else wanted
            )
    return offsets


def _times(layout: QueueLayout, bound: Bound) -> dict[MessageQueue, int]:
    if isinstance(bound, StoreTime):
        return dict.fromkeys(layout.queues, bound.wall_ms)
    times = bound.wall_ms if isinstance(bound, StoreTimes) else {}
    return {queue: times[queue] for queue in layout.queues if queue in times}


def check_named(layout: QueueLayout, bound: Bound, option: str) -> None:
    """Refuse a bound that names a queue which the query does not read.

    Raises:
        ConfigError: there is such a queue; names those that the query reads.
    """
    named = bound.offsets if isinstance(bound, Position) else bound.wall_ms if isinstance(bound, StoreTimes) else {}
    selected = set(layout.queues)
    for queue in named:
        if queue not in selected:
            near = [candidate for candidate in layout.queues if candidate.topic == queue.topic]
            raise ConfigError(
                f"{option}: {queue.topic!r}: {queue.broker_name!r}: '{queue.queue_id}' is not a queue of this query",
                hint=f"of {queue.topic} it reads {', '.join(f'{q.broker_name} {q.queue_id}' for q in near) or 'none'}",
            )


# Epochs of a group's log.


def find_epochs(layout: QueueLayout, read_from: ReadFrom) -> Steps[dict[str, Epochs]]:
    """Return the epochs of each broker group: from its master or, if that is down or only slaves are read, from the
    slave with the latest one.

    A group that returns no epochs has none: RocketMQ brokers have epochs in controller mode only.

    Raises:
        ProtocolError: a response is malformed.
    """
    names = sorted({queue.broker_name for queue in layout.queues})
    found = yield from run_together([_epochs_of(layout.members[name], read_from) for name in names])
    return dict(zip(names, found, strict=True))


def _epochs_of(members: Members, read_from: ReadFrom) -> Steps[Epochs]:
    addresses = [address for id_, address in members.items() if id_ != MASTER_ID or read_from is not ReadFrom.SLAVE]
    began = yield from current_time()
    answers = yield from ask_all(
        [Invoke(address, request(RequestCode.GET_BROKER_EPOCH_CACHE)) for address in addresses]
    )
    took_ms = (yield from current_time()).mono_ms - began.mono_ms
    responses = {
        address: answer for address, answer in zip(addresses, answers, strict=True) if isinstance(answer, Command)
    }
    if members.get(MASTER_ID) in responses:
        return Epochs(_pairs(responses[members[MASTER_ID]]), is_final=True, answer_ms=took_ms)
    found = [Epochs(_pairs(answer), answer_ms=took_ms) for answer in responses.values()]
    return max(found, key=lambda epochs: epochs.epoch, default=Epochs())


def _pairs(answer: Command) -> tuple[tuple[int, int], ...]:
    if answer.code != ResponseCode.SUCCESS:
        return ()
    try:
        pairs = [(int(item["epoch"]), int(item["startOffset"])) for item in json_object(answer)["epochList"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the epochs of a log cannot be read: {error!r}") from error
    return tuple(sorted(pairs))


def find_rewritten(
    layout: QueueLayout, position: Position, epochs: Mapping[str, Epochs], read_from: ReadFrom
) -> Steps[list[MessageQueue]]:
    """Return the queues whose messages before a position have changed, because the log was truncated and rewritten.

    The criterion is the epoch of the message before the position: it is later than the epoch in which the position was
    taken. If that message is gone, or not yet copied to a slave, the queue counts as unchanged. The master is asked
    first, unless only slaves are read.

    Raises:
        NetworkError, RemoteError: brokers do not answer, or refuse.
    """
    first = ReadFrom.SLAVE if read_from is ReadFrom.SLAVE else ReadFrom.MASTER
    starts: dict[MessageQueue, int] = {}
    """Log offsets from which records belong to a later epoch."""
    for queue in position.offsets:
        epoch = position.epoch(queue.broker_name)
        later = epochs.get(queue.broker_name, Epochs()).start_after(epoch) if epoch else None
        if later is not None and position.offsets[queue] > 0:
            starts[queue] = later
    operations = [
        _message_before(queue, position.offsets[queue], ordered(layout.members[queue.broker_name], first))
        for queue in starts
    ]
    messages = yield from run_together(operations, MESSAGES_AT_ONCE)
    return [
        queue
        for (queue, later), message in zip(starts.items(), messages, strict=True)
        if message is not None and message.log_offset >= later
    ]


def _message_before(queue: MessageQueue, offset: int, addresses: Sequence[str]) -> Steps[StoredMessage | None]:
    """Return the message before an offset, from the first member that has it; None if no answering member has it."""
    failures: list[NetworkError] = []
    for address in addresses:
        try:
            message = yield from _first_from(queue, offset - 1, [address])
        except NetworkError as error:
            failures.append(error)
            continue
        if message is not None and message.queue_offset < offset:
            return message
    if len(failures) == len(addresses):
        raise failures[0]
    return None


def register_group(routes: Routes, group: str, position: Position) -> Steps[None]:
    """Register a consumer group with brokers that create groups automatically: a pull does it.

    Brokers list the offsets of known groups only; RocketMQ 5 also accepts commits of known groups only.

    Raises:
        NetworkError: a broker group does not answer.
    """
    first = {queue.broker_name: (queue, offset) for queue, offset in sorted(position.offsets.items(), reverse=True)}
    for broker_name, (queue, offset) in first.items():
        yield from ask_member(routes, broker_name, lambda: pull_request(queue, offset, 1, group=group))  # noqa: B023


def commit_offsets(routes: Routes, group: str, position: Position) -> Steps[None]:
    """Commit the offsets of a consumer group.

    Raises:
        NetworkError, RemoteError: an offset could not be committed; others may have been.
    """
    yield from run_together([_commit_offset(routes, group, *entry) for entry in position.offsets.items()])


def _commit_offset(routes: Routes, group: str, queue: MessageQueue, offset: int) -> Steps[None]:
    checked((yield from ask_member(routes, queue.broker_name, lambda: update_offset_request(group, queue, offset))))
