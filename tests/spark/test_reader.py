"""Reading ranges of queues: the order of rows is the same however answers come in."""

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
from tandemq.spark.sources.cluster.reader import PulledRecords, ReadHow, read_ranges

HOW = ReadHow("127.0.0.1:9876")


class Answers:
    """Brokers whose answers come in any order, of any size: each story of the reader is answered by hand."""

    def __init__(self, dice: random.Random, ranges: list[QueueRange]) -> None:
        self._dice = dice
        self._ends = {one.queue: one.end for one in ranges}
        self.waiting: list[tuple[Future[Any], Any]] = []
        self.most = 0

    def begin(self, reading: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self.waiting.append((future, reading))
        self.most = max(self.most, len(self.waiting))
        return future

    def answer_one(self) -> None:
        future, reading = self.waiting.pop(self._dice.randrange(len(self.waiting)))
        start = reading.position
        end = min(reading.range.end, start + self._dice.randrange(1, 6))
        if self._dice.random() < 0.1:
            end, data = start, b""  # as when a filter left all of it out
        data = b"".join(pack(">ii", reading.range.queue.queue_id, number) for number in range(start, end))
        reading.position = end
        future.set_result((data, end - start))


def rows(pulled: Iterator[PulledRecords]) -> list[tuple[int, int]]:
    found = []
    for one in pulled:
        numbers = [int.from_bytes(one.data[at : at + 4]) for at in range(0, len(one.data), 4)]
        found += list(zip(numbers[::2], numbers[1::2], strict=True))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_rows_have_one_order_whichever_answer_comes_first(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert answers.most <= reader.PULLED_AT_ONCE + 1


def test_range_whose_rest_is_gone_ends_and_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = [QueueRange(MessageQueue("T", "a", number), 0, 3) for number in range(2)]
    answers = Answers(random.Random(1), ranges)

    def wait(under_way: Any, **_: object) -> Any:
        future, reading = answers.waiting.pop(0)
        if reading.range.queue.queue_id == 0:
            future.set_result(None)  # passed over, because loss is accepted
        else:
            reading.position = 3
            future.set_result((b"\0\0\0\1\0\0\0\0", 1))
        return [one for one in under_way if one.done()], None

    monkeypatch.setattr(reader, "wait", wait)
    monkeypatch.setattr(reader, "_next_of", lambda _how, reading: reading)
    assert rows(read_ranges(answers, HOW, ranges, {})) == [(1, 0)]  # type: ignore[arg-type]


def test_error_of_any_range_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_what_a_filter_left_out_is_told_from_what_is_deleted(
    code: ResponseCode, remark: str, start: int, position: int, deleted: dict[str, int]
) -> None:
    how = ReadHow("127.0.0.1:9876", tags=frozenset("a"), expression="a")
    reading = reader._Reading(QueueRange(MessageQueue("T", "a", 0), 5, 100), {}, 5)
    steps = reader._ask_member(how, reading, "b:1")
    next(steps)
    with pytest.raises(StopIteration):
        steps.send(Command(code, fields={"nextBeginOffset": "9", "minOffset": str(start)}, remark=remark))
    assert (reading.position, reading.deleted_before) == (position, deleted)
