"""Reader of queue ranges: complete records as stored by brokers, in queue order, none missing.

    QueueRange [start, end) ─► pull from the preferred member ─► records, cut at `end` ─► next pull
         no response, lag, or offset not available ─► next member ─► after the last one: pause, refresh the route, retry
         deleted everywhere, or a gap between offsets ─► OffsetGone; skipped if loss is accepted
         no member returns the next record in time ─► an error; never fewer rows

Pulls belong to no consumer group and are answered at once. A member that serves no consumers gets a replica read
instead. Several queues are pulled at the same time, and the next pull is in flight while a response is decoded. Records
are still returned queue by queue, so that a repeated batch has its rows in the same order.

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
from tandemq.client.core.requests import TOOLS_GROUP, pull_request
from tandemq.client.core.routes import MASTER_ID, Routes
from tandemq.client.credentials import ENVIRONMENT, Signer
from tandemq.codec.record.record import RECORD_BYTES_MIN, parse_record, property_value
from tandemq.config.tls import ClientTls
from tandemq.errors import NetworkError, OffsetGone, ProtocolError, RemoteError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.spark.runtime.client_pool import ClusterClient, Operation
from tandemq.spark.sources.cluster.absence import agreed_absence
from tandemq.spark.sources.cluster.entries import HEADS_PER_RESPONSE, PulledEntries, entries_request, heads_request
from tandemq.spark.sources.cluster.members import Members, ordered
from tandemq.spark.sources.cluster.options import ReadFrom
from tandemq.spark.sources.cluster.plan import QueueRange

log = logging.getLogger(__name__)
PULL_TIMEOUT_MS = 5_000
HEADS_FROM_BYTES = 16_384
"""Mean size of records from which on bodies are left out: of smaller ones, cutting costs more than sending."""
LAG_PAUSE_MS = 50
CONCURRENT_PULLS = 8
"""Queues of one task that are pulled at the same time."""
HELD_BYTES_MAX = 16 << 20
"""Memory budget for responses held until the queues before theirs are read; at the limit no more pulls are started."""
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
"""Response codes for which a retry is useless."""
WAS_REMOVING = "MESSAGE_WAS_REMOVING"
"""Remark of RocketMQ brokers when the log file has been deleted but the queue entries have not."""


@dataclass(frozen=True, slots=True)
class PullSettings:
    """Settings of pulls; serialized to tasks."""

    name_servers: str
    read_from: ReadFrom = ReadFrom.ANY
    fail_on_data_loss: bool = True
    expression: str = "*"
    expression_type: str = "TAG"
    tags: frozenset[str] | None = None
    pull_messages: int = 4_096
    timeout_ms: int = 30_000
    tls: ClientTls | None = None
    signer: Signer = ENVIRONMENT
    group: str = TOOLS_GROUP
    """Consumer group that pulls name; they have no effect on it."""
    takes_entries: bool = False
    """Whether entries of queues suffice for messages that no filter has to look at."""
    takes_heads: bool = False
    """Whether messages without their bodies suffice for them."""

    @property
    def is_filtered(self) -> bool:
        """Whether a filter leaves out messages, so that a gap between offsets is no loss."""
        return self.tags is not None or self.expression_type != "TAG"


@dataclass(frozen=True, slots=True)
class PulledRecords:
    """Complete, contiguous records of a range."""

    range: QueueRange
    data: bytes
    count: int


@dataclass(slots=True)
class _RangeState:
    """Read position of one range, and the members' responses for the next message."""

    range: QueueRange
    members: Members
    position: int
    deleted_before: dict[str, int] = field(default_factory=dict)
    """By address: first offset of the queue there, if it is after the position."""
    ends_at: dict[str, int] = field(default_factory=dict)
    """By address: end of the queue there, if it is before the end of the range."""
    failures: dict[str, TandemError] = field(default_factory=dict)
    replicas: set[str] = field(default_factory=set)
    """Addresses that answer only replica reads, because they serve no consumers."""
    without_entries: set[str] = field(default_factory=set)
    """Addresses that return no entries; they are pulled from."""
    without_heads: set[str] = field(default_factory=set)
    """Addresses that return no messages without their bodies, likewise."""
    record_bytes: int = 0
    """Mean size of the records of the last pull; 0 before it."""

    @property
    def name(self) -> str:
        """Description of the queue for messages."""
        queue = self.range.queue
        return f"{queue.topic} {queue.broker_name} queue {queue.queue_id}"

    def reset_responses(self) -> None:
        """Drop the members' responses, before a new round of pulls."""
        self.deleted_before.clear()
        self.ends_at.clear()
        self.failures.clear()


