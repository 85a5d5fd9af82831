"""Resolution of a query's options on a running cluster: queues, start and end offsets, offsets by time, epochs.

All functions are client operations (tandemq.client.core.operations). The end of a queue comes from the master, whose
answer is final. If the master is down, it comes from the slaves, which may lag: such an end may be less than an offset
read before, and that is no loss.

Source: docs/guides/pipeline.md, "Offsets"; docs/reference/requests.md.
"""

import re
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tandemq.client.admin.cluster import cluster_info, topic_names, topic_route
from tandemq.client.admin.queries import TOOLS_GROUP
from tandemq.client.consumer.offsets.lookup import ask_member, time_offset
from tandemq.client.core.operations import Invoke, Steps, ask_all, checked, json_object, number, refusal, request
from tandemq.client.core.requests import update_offset_request
from tandemq.client.core.routes import MASTER_ID, Routes
from tandemq.codec.record.record import decode_messages
from tandemq.errors import ConfigError, NetworkError, NoRoute, NotConnected, ProtocolError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue, StoredMessage
from tandemq.model.topic import SYSTEM_TOPICS
from tandemq.spark.sources.cluster.absence import check_registered, unknown_topic
from tandemq.spark.sources.cluster.offsets import EARLIEST, LATEST, Position
from tandemq.spark.sources.cluster.options import Bound, Edge, ReadFrom, SourceOptions, StoreTime, StoreTimes

SUBSCRIPTION = 4
WALK_MESSAGES = 32
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


@dataclass(frozen=True, slots=True)
class QueueEnd:
    """End offset of a queue. `is_final`: whether it comes from the master."""

    offset: int
    is_final: bool


class QueueSpan(NamedTuple):
    """Minimum and maximum offset of a queue on one member; `high` is exclusive."""

    low: int
    high: int


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


def find_layout(
    routes: Routes, options: SourceOptions, *, known: Sequence[str] = (), expected: Collection[str] = ()
) -> Steps[QueueLayout]:
    """Return the queues that the options select.

    Args:
        known: topics that existed before: one that no longer exists is left out.
        expected: broker groups that had queues before.
    Raises:
        ConfigError: a topic, broker or queue does not exist; names the existing ones.
        NoRoute: none of the brokers that have a topic, or may have it, is registered.
        NetworkError: no name server answers, or none knows a member of an expected group: it may come back.
    """
    topics: Sequence[str] = options.topics or tuple(options.assigned)
    if options.pattern is not None:
        names = yield from topic_names(routes)
        topics = [name for name in names if name not in SYSTEM_TOPICS and re.fullmatch(options.pattern, name)]
    queues: list[MessageQueue] = []
    members: dict[str, Members] = {}
    clusters: dict[str, str] = {}
    for topic in topics:
        try:
            route = yield from topic_route(routes, topic)
        except NoRoute:
            if topic in known or options.pattern is not None:
                continue
            raise (yield from unknown_topic(routes, topic, options)) from None
        found = route.subscribe_queues()
        if options.assigned:
            wanted = options.assigned[topic]
            if topic in known:  # what is missing now is waited for, or is loss
                wanted = {name: numbers for name, numbers in wanted.items() if name in route.brokers}
            yield from check_registered(routes, topic, set(wanted) - set(route.brokers), options)
            found = _assigned(topic, found, wanted)
        queues += found
        members |= {name: group.members for name, group in route.brokers.items()}
        clusters |= {name: group.cluster for name, group in route.brokers.items() if group.cluster}
    absent = sorted(set(expected) - set(members))
    if absent:
        registered = (yield from cluster_info(routes)).brokers
        away = [name for name in absent if name not in registered]
        if away:
            raise NetworkError(
                f"no member of {', '.join(away)} is registered at the name servers",
                hint="is it down? failOnDataLoss=false goes on without it",
            )
    return QueueLayout(tuple(sorted(queues)), members, clusters)


