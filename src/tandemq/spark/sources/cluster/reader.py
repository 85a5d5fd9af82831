"""Reading ranges of queues: whole records as brokers hold them, in order, and every one of them.

    QueueRange [start, end) ─► pull from the best member ─► records, cut at `end` ─► next pull
         no answer, lags, or does not have them ─► the next member ─► all of them: wait, look up the route, again
         deleted everywhere, or a number is missing ─► OffsetGone; or passed over, if loss is accepted
         nobody gives the next record in time ─► an error; never fewer rows

Pulls are plain ones, of no consumer group, answered at once; a member that serves no consumers is asked for a replica
read instead. Several queues are pulled at the same time, and while one answer is decoded the next is on its way.
Records come queue by queue all the same, so that a batch that is repeated has its rows in the same order.

Source: docs/guides/pipeline.md, "Reading"; docs/reference/requests.md, "PULL_MESSAGE", "all codes".
"""

import logging
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from struct import Struct

from tandemq.client.admin.cluster import topic_route
from tandemq.client.core.operations import Invoke, Steps, current_time, number, pause, refusal
from tandemq.client.core.routes import MASTER_ID, Routes
from tandemq.codec.record.record import RECORD_BYTES_MIN, parse_record, property_value
from tandemq.errors import NetworkError, OffsetGone, ProtocolError, RemoteError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.spark.runtime.client_pool import Asker, Story
from tandemq.spark.sources.cluster.options import ReadFrom
from tandemq.spark.sources.cluster.plan import QueueRange
from tandemq.spark.sources.cluster.resolve import Members, ordered, pull_request

log = logging.getLogger(__name__)
PULL_TIMEOUT_MS = 5_000
LAG_PAUSE_MS = 50
PULLED_AT_ONCE = 8
"""Queues of one task that are pulled at the same time."""
HELD_BYTES_MAX = 16 << 20
"""Of answers that wait until the queues before theirs are read; with so many no further ones are asked for."""
_head = Struct(">i16xq").unpack_from
FINAL_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    }
)
"""Refusals that waiting does not change."""
WAS_REMOVING = "MESSAGE_WAS_REMOVING"
"""The remark of RocketMQ's brokers while the log file is deleted already and the queue's entries are not."""


@dataclass(frozen=True, slots=True)
class ReadHow:
    """How tasks read; travels to them."""

    name_servers: str
    read_from: ReadFrom = ReadFrom.ANY
    fail_on_data_loss: bool = True
    expression: str = "*"
    expression_type: str = "TAG"
    tags: frozenset[str] | None = None
    pull_messages: int = 1_000
    timeout_ms: int = 30_000

    @property
    def is_filtered(self) -> bool:
        """Whether some messages are left out on purpose, so that a missing number says nothing."""
        return self.tags is not None or self.expression_type != "TAG"


@dataclass(frozen=True, slots=True)
class PulledRecords:
    """Whole records of a range, one behind the other."""

    range: QueueRange
    data: bytes
    count: int


@dataclass(slots=True)
class _Reading:
    """How far one range is, and what its members said of the next message."""

    range: QueueRange
    members: Members
    position: int
    deleted_before: dict[str, int] = field(default_factory=dict)
    """By address: where the queue begins there, behind the position."""
    ends_at: dict[str, int] = field(default_factory=dict)
    """By address: where the queue ends there, before the range does."""
    failures: dict[str, TandemError] = field(default_factory=dict)
    replicas: set[str] = field(default_factory=set)
    """Addresses that answer replica reads and no plain pulls, as they serve no consumers."""

    @property
    def name(self) -> str:
        """For people."""
        queue = self.range.queue
        return f"{queue.topic} {queue.broker_name} queue {queue.queue_id}"

    def forget(self) -> None:
        """A new message is next, or a new round begins."""
        self.deleted_before.clear()
        self.ends_at.clear()
        self.failures.clear()