Pulled = PulledRecords | PulledEntries


def read_ranges(
    client: ClusterClient, how: PullSettings, ranges: Sequence[QueueRange], members: Mapping[str, Members]
) -> Iterator[Pulled]:
    """Yield all records of some ranges, or their entries where these suffice, range by range.

    The order is the same at every call, because rows get unique keys by their number (`spark.sources.cluster.sink`).

    Raises:
        OffsetGone: messages are gone, and loss is not accepted.
        NetworkError: no member returned the next message in time.
        RemoteError: the brokers refuse.
    """
    states = [
        _RangeState(queue_range, members.get(queue_range.queue.broker_name, {}), queue_range.start)
        for queue_range in ranges
    ]
    yield from _ConcurrentPulls(client, how, states).records()


class _ConcurrentPulls:
    """Pulls several ranges at the same time and returns their records range by range. Ranges are named by index."""

    def __init__(self, client: ClusterClient, how: PullSettings, states: Sequence[_RangeState]) -> None:
        self._client = client
        self._how = how
        self._states = states
        self._in_flight: dict[Future[Pulled | None], int] = {}
        self._first_unstarted = 0
        self._idle: set[int] = set()
        """Ranges that have been started and wait for their next pull."""
        self._finished: set[int] = set()
        self._held: dict[int, deque[Pulled]] = defaultdict(deque)
        """Records that arrived before the turn of their range."""
        self._held_bytes = 0

    def records(self) -> Iterator[Pulled]:
        for current in range(len(self._states)):
            while True:
                self._start_pulls(current)
                while self._held[current]:
                    pulled = self._held[current].popleft()
                    self._held_bytes -= len(pulled.data)
                    yield pulled
                if current in self._finished:
                    break
                self._wait_for_response()

    def _start_pulls(self, current: int) -> None:
        """Start pulls of idle and following ranges within the limits; the current range is always pulled."""
        unstarted = range(self._first_unstarted, min(len(self._states), self._first_unstarted + CONCURRENT_PULLS))
        for index in [*sorted(self._idle), *unstarted]:
            has_room = len(self._in_flight) < CONCURRENT_PULLS and self._held_bytes < HELD_BYTES_MAX
            if index == current or has_room:
                self._in_flight[self._client.start(_next_of(self._how, self._states[index]))] = index
                self._idle.discard(index)
                self._first_unstarted = max(self._first_unstarted, index + 1)

    def _wait_for_response(self) -> None:
        done, _ = wait(self._in_flight, return_when=FIRST_COMPLETED)
        for future in done:
            index = self._in_flight.pop(future)
            found, state = future.result(), self._states[index]
            if found is not None and found.count:
                self._held[index].append(found)
                self._held_bytes += len(found.data)
            is_finished = found is None or state.position >= state.range.end
            (self._finished if is_finished else self._idle).add(index)


def _next_of(how: PullSettings, reading: _RangeState) -> Operation[Pulled | None]:
    return lambda routes: next_records(routes, how, reading)


def next_records(routes: Routes, how: PullSettings, reading: _RangeState) -> Steps[Pulled | None]:
    """Pull the next records of a range; None at its end."""
    until_ms = (yield from current_time()).mono_ms + how.timeout_ms
    while reading.position < reading.range.end:
        reading.reset_responses()
        for address in _addresses(routes, how, reading):
            found = yield from _ask_member(how, reading, address)
            if found is not None:
                return found
            if reading.position >= reading.range.end:
                return None
        _handle_absence(routes, how, reading)
        if (yield from current_time()).mono_ms >= until_ms:
            if _ends_on_master(routes, reading):
                _lost(how, reading, reading.position, reading.range.end, "no longer exist: the log is shorter")
                return None
            raise NetworkError(
                f"no member returned offset {reading.position} of {reading.name} within {how.timeout_ms} ms: "
                + ("; ".join(_describe_responses(reading)) or "readFrom allows no member of the group")
            )
        yield from pause(LAG_PAUSE_MS)
        try:
            yield from topic_route(routes, reading.range.queue.topic)
        except (NetworkError, RemoteError) as error:
            reading.failures["name servers"] = error
    return None