def _assigned(topic: str, found: list[MessageQueue], wanted: Mapping[str, tuple[int, ...]]) -> list[MessageQueue]:
    there: dict[str, list[int]] = {}
    for queue in found:
        there.setdefault(queue.broker_name, []).append(queue.queue_id)
    for broker_name, numbers in wanted.items():
        if broker_name not in there:
            raise ConfigError(f"assign: {topic!r} is not on {broker_name!r}", hint=f"it is on {', '.join(there)}")
        for number_ in numbers:
            if number_ not in there[broker_name]:
                raise ConfigError(
                    f"assign: {topic!r} has no queue {number_} on {broker_name!r}",
                    hint=f"it has 0 to {max(there[broker_name])}",
                )
    return [queue for queue in found if queue.queue_id in wanted.get(queue.broker_name, ())]


# Starts and ends of queues.


def find_ends(layout: QueueLayout, read_from: ReadFrom) -> Steps[dict[MessageQueue, QueueEnd]]:
    """Return the end of each queue.

    Raises:
        NetworkError: no readable member of a broker group answers.
        RemoteError: a response is malformed.
    """
    code = RequestCode.GET_MAX_OFFSET
    masters = {
        queue: layout.members[queue.broker_name][MASTER_ID]
        for queue in layout.queues
        if read_from is not ReadFrom.SLAVE and MASTER_ID in layout.members[queue.broker_name]
    }
    answers = yield from ask_all([Invoke(address, _offset_request(queue, code)) for queue, address in masters.items()])
    responses = dict(zip(masters, answers, strict=True))
    ends: dict[MessageQueue, QueueEnd] = {}
    for queue in layout.queues:
        answer = responses.get(queue)
        if isinstance(answer, Command) and answer.code != ResponseCode.NO_PERMISSION:
            ends[queue] = QueueEnd(_offset(answer), is_final=True)
            continue
        slaves = [address for id_, address in layout.members[queue.broker_name].items() if id_ != MASTER_ID]
        spans = yield from find_spans(
            queue, slaves if answer is None or not isinstance(answer, Command) else [*slaves, masters[queue]]
        )
        offsets = [one.high for one in spans if isinstance(one, QueueSpan)]
        if not offsets:
            raise _no_answer(f"no member of {queue.broker_name} returned the end of {queue.topic}", [*spans, answer])
        ends[queue] = QueueEnd(max(offsets), is_final=False)
    return ends


def _no_answer(what: str, answers: Sequence[object]) -> NetworkError:
    """Return the error of a broker group whose members all failed: NotConnected if no connection could be opened."""
    errors = [one for one in answers if isinstance(one, TandemError)]
    kind = NotConnected if errors and all(isinstance(one, NotConnected) for one in errors) else NetworkError
    return kind(f"{what}: {errors[0] if errors else 'there is no member to ask'}")


def _offset(answer: Command) -> int:
    return max(0, number(checked(answer), "offset"))


def find_starts(layout: QueueLayout, read_from: ReadFrom) -> Steps[dict[MessageQueue, int]]:
    """Return the offset of the first message of each queue, on the member that has the most.

    Raises: as `find_ends`.
    """
    starts: dict[MessageQueue, int] = {}
    for queue in layout.queues:
        spans = yield from find_spans(queue, ordered(layout.members[queue.broker_name], read_from))
        known = [one for one in spans if isinstance(one, QueueSpan)]
        if not known:
            raise _no_answer(f"no member of {queue.broker_name} returned the start of {queue.topic}", spans)
        # The start of an empty queue says nothing.
        starts[queue] = min((one.low for one in known if one.high > 0), default=0)
    return starts


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
            spans.append(next(one for one in (low, high) if isinstance(one, TandemError)))
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
        code, at = RequestCode.PULL_MESSAGE, offset
        while True:
            try:
                answer = yield Invoke(address, pull_request(queue, at, 1, code=code))
            except NetworkError as error:
                failure = error
                break
            following = int(answer.fields.get("nextBeginOffset", at))
            if answer.code == ResponseCode.NO_PERMISSION and code is RequestCode.PULL_MESSAGE:
                code = RequestCode.TANDEM_REPLICA_PULL
            elif answer.code == ResponseCode.SUCCESS:
                return decode_messages(answer.body, inflates=False)[0]
            elif answer.code in PASSING_CODES and following > at:
                at = following
            else:
                failure = failure if answer.code in ABSENT_CODES else refusal(answer)
                break
    if failure is not None:
        raise failure
    return None