def read_ranges(
    asker: Asker, how: ReadHow, ranges: Sequence[QueueRange], members: Mapping[str, Members]
) -> Iterator[PulledRecords]:
    """All records of some ranges, one range behind the other, in the same order whenever they are read again: rows
    get unique keys by their number (`spark.sources.cluster.sink`).

    Raises:
        OffsetGone: messages are gone, and loss is not accepted.
        NetworkError: nobody gave the next message in time.
        RemoteError: the brokers refuse.
    """
    readings = [_Reading(one, members.get(one.queue.broker_name, {}), one.start) for one in ranges]
    under_way: dict[Future[tuple[bytes, int] | None], int] = {}
    begun, paused, over = 0, set[int](), set[int]()
    held: dict[int, deque[PulledRecords]] = defaultdict(deque)
    """What came before its turn, by range."""
    held_bytes = 0
    for at in range(len(readings)):
        while True:
            for one in [*sorted(paused), *range(begun, min(len(readings), begun + PULLED_AT_ONCE))]:
                if one == at or (len(under_way) < PULLED_AT_ONCE and held_bytes < HELD_BYTES_MAX):
                    under_way[asker.begin(_next_of(how, readings[one]))] = one
                    paused.discard(one)
                    begun = max(begun, one + 1)
            while held[at]:
                pulled = held[at].popleft()
                held_bytes -= len(pulled.data)
                yield pulled
            if at in over:
                break
            done, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                one = under_way.pop(future)
                found = future.result()
                if found is not None and found[1]:
                    held[one].append(PulledRecords(readings[one].range, *found))
                    held_bytes += len(found[0])
                is_over = found is None or readings[one].position >= readings[one].range.end
                (over if is_over else paused).add(one)


def _next_of(how: ReadHow, reading: _Reading) -> Story[tuple[bytes, int] | None]:
    return lambda routes: next_records(routes, how, reading)


def next_records(routes: Routes, how: ReadHow, reading: _Reading) -> Steps[tuple[bytes, int] | None]:
    """The next records of a range and how many; None at its end."""
    until_ms = (yield from current_time()).mono_ms + how.timeout_ms
    while reading.position < reading.range.end:
        reading.forget()
        for address in _addresses(routes, how, reading):
            found = yield from _ask_member(how, reading, address)
            if found is not None:
                return found
            if reading.position >= reading.range.end:
                return None
        _judge(routes, how, reading)
        if (yield from current_time()).mono_ms >= until_ms:
            if _ends_for_good(routes, reading):
                _lost(
                    how, reading, reading.position, reading.range.end, "were there and are no more: the log is shorter"
                )
                return None
            raise NetworkError(
                f"offset {reading.position} of {reading.name} is not given within {how.timeout_ms} ms: "
                + ("; ".join(_said(reading)) or "no member of the group may be read")
            )
        yield from pause(LAG_PAUSE_MS)
        try:
            yield from topic_route(routes, reading.range.queue.topic)
        except (NetworkError, RemoteError) as error:
            reading.failures["name servers"] = error
    return None


def _ends_for_good(routes: Routes, reading: _Reading) -> bool:
    """Whether the master itself says that the queue ends before the range does."""
    members = {**reading.members, **routes.members(reading.range.queue.broker_name)}
    return members.get(MASTER_ID, "") in reading.ends_at


def _addresses(routes: Routes, how: ReadHow, reading: _Reading) -> list[str]:
    """Members in the order to ask; what the name servers tell now goes before what was told to the planner."""
    members = {**reading.members, **routes.members(reading.range.queue.broker_name)}
    try:
        addresses = ordered(members, how.read_from)
    except NetworkError as error:
        reading.failures[how.read_from.value] = error
        return []
    return sorted(addresses, key=routes.is_down)


def _said(reading: _Reading) -> list[str]:
    return (
        [f"{address}: {error}" for address, error in reading.failures.items()]
        + [f"{address} has it up to {end} only" for address, end in reading.ends_at.items()]
        + [f"{address} has it from {start} only" for address, start in reading.deleted_before.items()]
    )


def _ask_member(how: ReadHow, reading: _Reading, address: str) -> Steps[tuple[bytes, int] | None]:
    """Ask one member; None if it did not give records. The position moves on over what is filtered out."""
    queue, position = reading.range.queue, reading.position
    # Without a filter every offset is a message: no more than the range has is asked for.
    count = how.pull_messages if how.is_filtered else min(how.pull_messages, reading.range.end - position)
    code = RequestCode.TANDEM_REPLICA_PULL if address in reading.replicas else RequestCode.PULL_MESSAGE
    command = pull_request(queue, position, count, how.expression, how.expression_type, code=code)
    try:
        answer: Command = yield Invoke(address, command, min(how.timeout_ms, PULL_TIMEOUT_MS))
    except NetworkError as error:
        reading.failures[address] = error
        return None
    if answer.code == ResponseCode.NO_PERMISSION and address not in reading.replicas:
        reading.replicas.add(address)
        return (yield from _ask_member(how, reading, address))
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        reading.replicas.discard(address)  # RocketMQ's: it may serve consumers again
    if answer.code == ResponseCode.SUCCESS:
        return _take(how, reading, answer)
    following = int(answer.fields.get("nextBeginOffset", position))
    if following > position and _is_deleted(answer, position):
        reading.deleted_before[address] = following
    elif following > position and answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
        _pass_over(how, reading, following)
        return b"", 0
    elif answer.code in (
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
    ):
        reading.ends_at[address] = min(following, position)
    else:
        reading.failures[address] = refusal(answer)
    return None


