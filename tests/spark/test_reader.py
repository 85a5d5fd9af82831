"""Reader of queue ranges: the order of rows does not depend on the order of responses."""

import random
from collections.abc import Iterator
from concurrent.futures import Future
from struct import pack
from typing import Any

import pytest

from tandemq.errors import OffsetGone
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tandemq.spark.sources.cluster import reader
from tandemq.spark.sources.cluster.plan import QueueRange
from tandemq.spark.sources.cluster.reader import PulledRecords, PullSettings, read_ranges

HOW = PullSettings("127.0.0.1:9876")


class Answers:
    """Brokers whose responses arrive in any order and of any size: the test completes each pull by hand."""

    def __init__(self, dice: random.Random, ranges: list[QueueRange]) -> None:
        self._dice = dice
        self._ends = {one.queue: one.end for one in ranges}
        self.waiting: list[tuple[Future[Any], Any]] = []
        self.most = 0

    def start(self, reading: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self.waiting.append((future, reading))
        self.most = max(self.most, len(self.waiting))
        return future

    def answer_one(self) -> None:
        future, reading = self.waiting.pop(self._dice.randrange(len(self.waiting)))
        start = reading.position
        end = min(reading.range.end, start + self._dice.randrange(1, 6))
        if self._dice.random() < 0.1:
            end, data = start, b""  # as if a filter removed every message
        data = b"".join(pack(">ii", reading.range.queue.queue_id, number) for number in range(start, end))
        reading.position = end
        future.set_result(reader._Records(data, end - start))


def rows(pulled: Iterator[PulledRecords]) -> list[tuple[int, int]]:
    found = []
    for one in pulled:
        numbers = [int.from_bytes(one.data[at : at + 4]) for at in range(0, len(one.data), 4)]
        found += list(zip(numbers[::2], numbers[1::2], strict=True))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_order_of_rows_does_not_depend_on_the_order_of_responses(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    count = dice.randrange(1, 30)
    ranges = [QueueRange(MessageQueue("T", "a", number), 5, 5 + dice.randrange(1, 40)) for number in range(count)]
    answers = Answers(dice, ranges)

    def wait(under_way: Any, **_: object) -> Any:
        answers.answer_one()
        return [future for future in under_way if future.done()], None

    monkeypatch.setattr(reader, "wait", wait)
    monkeypatch.setattr(reader, "_next_of", lambda _how, reading: reading)
    monkeypatch.setattr(reader, "HELD_BYTES_MAX", dice.choice([1, 40, 1 << 20]))
    found = rows(read_ranges(answers, HOW, ranges, {}))  # type: ignore[arg-type]  # as much of one as is asked
    assert found == [(one.queue.queue_id, number) for one in ranges for number in range(one.start, one.end)]
    assert answers.most <= reader.CONCURRENT_PULLS + 1


def test_next_range_is_read_after_a_range_whose_rest_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = [QueueRange(MessageQueue("T", "a", number), 0, 3) for number in range(2)]
    answers = Answers(random.Random(1), ranges)

    def wait(under_way: Any, **_: object) -> Any:
        future, reading = answers.waiting.pop(0)
        if reading.range.queue.queue_id == 0:
            future.set_result(None)  # skipped, because loss is accepted
        else:
            reading.position = 3
            future.set_result(reader._Records(b"\0\0\0\1\0\0\0\0", 1))
        return [one for one in under_way if one.done()], None

    monkeypatch.setattr(reader, "wait", wait)
    monkeypatch.setattr(reader, "_next_of", lambda _how, reading: reading)
    assert rows(read_ranges(answers, HOW, ranges, {})) == [(1, 0)]  # type: ignore[arg-type]


def test_error_in_any_range_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = [QueueRange(MessageQueue("T", "a", number), 0, 3) for number in range(3)]
    answers = Answers(random.Random(1), ranges)

    def wait(under_way: Any, **_: object) -> Any:
        future, _ = answers.waiting.pop()
        future.set_exception(OffsetGone("gone"))
        return [one for one in under_way if one.done()], None

    monkeypatch.setattr(reader, "wait", wait)
    monkeypatch.setattr(reader, "_next_of", lambda _how, reading: reading)
    with pytest.raises(OffsetGone):
        list(read_ranges(answers, HOW, ranges, {}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "remark", "start", "position", "deleted"),
    [
        (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", 0, 9, {}),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, "OFFSET_TOO_SMALL", 9, 5, {"b:1": 9}),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING", 5, 5, {"b:1": 9}),
        (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 9, 5, {"b:1": 9}),
    ],
)
def test_filtered_messages_are_distinguished_from_deleted_ones(
    code: ResponseCode, remark: str, start: int, position: int, deleted: dict[str, int]
) -> None:
    how = PullSettings("127.0.0.1:9876", tags=frozenset("a"), expression="a")
    reading = reader._RangeState(QueueRange(MessageQueue("T", "a", 0), 5, 100), {}, 5)
    steps = reader._ask_member(how, reading, "b:1")
    next(steps)
    with pytest.raises(StopIteration):
        steps.send(Command(code, fields={"nextBeginOffset": "9", "minOffset": str(start)}, remark=remark))
    assert (reading.position, reading.deleted_before) == (position, deleted)