def find_firsts(
    layout: QueueLayout, offsets: Mapping[MessageQueue, int], read_from: ReadFrom
) -> Steps[dict[MessageQueue, StoredMessage | None]]:
    """Return the first message at or after an offset of each queue, with few requests at the same time.

    None: the preferred members did not return it. This is no statement about the queue.
    """
    found: dict[MessageQueue, StoredMessage | None] = dict.fromkeys(offsets)
    for rank in range(2):
        for code in (RequestCode.PULL_MESSAGE, RequestCode.TANDEM_REPLICA_PULL):
            left = [queue for queue, message in found.items() if message is None]
            asked = {queue: at for queue in left if (at := _member(layout, queue, read_from, rank))}
            requests = [Invoke(at, pull_request(queue, offsets[queue], 1, code=code)) for queue, at in asked.items()]
            for queue, answer in zip(asked, (yield from ask_all(requests)), strict=True):
                if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                    found[queue] = decode_messages(answer.body, inflates=False)[0]
    return found


def _member(layout: QueueLayout, queue: MessageQueue, read_from: ReadFrom, rank: int) -> str | None:
    try:
        addresses = ordered(layout.members.get(queue.broker_name, {}), read_from)
    except NetworkError:
        return None
    return addresses[rank] if rank < len(addresses) else None


def _ask_offset_at(routes: Routes, queue: MessageQueue, wall_ms: int, start: int, end: int) -> Steps[int]:
    """As `find_offset_at`, with the search of the brokers.

    RocketMQ brokers return any of several messages of one millisecond, or a neighbour. The search is therefore for the
    millisecond before, followed by a scan message by message.

    Raises:
        NetworkError, RemoteError: brokers do not answer, or refuse.
    """
    at = max(start, min((yield from time_offset(routes, queue, max(0, wall_ms - 1))), end))
    while at < end:
        answer = yield from ask_member(routes, queue.broker_name, lambda: pull_request(queue, at, WALK_MESSAGES))  # noqa: B023
        if answer.code != ResponseCode.SUCCESS:
            following = int(answer.fields.get("nextBeginOffset", at))
            if answer.code == ResponseCode.PULL_NOT_FOUND or following <= at:
                return at
            at = following
            continue
        for message in decode_messages(answer.body, inflates=False):
            if message.store_ms >= wall_ms:
                return min(message.queue_offset, end)
        at = number(answer, "nextBeginOffset")
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


def find_position(
    routes: Routes, layout: QueueLayout, bound: Bound, read_from: ReadFrom, option: str, *, needs_match: bool = False
) -> Steps[Position]:
    """Resolve a start or end of a query to an offset of each queue.

    Queues that a position does not name are read from their start, or to their end.

    Args:
        needs_match: whether a time that is later than all messages of a queue is an error, instead of the queue's end.
    Raises:
        ConfigError: there is such a time.
        NetworkError, RemoteError: brokers do not answer, or refuse.
    """
    epochs = yield from find_epochs(layout, read_from)
    lows = yield from find_starts(layout, read_from)
    highs = {queue: end.offset for queue, end in (yield from find_ends(layout, read_from)).items()}
    is_start = option.startswith("starting")
    offsets: dict[MessageQueue, int] = {}
    for queue in layout.queues:
        low, high = lows[queue], max(lows[queue], highs[queue])
        wall_ms = bound.wall_ms if isinstance(bound, StoreTime) else None
        if isinstance(bound, StoreTimes):
            wall_ms = bound.wall_ms.get(queue)
        if wall_ms is not None:
            offsets[queue] = yield from find_offset_at(routes, layout, queue, wall_ms, low, high, read_from)
            if needs_match and offsets[queue] == high:
                name = f"{queue.topic} {queue.broker_name} queue {queue.queue_id}"
                raise ConfigError(
                    f"{name} has no message stored at {wall_ms} or later",
                    hint="startingOffsetsByTimestampStrategy=latest starts at its end",
                )
            continue
        if isinstance(bound, Position):
            wanted = bound.offsets.get(queue, EARLIEST if is_start else LATEST)
        elif isinstance(bound, Edge):
            wanted = {Edge.EARLIEST: EARLIEST, Edge.LATEST: LATEST}[bound]
        else:
            wanted = EARLIEST if is_start else LATEST
        offsets[queue] = {EARLIEST: low, LATEST: high}.get(wanted, wanted)
    named = bound.epochs if isinstance(bound, Position) else {}
    return Position(offsets, {name: named.get(name) or table.epoch for name, table in epochs.items() if table.epoch})