def _is_deleted(answer: Command, position: int) -> bool:
    """Whether a member had the message at a position once. Slaves of RocketMQ 5 say so in other words than masters."""
    if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
        return answer.remark == WAS_REMOVING or int(answer.fields.get("minOffset", 0)) > position
    return answer.code == ResponseCode.PULL_OFFSET_MOVED


def _take(how: ReadHow, reading: _Reading, answer: Command) -> tuple[bytes, int]:
    data, following = answer.body, number(answer, "nextBeginOffset")
    stop = count = at = 0
    expected = reading.position
    kept: list[bytes] = []
    while len(data) - at >= RECORD_BYTES_MIN:
        size, queue_offset = _head(data, at)
        if size < RECORD_BYTES_MIN or at + size > len(data):
            raise ProtocolError(f"{reading.name}: the record at byte {at} of an answer says it has {size} bytes")
        if queue_offset >= reading.range.end:
            break
        if queue_offset < expected:
            raise ProtocolError(f"{reading.name}: asked for offset {expected}, got {queue_offset}")
        if queue_offset > expected and not how.is_filtered:
            _lost(how, reading, expected, queue_offset, "are missing between others")
        if how.tags is None or _tag_of(data, at, size) in how.tags:
            kept.append(data[at : at + size])
            count += 1
        expected = queue_offset + 1
        at += size
        stop = at
    if following <= reading.position:
        raise ProtocolError(f"{reading.name}: an answer with messages goes on at {following}, from {reading.position}")
    reached = stop < len(data)
    reading.position = reading.range.end if reached else min(following, reading.range.end)
    if not reached and not how.is_filtered and expected < reading.position:
        _lost(how, reading, expected, reading.position, "are missing behind others")
    return (data[:stop] if how.tags is None else b"".join(kept)), count


def _tag_of(data: bytes, at: int, size: int) -> str:
    record = parse_record(data, at, at + size)
    value = property_value(record.properties, b"TAGS") if not isinstance(record, str) else None
    return (value or b"").decode("utf-8", "replace")


def _pass_over(how: ReadHow, reading: _Reading, following: int) -> None:
    """The member gives no message before `following`: the filter left them out; without one they are gone."""
    if how.is_filtered:
        reading.position = min(following, reading.range.end)
    else:
        _deleted(how, reading, following)


def _deleted(how: ReadHow, reading: _Reading, following: int) -> None:
    """What is before `following` is no longer there; with a filter nobody knows how much of it was wanted."""
    following = min(following, reading.range.end)
    _lost(how, reading, reading.position, following, "are no longer there")
    reading.position = following


def _judge(routes: Routes, how: ReadHow, reading: _Reading) -> None:
    """All members were asked, and none gave anything: is it gone, refused, or only late?"""
    members = {**reading.members, **routes.members(reading.range.queue.broker_name)}
    master = members.get(MASTER_ID, "")
    if reading.deleted_before and not reading.ends_at and not reading.failures:
        _deleted(how, reading, min(reading.deleted_before.values()))
        return
    is_silent = any(isinstance(error, NetworkError) for error in reading.failures.values())
    if is_silent and how.fail_on_data_loss:
        # Who is silent now may have it, and come back.
        return
    if master in reading.deleted_before:
        # A slave that lags so far will never get what its master has deleted.
        _deleted(how, reading, reading.deleted_before[master])
    elif reading.failures and not reading.ends_at and not reading.deleted_before:
        errors = list(reading.failures.values())
        if all(error.code in FINAL_CODES for error in errors):
            raise errors[0]


def _lost(how: ReadHow, reading: _Reading, start: int, end: int, why: str) -> None:
    text = f"{end - start} messages of {reading.name}, offsets {start} to {end - 1}, {why}"
    if how.fail_on_data_loss:
        raise OffsetGone(text, hint="failOnDataLoss=false goes on without them")
    log.warning("%s: passed over", text)