def _ends_on_master(routes: Routes, reading: _RangeState) -> bool:
    """Return whether the queue ends before the range according to the master itself."""
    members = {**reading.members, **routes.members(reading.range.queue.broker_name)}
    return members.get(MASTER_ID, "") in reading.ends_at


def _addresses(routes: Routes, how: PullSettings, reading: _RangeState) -> list[str]:
    """Return members in the order to ask; the current route takes precedence over the planner's."""
    members = {**reading.members, **routes.members(reading.range.queue.broker_name)}
    try:
        addresses = ordered(members, how.read_from)
    except NetworkError as error:
        reading.failures[how.read_from.value] = error
        return []
    return sorted(addresses, key=routes.is_down)


def _describe_responses(reading: _RangeState) -> list[str]:
    return (
        [f"{address}: {error}" for address, error in reading.failures.items()]
        + [f"{address} has only offsets before {end}" for address, end in reading.ends_at.items()]
        + [f"{address} has only offsets from {start} on" for address, start in reading.deleted_before.items()]
    )


def _ask_member(how: PullSettings, reading: _RangeState, address: str) -> Steps[Pulled | None]:
    """Pull from one member; None if it returned no records. Advances the position past filtered messages."""
    queue, position = reading.range.queue, reading.position
    # Without a filter every offset is a message: request no more than the range has.
    count = how.pull_messages if how.is_filtered else min(how.pull_messages, reading.range.end - position)
    code = RequestCode.TANDEM_REPLICA_PULL if address in reading.replicas else RequestCode.PULL_MESSAGE
    expression, kind = how.expression, how.expression_type
    command = pull_request(
        queue, position, count, group=how.group, expression=expression, kind=kind, code=code, bulk=True
    )
    try:
        if how.takes_entries and not how.is_filtered and address not in reading.without_entries:
            entries = yield from _ask_entries(how, reading, address)
            if entries is not None:
                return entries
        are_large = how.takes_heads and reading.record_bytes >= HEADS_FROM_BYTES
        if are_large and not how.is_filtered and address not in reading.without_heads:
            heads = yield from _ask_heads(how, reading, address)
            if heads is not None:
                return heads
        answer: Command = yield Invoke(address, command, min(how.timeout_ms, PULL_TIMEOUT_MS))
    except NetworkError as error:
        reading.failures[address] = error
        return None
    if answer.code == ResponseCode.NO_PERMISSION and address not in reading.replicas:
        reading.replicas.add(address)
        return (yield from _ask_member(how, reading, address))
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        reading.replicas.discard(address)  # a RocketMQ broker: it may serve consumers again
    if answer.code == ResponseCode.SUCCESS:
        found = _take(how, reading, answer)
        reading.record_bytes = len(found.data) // max(1, found.count)
        return found
    following = int(answer.fields.get("nextBeginOffset", position))
    if following > position and _is_deleted(answer, position):
        reading.deleted_before[address] = following
    elif following > position and answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
        _skip(how, reading, following)
        return PulledRecords(reading.range, b"", 0)
    elif answer.code in (
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
    ):
        reading.ends_at[address] = min(following, position)
    else:
        reading.failures[address] = refusal(answer)
    return None


def _ask_entries(how: PullSettings, reading: _RangeState, address: str) -> Steps[PulledEntries | None]:
    """Ask one member for entries; None if it does not return sound ones: its response to a pull says why."""
    queue, position = reading.range.queue, reading.position
    command = entries_request(queue, position, reading.range.end - position)
    answer: Command = yield Invoke(address, command, min(how.timeout_ms, PULL_TIMEOUT_MS))
    found = PulledEntries(reading.range, answer.body, position)
    if answer.code == ResponseCode.SUCCESS and found.are_sound() and position + found.count <= reading.range.end:
        reading.position = position + found.count
        return found
    reading.without_entries.add(address)
    return None


def _ask_heads(how: PullSettings, reading: _RangeState, address: str) -> Steps[PulledRecords | None]:
    """Ask one member for messages without their bodies; None if it returns none: its response to a pull says why."""
    queue, position = reading.range.queue, reading.position
    command = heads_request(queue, position, min(how.pull_messages, reading.range.end - position))
    answer: Command = yield Invoke(address, command, min(how.timeout_ms, PULL_TIMEOUT_MS))
    if answer.code == ResponseCode.SUCCESS:
        found = _take(how, reading, answer)
        if found.count >= HEADS_PER_RESPONSE:
            reading.record_bytes = 0  # they are small now
        return found
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        reading.without_heads.add(address)
    return None


