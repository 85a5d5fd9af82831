"""Resolution of the start and end of a query to offsets on a running cluster, and commits of its offsets.

Source: docs/guides/pipeline.md, "Offsets".
"""

from tandemq.client.consumer.offsets.lookup import ask_member
from tandemq.client.core.operations import Steps, checked, run_together
from tandemq.client.core.requests import pull_request, update_offset_request
from tandemq.client.core.routes import Routes
from tandemq.errors import ConfigError
from tandemq.model.message import MessageQueue
from tandemq.spark.sources.cluster.limits import QueueLimits
from tandemq.spark.sources.cluster.lookups import MESSAGES_AT_ONCE, find_offset_at
from tandemq.spark.sources.cluster.members import QueueLayout
from tandemq.spark.sources.cluster.offsets import EARLIEST, LATEST, Position
from tandemq.spark.sources.cluster.options import Bound, Edge, SourceOptions, StoreTime, StoreTimes


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
