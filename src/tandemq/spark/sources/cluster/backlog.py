"""Backlog of a streaming query at the end of a micro-batch. By topic: messages, and the age of the first of them; by
broker group: messages, and the time that its members take to answer.

Source: docs/guides/pipeline.md, "Progress of a stream".
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tandemq.client.core.operations import Steps, current_time
from tandemq.model.message import MessageQueue
from tandemq.spark.sources.cluster.epochs import Epochs
from tandemq.spark.sources.cluster.limits import QueueEnd
from tandemq.spark.sources.cluster.lookups import find_firsts
from tandemq.spark.sources.cluster.members import QueueLayout
from tandemq.spark.sources.cluster.options import ReadFrom

LAG = "/lag"
"""Key of the lag by topic in the reported latest offset. No topic can have this name."""
BROKERS = "/brokers"
"""Key of the lag by broker group."""
MESSAGES, SECONDS, ANSWER_MS = "messages", "seconds", "answerMs"
AGES_MAX = 5_000
"""Maximum number of queues whose first message is asked for: of each topic first the queue that is furthest behind."""


def find_backlog(
    layout: QueueLayout, ends: Mapping[MessageQueue, QueueEnd], offsets: Mapping[MessageQueue, int], read_from: ReadFrom
) -> Steps[dict[str, dict[str, Any]]]:
    """Return the backlog behind some offsets by topic: number of offsets, and age of the first message in seconds.

    The age is 0 without a backlog, and None if a first message was not returned. If more than `AGES_MAX` queues are
    behind, it is that of the queues asked.

    Raises:
        ProtocolError: a response is malformed.
    """
    behind = {queue: ends[queue].offset - offset for queue, offset in offsets.items() if queue in ends}
    lagging = [queue for queue in layout.queues if behind.get(queue, 0) > 0]
    asked = _furthest(lagging, behind)
    firsts = yield from find_firsts(layout, {queue: offsets[queue] for queue in asked}, read_from)
    now_ms = (yield from current_time()).wall_ms
    topics = sorted({queue.topic for queue in offsets})
    found: dict[str, dict[str, Any]] = {topic: {MESSAGES: 0, SECONDS: 0.0} for topic in topics}
    for queue in lagging:
        found[queue.topic][MESSAGES] += behind[queue]
    unasked = {queue.topic for queue in lagging} - {queue.topic for queue in asked}
    for topic in unasked:
        found[topic][SECONDS] = None
    for queue, first in firsts.items():
        figures = found[queue.topic]
        age = None if first is None else max(0, now_ms - first.store_ms) / 1000
        figures[SECONDS] = None if age is None or figures[SECONDS] is None else max(figures[SECONDS], age)
    return found


def broker_backlog(
    ends: Mapping[MessageQueue, QueueEnd], offsets: Mapping[MessageQueue, int], epochs: Mapping[str, Epochs]
) -> dict[str, dict[str, Any]]:
    """Return the backlog behind some offsets by broker group: number of offsets, and the milliseconds in which its
    members answered the last poll, None if none did."""
    found: dict[str, dict[str, Any]] = {
        name: {MESSAGES: 0, ANSWER_MS: table.answer_ms} for name, table in sorted(epochs.items())
    }
    for queue, offset in offsets.items():
        end = ends.get(queue)
        if end is not None and end.offset > offset and queue.broker_name in found:
            found[queue.broker_name][MESSAGES] += end.offset - offset
    return found


def _furthest(lagging: Sequence[MessageQueue], behind: Mapping[MessageQueue, int]) -> Sequence[MessageQueue]:
    """Return `AGES_MAX` queues at most: the one furthest behind of each topic, then the second one, and so on."""
    if len(lagging) <= AGES_MAX:
        return lagging
    ranks: Counter[str] = Counter()
    ranked: list[tuple[int, MessageQueue]] = []
    for queue in sorted(lagging, key=lambda queue: -behind[queue]):
        ranked.append((ranks[queue.topic], queue))
        ranks[queue.topic] += 1
    return [queue for _, queue in sorted(ranked)[:AGES_MAX]]
