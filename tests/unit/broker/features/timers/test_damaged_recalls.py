"""Recalls of timed messages while one of the two records cannot be read: they hold, whichever is repaired first."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemq.broker.features.timers import damaged, loading, records
from tandemq.broker.features.timers.service import TimedMessages
from tandemq.broker.kernel import moves
from tandemq.broker.kernel.log_queue import DOUBT_MS
from tandemq.engine import python
from tandemq.engine.python import TimerRow
from tandemq.errors import DiskFailed
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.store import Store
from tests.spec import spec
from tests.unit.broker.features.timers.test_timed_messages import bodies, ready, timed, waiting
from tests.unit.broker.features.waiting_tables import pending_timers
from tests.unit.broker.harness import Harness

MESSAGE, OTHER, REQUEST, LATER = range(4)
"""Queue offsets of the message that is recalled, one of the same time, the request, and one of a later time."""


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Return a set of queue offsets of the wheel topic of which the records cannot be read."""
    found: set[int] = set()

    def read_timed(store: Store, queue: ConsumeQueue, queue_offset: int) -> records.TimedMessage:
        if queue_offset in found:
            raise DiskFailed("a simulated fault")
        return records.read_timed(store, queue, queue_offset)

    def read_head(store: Store, queue: ConsumeQueue, queue_offset: int) -> records.TimerHead | None:
        return None if queue_offset in found else records.read_head(store, queue, queue_offset)

    def read_rows(store: Store, queue_offset: int, entries: bytes) -> Iterator[TimerRow | None]:
        for at, row in enumerate(records.read_rows(store, queue_offset, entries), queue_offset):
            yield None if at in found else row

    monkeypatch.setattr(moves, "move_records", python.move_records)  # which leaves all to the functions above
    monkeypatch.setattr(damaged, "read_timed", read_timed)
    monkeypatch.setattr(loading, "read_head", read_head)
    monkeypatch.setattr(loading, "read_rows", read_rows)
    return found


def with_recall(path: Path) -> Harness:
    """Return a broker whose messages are due in 5 s, the last one in 8 s."""
    broker = ready(path)
    out_ms = str(broker.now.wall_ms + 5_000)
    for key in "ab":
        timed(broker, key.encode(), UNIQ_KEY=key, TIMER_DELIVER_MS=out_ms)
    timed(broker, b"-", UNIQ_KEY="R", TIMER_DELIVER_MS=out_ms, TIMER_DEL_UNIQKEY="TopicA+a")
    timed(broker, b"c", UNIQ_KEY="c", TIMER_DELAY_SEC="8")
    return broker


def counted(broker: Harness) -> int:
    """Return the number of waiting messages of the topic, by the broker's metric."""
    return pending_timers(broker).counts["TopicA"]


ORDERS = [
    [MESSAGE],
    [OTHER],
    [REQUEST],
    [MESSAGE, REQUEST],
    [REQUEST, MESSAGE],
    [MESSAGE, OTHER, REQUEST],
    [REQUEST, OTHER, MESSAGE],
]
"""What is damaged, in the order of its repair."""


@spec("S02", "G13")
@pytest.mark.parametrize("repairs", ORDERS)
def test_recall_holds_in_any_order_of_repair(tmp_path: Path, broken: set[int], repairs: list[int]) -> None:
    """Messages of other times do not wait."""
    broker = with_recall(tmp_path)
    broken.update(repairs)
    broker.pass_time(12_000)
    assert bodies(broker) == ([b"c"] if {OTHER, REQUEST} & broken else [b"b", b"c"])
    for queue_offset in repairs:
        broken.discard(queue_offset)
        broker.pass_time(1_000)
    assert sorted(bodies(broker)) == [b"b", b"c"]
    assert (waiting(broker), broker.node.features.find(TimedMessages).metrics.deleted_total, counted(broker)) == (
        0,
        1,
        0,
    )


