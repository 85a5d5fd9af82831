"""Backlog of a streaming query at the end of a micro-batch, by topic: messages, and the age of the first of them.

Source: docs/guides/pipeline.md, "Progress of a stream".
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tandemq.client.core.operations import Invoke, Steps, ask_all, current_time
from tandemq.codec.record.record import decode_messages
from tandemq.errors import NetworkError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tandemq.spark.sources.cluster.options import ReadFrom
from tandemq.spark.sources.cluster.resolve import QueueEnd, QueueLayout, ordered, pull_request

LAG = "/lag"
"""Key of the lag by topic in the reported latest offset. No topic can have this name."""
MESSAGES, SECONDS = "messages", "seconds"


def find_backlog(
    layout: QueueLayout, ends: Mapping[MessageQueue, QueueEnd], offsets: Mapping[MessageQueue, int], read_from: ReadFrom
) -> Steps[dict[str, dict[str, Any]]]:
    """Return the backlog behind some offsets by topic: number of offsets, and age of the first message in seconds.

    The age is 0 without a backlog, and None if a first message was not returned. No error is raised: a report must not
    stop a query.
    """
    behind = {queue: ends[queue].offset - at for queue, at in offsets.items() if queue in ends}
    lagging = [queue for queue in layout.queues if behind.get(queue, 0) > 0]
    times = yield from _store_times(layout, {queue: offsets[queue] for queue in lagging}, read_from)
    now_ms = (yield from current_time()).wall_ms
    found: dict[str, dict[str, Any]] = {
        queue.topic: {MESSAGES: 0, SECONDS: 0.0} for queue in sorted(offsets, key=lambda queue: queue.topic)
    }
    for queue in lagging:
        one, stored_ms = found[queue.topic], times[queue]
        one[MESSAGES] += behind[queue]
        age = None if stored_ms is None else max(0, now_ms - stored_ms) / 1000
        one[SECONDS] = None if age is None or one[SECONDS] is None else max(one[SECONDS], age)
    return found


def _store_times(
    layout: QueueLayout, firsts: Mapping[MessageQueue, int], read_from: ReadFrom
) -> Steps[dict[MessageQueue, int | None]]:
    """Return the time of storage of the first message at or after an offset of each queue; None if it is unknown."""
    times: dict[MessageQueue, int | None] = dict.fromkeys(firsts)
    for code in (RequestCode.PULL_MESSAGE, RequestCode.TANDEM_REPLICA_PULL):
        left = [queue for queue, wall_ms in times.items() if wall_ms is None]
        asked = {queue: at for queue in left if (at := _first_member(layout, queue, read_from))}
        requests = [Invoke(at, pull_request(queue, firsts[queue], 1, code=code)) for queue, at in asked.items()]
        for queue, answer in zip(asked, (yield from ask_all(requests)), strict=True):
            times[queue] = _store_time(answer)
    return times


def _first_member(layout: QueueLayout, queue: MessageQueue, read_from: ReadFrom) -> str | None:
    try:
        addresses: Sequence[str] = ordered(layout.members[queue.broker_name], read_from)
    except NetworkError:
        return None
    return addresses[0]


def _store_time(answer: object) -> int | None:
    if not isinstance(answer, Command) or answer.code != ResponseCode.SUCCESS:
        return None
    try:
        return decode_messages(answer.body, inflates=False)[0].store_ms
    except (TandemError, IndexError):
        return None