def _is_deleted(answer: Command, position: int) -> bool:
    """Return whether a member has deleted the message at a position. RocketMQ 5 slaves answer with other codes than
    masters."""
    if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
        return answer.remark == WAS_REMOVING or int(answer.fields.get("minOffset", 0)) > position
    return answer.code == ResponseCode.PULL_OFFSET_MOVED


def _take(how: PullSettings, reading: _RangeState, answer: Command) -> PulledRecords:
    """Cut the records of a response at the end of the range, filter them by tag, and check that no offset is
    missing."""
    data, following = answer.body, number(answer, "nextBeginOffset")
    stop = count = at = 0
    expected = reading.position
    kept: list[bytes] = []
    while len(data) - at >= RECORD_BYTES_MIN:
        size, queue_offset = _head(data, at)
        if size < RECORD_BYTES_MIN or at + size > len(data):
            raise ProtocolError(f"{reading.name}: the record at byte {at} of a response states a size of {size} bytes")
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
        raise ProtocolError(
            f"{reading.name}: a response with messages from {reading.position} continues at {following}"
        )
    reached = stop < len(data)
    reading.position = reading.range.end if reached else min(following, reading.range.end)
    if not reached and not how.is_filtered and expected < reading.position:
        _lost(how, reading, expected, reading.position, "are missing behind others")
    return PulledRecords(reading.range, data[:stop] if how.tags is None else b"".join(kept), count)


def _tag_of(data: bytes, at: int, size: int) -> str:
    record = parse_record(data, at, at + size)
    value = property_value(record.properties, b"TAGS") if not isinstance(record, str) else None
    return (value or b"").decode("utf-8", "replace")


def _skip(how: PullSettings, reading: _RangeState, following: int) -> None:
    """Advance to `following`: with a filter the messages before it do not match; without one they are gone."""
    if how.is_filtered:
        reading.position = min(following, reading.range.end)
    else:
        _deleted(how, reading, following)


def _deleted(how: PullSettings, reading: _RangeState, following: int) -> None:
    """Advance to `following`: the messages before it are deleted; with a filter some of them may not have matched."""
    following = min(following, reading.range.end)
    _lost(how, reading, reading.position, following, "are no longer there")
    reading.position = following


def _handle_absence(routes: Routes, how: PullSettings, reading: _RangeState) -> None:
    """Decide, after no member returned records, whether they are deleted, refused (raises), or may still come."""
    members = {**reading.members, **routes.members(reading.range.queue.broker_name)}
    master = members.get(MASTER_ID, "")
    if reading.deleted_before and not reading.ends_at and not reading.failures:
        _deleted(how, reading, min(reading.deleted_before.values()))
        return
    why = _why_gone(reading, master)
    if why is not None:
        _lost(how, reading, reading.position, reading.range.end, f"are gone: the {why}")
        reading.position = reading.range.end
        return
    is_silent = any(isinstance(error, NetworkError) for error in reading.failures.values())
    if is_silent and how.fail_on_data_loss:
        # A member that does not answer now may have it and come back.
        return
    if master in reading.deleted_before:
        # A slave that lags so far will never receive what its master has deleted.
        _deleted(how, reading, reading.deleted_before[master])
    elif reading.failures and not reading.ends_at and not reading.deleted_before:
        errors = list(reading.failures.values())
        if all(error.code in FINAL_CODES for error in errors):
            raise errors[0]


def _why_gone(reading: _RangeState, master: str) -> str | None:
    """Return why the queue does not exist any more, if the master says so, or every member if there is none."""
    has_master = master in {*reading.failures, *reading.ends_at, *reading.deleted_before}
    if not has_master and (reading.ends_at or reading.deleted_before):
        return None
    asked = [master] if has_master else [*reading.failures]
    return agreed_absence([reading.failures.get(address) for address in asked])


def _lost(how: PullSettings, reading: _RangeState, start: int, end: int, why: str) -> None:
    text = f"{end - start} messages of {reading.name}, offsets {start} to {end - 1}, {why}"
    if how.fail_on_data_loss:
        raise OffsetGone(text, hint="failOnDataLoss=false continues without them")
    log.warning("%s: skipped", text)
