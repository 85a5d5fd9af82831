"""Comparison of the queues of two running replicas: the offset at which each begins and ends.

Equal logs have queues with the same messages, unless one was rebuilt from what the other has deleted. Both brokers may
take messages meanwhile, so a queue is compared until it agrees, for some seconds:

    end        the slave's is not below the end that the master had when the comparison began,
               and not above the one that the master has afterwards
    beginning  equal, as soon as both logs begin at the same log offset: old files are deleted at different times

Queues without messages agree: where the next one is stored, a slave knows once it has a message.

Source: docs/internals/ha.md, "Comparing replicas".
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tandemq.client.admin.cluster import numbers, queue_table
from tandemq.client.connection import BlockingConnection
from tandemq.client.core.operations import checked, json_object
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue

PATIENCE_S = 30.0
"""Time for queues to agree while they change: a slave without a registry copies new topics every few seconds."""
PAUSE_S = 0.2


class OffsetRange(NamedTuple):
    """The queue offsets of the first message and behind the last one."""

    first: int
    end: int


class QueueDifference(NamedTuple):
    """A queue that is another one on the slave; None: the broker does not have it."""

    queue: MessageQueue
    master: OffsetRange | None
    slave: OffsetRange | None


class ComparedQueues(NamedTuple):
    """Result: the number of compared queues, and those that stayed different."""

    compared: int
    differences: tuple[QueueDifference, ...]


def compare_queues(
    master: BlockingConnection,
    slave: BlockingConnection,
    log_starts: Callable[[], tuple[int, int]],
) -> ComparedQueues:
    """Compare the queues of the topics that either broker has.

    Args:
        master: connection to the broker that is compared with.
        slave: connection to a broker that copies it.
        log_starts: returns the log offsets at which the two logs begin now.

    Raises:
        NetworkError: a broker does not answer.
        RemoteError: a broker refuses a request.
    """
    deadline = time.monotonic() + PATIENCE_S
    topics = _topics(master) | _topics(slave)
    before = _queues(master, topics)
    count, left = 0, topics
    while True:
        on_slave = _queues(slave, left)
        after = _queues(master, left)
        starts = log_starts()
        queues = on_slave.keys() | after.keys()
        count = max(count, len(queues))
        differences = tuple(
            QueueDifference(queue, after.get(queue), on_slave.get(queue))
            for queue in sorted(queues)
            if not _agree(
                before.get(queue), on_slave.get(queue), after.get(queue), has_equal_starts=starts[0] == starts[1]
            )
        )
        if not differences or time.monotonic() >= deadline:
            return ComparedQueues(count, differences)
        left = {difference.queue.topic for difference in differences}
        time.sleep(PAUSE_S)


def _agree(
    before: OffsetRange | None, on_slave: OffsetRange | None, after: OffsetRange | None, *, has_equal_starts: bool
) -> bool:
    """Return whether the slave's queue may be a state of the master's queue between `before` and `after`."""
    if _is_empty(on_slave) and _is_empty(after):
        return True
    if on_slave is None or after is None:
        return False
    # A topic that was deleted and created again meanwhile has fewer messages than before.
    least = 0 if before is None else min(before.end, after.end)
    if not least <= on_slave.end <= after.end:
        return False
    return not has_equal_starts or on_slave.first == after.first


def _is_empty(queue: OffsetRange | None) -> bool:
    return queue is None or queue.first == queue.end


def _topics(broker: BlockingConnection) -> set[str]:
    answer = broker.request(Command(RequestCode.GET_ALL_TOPIC_CONFIG))
    return set(json_object(checked(answer)).get("topicConfigTable") or {})


def _queues(broker: BlockingConnection, topics: Iterable[str]) -> dict[MessageQueue, OffsetRange]:
    found: dict[MessageQueue, OffsetRange] = {}
    for topic in topics:
        answer = broker.request(Command(RequestCode.GET_TOPIC_STATS_INFO, fields={"topic": topic}))
        if answer.code != ResponseCode.TOPIC_NOT_EXIST:
            found |= _bounds(queue_table(json_object(checked(answer)), "offsetTable"))
    return found


def _bounds(table: dict[MessageQueue, Any]) -> dict[MessageQueue, OffsetRange]:
    return {queue: OffsetRange(*numbers(item, "minOffset", "maxOffset")) for queue, item in table.items()}