@spec("S02", "G13")
@pytest.mark.parametrize("is_due", [False, True])
@pytest.mark.parametrize("repairs", ORDERS)
def test_recall_of_unknown_time_holds_in_any_order_of_repair(
    tmp_path: Path, broken: set[int], repairs: list[int], is_due: bool
) -> None:
    """A master that cannot read a record knows neither its time, nor whether it is a request: all wait, for a while."""
    broker = with_recall(tmp_path)
    broken.update(repairs)
    if is_due:
        broker.pass_time(12_000)
    broker = broker.restart(clean=False)
    broker.pass_time(12_000)
    for queue_offset in repairs:
        broken.discard(queue_offset)
        broker.pass_time(1_000)
    assert sorted(bodies(broker)) == [b"b", b"c"]
    assert (waiting(broker), counted(broker)) == (0, 0)


@spec("S02", "G13")
@pytest.mark.parametrize("restarts", [False, True])
def test_messages_wait_a_minute_for_a_request_at_most(tmp_path: Path, broken: set[int], restarts: bool) -> None:
    broker = with_recall(tmp_path)
    broken.add(REQUEST)
    if restarts:
        broker = broker.restart(clean=False)
    broker.pass_time(DOUBT_MS - 1_000)
    assert bodies(broker) == ([] if restarts else [b"c"])
    broker.pass_time(10_000)
    assert sorted(bodies(broker)) == [b"a", b"b", b"c"]
    broken.clear()
    broker.pass_time(1_000)
    assert (len(bodies(broker)), waiting(broker)) == (3, 0)


@spec("S02", "G13")
def test_no_part_of_a_recall_is_repeated_by_the_next_master(tmp_path: Path, broken: set[int]) -> None:
    broker = with_recall(tmp_path)
    broken.update((MESSAGE, OTHER))
    broker.pass_time(12_000)
    broken.discard(OTHER)
    broker.pass_time(1_000)
    for _ in range(2):
        broker = broker.restart(clean=False)
        broker.pass_time(3_000)
        assert sorted(bodies(broker)) == [b"b", b"c"]
        assert waiting(broker) == 2
        broker.pass_time(DOUBT_MS)
    broken.clear()
    broker.pass_time(1_000)
    assert (sorted(bodies(broker)), waiting(broker)) == ([b"b", b"c"], 0)


@spec("S02", "G13")
def test_recall_holds_that_is_repaired_behind_a_later_one_of_its_time(tmp_path: Path, broken: set[int]) -> None:
    """The later request was read before, with the messages of that time which were not damaged."""
    broker = ready(tmp_path)
    out_ms = str(broker.now.wall_ms + 5_000)
    for key, name in (("a", ""), ("R", "TopicA+a"), ("b", ""), ("c", ""), ("S", "TopicA+b")):
        named = {"TIMER_DEL_UNIQKEY": name} if name else {}
        timed(broker, key.encode(), "TopicA", UNIQ_KEY=key, TIMER_DELIVER_MS=out_ms, **named)
    broken.update((0, 1))
    broker = broker.restart(clean=False)
    broker.pass_time(DOUBT_MS + 10_000)
    assert bodies(broker) == [b"c"]
    broken.discard(1)
    broker.pass_time(1_000)
    broken.discard(0)
    broker.pass_time(1_000)
    assert (bodies(broker), waiting(broker), counted(broker)) == ([b"c"], 0, 0)


@spec("S02", "G13")
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("lost", [[MESSAGE], [OTHER], [REQUEST], [LATER], [MESSAGE, REQUEST], [OTHER, LATER]])
def test_lost_records_leave_no_count_behind(
    tmp_path: Path, broken: set[int], monkeypatch: pytest.MonkeyPatch, lost: list[int], restarts: bool
) -> None:
    """They are found damaged, and lost only later. A recalled message that is lost was never recalled."""
    broker = with_recall(tmp_path)
    broken.update(lost)
    if restarts:
        broker = broker.restart(clean=False)
    broker.pass_time(12_000)

    def read_timed(store: Store, queue: ConsumeQueue, queue_offset: int) -> records.TimedMessage:
        if queue_offset in lost:
            raise records.NoTimedMessage("a simulated loss")
        return records.read_timed(store, queue, queue_offset)

    monkeypatch.setattr(damaged, "read_timed", read_timed)
    broker.pass_time(DOUBT_MS)
    assert (waiting(broker), counted(broker)) == (0, 0)
    assert len(bodies(broker)) == 3 - len({MESSAGE, OTHER, LATER} & set(lost)) - (not {MESSAGE, REQUEST} & set(lost))
    assert broker.node.features.find(TimedMessages).metrics.by_topic() == {}