def find_start(routes: Routes, layout: QueueLayout, options: SourceOptions) -> Steps[Position]:
    """Resolve the start of a query; raises as `find_position`."""
    return find_position(
        routes, layout, options.starting, options.read_from, "startingOffsets", needs_match=options.needs_match
    )


def check_named(layout: QueueLayout, bound: Bound, option: str) -> None:
    """Refuse a bound that names a queue which the query does not read.

    Raises:
        ConfigError: there is such a queue; names those that the query reads.
    """
    named = bound.offsets if isinstance(bound, Position) else bound.wall_ms if isinstance(bound, StoreTimes) else {}
    for queue in named:
        if queue not in layout.queues:
            near = [one for one in layout.queues if one.topic == queue.topic]
            raise ConfigError(
                f"{option}: {queue.topic!r}: {queue.broker_name!r}: '{queue.queue_id}' is not a queue of this query",
                hint=f"of {queue.topic} it reads {', '.join(f'{q.broker_name} {q.queue_id}' for q in near) or 'none'}",
            )


# Epochs of a group's log.


@dataclass(frozen=True, slots=True)
class Epochs:
    """Epochs of a broker group's log as (epoch, first log offset), ascending; empty if it has none."""

    pairs: tuple[tuple[int, int], ...] = ()
    is_final: bool = False
    """Whether they come from the master: a slave that lags may not know the present one."""

    @property
    def epoch(self) -> int:
        """Present epoch; 0 if there is none."""
        return self.pairs[-1][0] if self.pairs else 0

    def at(self, log_offset: int) -> int:
        """Return the epoch of a record by its log offset; 0 if there is none."""
        at = bisect_right([start for _, start in self.pairs], log_offset)
        return self.pairs[at - 1][0] if at else 0

    def start_after(self, epoch: int) -> int | None:
        """Return the log offset from which records belong to later epochs; None if there is no later one."""
        return next((start for number_, start in self.pairs if number_ > epoch), None)


def find_epochs(layout: QueueLayout, read_from: ReadFrom) -> Steps[dict[str, Epochs]]:
    """Return the epochs of each broker group: from its master or, if that is down or only slaves are read, from the
    slave with the latest one.

    A group that returns no epochs has none: RocketMQ brokers have epochs in controller mode only.

    Raises:
        ProtocolError: a response is malformed.
    """
    found: dict[str, Epochs] = {}
    for name in sorted({queue.broker_name for queue in layout.queues}):
        members = layout.members[name]
        addresses = [at for id_, at in members.items() if id_ != MASTER_ID or read_from is not ReadFrom.SLAVE]
        answers = yield from ask_all([Invoke(at, request(RequestCode.GET_BROKER_EPOCH_CACHE)) for at in addresses])
        responses = {at: one for at, one in zip(addresses, answers, strict=True) if isinstance(one, Command)}
        if members.get(MASTER_ID) in responses:
            found[name] = Epochs(_pairs(responses[members[MASTER_ID]]), is_final=True)
        else:
            found[name] = max(
                (Epochs(_pairs(one)) for one in responses.values()), key=lambda one: one.epoch, default=Epochs()
            )
    return found


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
    rewritten: list[MessageQueue] = []
    for queue, offset in position.offsets.items():
        table = epochs.get(queue.broker_name, Epochs())
        later = table.start_after(position.epoch(queue.broker_name)) if position.epoch(queue.broker_name) else None
        if later is None or offset <= 0:
            continue
        message = yield from _message_before(queue, offset, ordered(layout.members[queue.broker_name], first))
        if message is not None and message.log_offset >= later:
            rewritten.append(queue)
    return rewritten


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
    for queue, offset in position.offsets.items():
        answer = yield from ask_member(routes, queue.broker_name, lambda: update_offset_request(group, queue, offset))  # noqa: B023
        checked(answer)
