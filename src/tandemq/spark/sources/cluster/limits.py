"""Starts and ends of queues on a running cluster.

The end of a queue comes from the master, whose answer is final. If the master is down, it comes from the slaves, which
may lag: such an end may be less than an offset read before, and that is no loss.

Source: docs/guides/pipeline.md, "Offsets"; docs/reference/requests.md.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tandemq.client.core.connections import Answer
from tandemq.client.core.operations import (
    Invoke,
    Steps,
    ask_all,
    checked,
    json_object,
    number,
    refusal,
    request,
    run_together,
)
from tandemq.client.core.requests import pull_request
from tandemq.client.core.routes import MASTER_ID
from tandemq.errors import NetworkError, NotConnected, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tandemq.spark.sources.cluster.members import BEYOND, Members, QueueLayout, ordered
from tandemq.spark.sources.cluster.options import Bound, Edge, ReadFrom

TOPICS_MIN, TOPICS_PER_REQUEST = 4, 200
"""Topics of a broker group from which on their bounds are asked for together, and those of one request."""


class QueueEnd(NamedTuple):
    """End offset of a queue. `is_final`: whether it comes from the master."""

    offset: int
    is_final: bool


class QueueSpan(NamedTuple):
    """Minimum and maximum offset of a queue on one member; `high` is exclusive."""

    low: int
    high: int


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
    """Return the ends that masters return for many topics at once; Java brokers return none so."""
    of_masters = {
        layout.members[name][MASTER_ID]: topics
        for name, topics in _topics_by_broker(layout).items()
        if MASTER_ID in layout.members[name]
    }
    found: dict[MessageQueue, QueueEnd] = {}
    for bounds in (yield from run_together([_bounds_of_topics(*entry) for entry in of_masters.items()])):
        found |= {queue: QueueEnd(end, is_final=True) for queue, (_, end) in (bounds or {}).items() if end is not None}
    return found


def _topics_by_broker(layout: QueueLayout) -> dict[str, dict[str, list[MessageQueue]]]:
    """Return the queues by topic of each broker group with so many topics that their bounds are asked for together."""
    found: dict[str, dict[str, list[MessageQueue]]] = {}
    for queue in layout.queues:
        found.setdefault(queue.broker_name, {}).setdefault(queue.topic, []).append(queue)
    return {name: topics for name, topics in found.items() if len(topics) >= TOPICS_MIN}


_Bounds = dict[MessageQueue, tuple[int, int | None]]
"""Start and end; a member that serves no consumers returns no end."""


def _bounds_of_topics(address: str, topics: Mapping[str, list[MessageQueue]]) -> Steps[_Bounds | None]:
    """Return the bounds of the queues of topics, as far as a member returns them at once; None if it does not
    answer."""
    found: _Bounds = {}
    left = list(topics)
    is_known = False
    while left:
        parts = [left[start : start + TOPICS_PER_REQUEST] for start in range(0, len(left), TOPICS_PER_REQUEST)]
        first = [] if is_known else parts[:1]  # a member that does not know the request gets one only
        left = []
        for some in (first, parts[len(first) :]):
            answers = yield from ask_all([Invoke(address, _bounds_request(part)) for part in some])
            for part, answer in zip(some, answers, strict=True):
                if not isinstance(answer, Command):
                    return found if is_known else None
                if answer.code != ResponseCode.SUCCESS:
                    return found
                is_known = True
                body = json_object(answer)
                starts, ends = body.get("starts"), body.get("ends")
                if not isinstance(starts, list) or not starts:
                    return found
                left += part[len(starts) :]
                for topic, lows, highs in zip(part, starts, ends or [None] * len(starts), strict=False):
                    for queue in topics[topic]:
                        if lows is not None and queue.queue_id < len(lows):
                            found[queue] = lows[queue.queue_id], highs and highs[queue.queue_id]
    return found


def _bounds_request(topics: Sequence[str]) -> Command:
    return request(RequestCode.TANDEM_QUEUE_BOUNDS, json.dumps({"topics": topics}).encode())


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
    found = yield from _starts_by_topic(layout, addresses)
    rest = [queue for queue in layout.queues if queue not in found]
    operations = [_start_of(queue, addresses[queue.broker_name]) for queue in rest]
    return found | dict(zip(rest, (yield from run_together(operations)), strict=True))


def _starts_by_topic(layout: QueueLayout, addresses: Mapping[str, Sequence[str]]) -> Steps[dict[MessageQueue, int]]:
    """Return the starts on which all members agree that answer, where they return those of many topics at once."""
    found: dict[MessageQueue, int] = {}
    for name, topics in _topics_by_broker(layout).items():
        answers = yield from run_together([_bounds_of_topics(address, topics) for address in addresses[name]])
        known = [bounds for bounds in answers if bounds is not None]
        for queue in known[0] if known else ():
            starts = {bounds[queue][0] if queue in bounds else None for bounds in known}
            if len(starts) == 1:
                found[queue] = known[0][queue][0]
    return found


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
