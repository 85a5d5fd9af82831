"""Reader of queue ranges: the order of rows does not depend on the order of responses."""

import random
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from struct import pack
from typing import Any

import pytest

from tandemq.codec.record.entries import HOLE_SIZE_MAX, QUEUE_ENTRY
from tandemq.errors import OffsetGone
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tandemq.spark.sources.cluster import reader
from tandemq.spark.sources.cluster.plan import QueueRange
from tandemq.spark.sources.cluster.reader import Pulled, PulledRecords, PullSettings, read_ranges

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
        future.set_result(PulledRecords(reading.range, data, end - start))


def rows(pulled: Iterator[Pulled]) -> list[tuple[int, int]]:
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
            future.set_result(PulledRecords(reading.range, b"\0\0\0\1\0\0\0\0", 1))
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


# Entries.


def ask(steps: Any, *answers: Command) -> tuple[list[RequestCode], Any]:
    """Run steps with a member's responses; return the codes of the requests, and the result."""
    codes, answer = [], None
    for following in (*answers, None):
        try:
            codes.append(steps.send(answer).command.code)
        except StopIteration as end:
            return codes, end.value
        answer = following
    raise AssertionError("more requests than responses")


ENTRIES, PULL = RequestCode.TANDEM_QUEUE_ENTRIES, RequestCode.PULL_MESSAGE
HEADS = RequestCode.TANDEM_QUEUE_HEADS


def entries(*sizes: int, at: int = 1_000) -> bytes:
    return b"".join(QUEUE_ENTRY.pack(at + number * 1_000, size, 0) for number, size in enumerate(sizes))


def reading_from(start: int, end: int) -> Any:
    return reader._RangeState(QueueRange(MessageQueue("T", "a", 3), start, end), {}, start)


def test_query_that_needs_no_messages_reads_entries() -> None:
    how = replace(HOW, takes_entries=True)
    reading = reading_from(5, 9)
    steps = reader._ask_member(how, reading, "b:1")
    codes, found = ask(steps, Command(ResponseCode.SUCCESS, body=entries(200, 300)))
    assert codes == [ENTRIES] and reading.position == 7
    names = ["queueOffset", "size", "commitLogOffset", "epoch", "topic", "brokerName", "queueId", "timestampType"]
    columns = [column.to_pylist() for column in found.columns(names, [(4, 1_500), (6, 9_000)])]
    assert columns == [[5, 6], [200, 300], [1_000, 2_000], [0, 4], ["T"] * 2, ["a"] * 2, [3] * 2, [0] * 2]


@pytest.mark.parametrize(
    "answer",
    [
        Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        Command(ResponseCode.PULL_OFFSET_MOVED, fields={"minOffset": "7", "maxOffset": "9"}),
        Command(ResponseCode.SUCCESS),
        Command(ResponseCode.SUCCESS, body=entries(200)[:-1]),
        Command(ResponseCode.SUCCESS, body=entries(200, 0)),
        Command(ResponseCode.SUCCESS, body=entries(200, HOLE_SIZE_MAX)),
        Command(ResponseCode.SUCCESS, body=entries(200, at=-5)),
        Command(ResponseCode.SUCCESS, body=entries(200, 200, 200)),
    ],
)
def test_member_without_sound_entries_is_pulled_from(answer: Command) -> None:
    reading = reading_from(5, 7)
    steps = reader._ask_member(replace(HOW, takes_entries=True), reading, "b:1")
    moved = Command(ResponseCode.PULL_OFFSET_MOVED, fields={"nextBeginOffset": "6", "minOffset": "6"})
    assert ask(steps, answer, moved) == ([ENTRIES, PULL], None)
    assert reading.deleted_before == {"b:1": 6}
    steps = reader._ask_member(replace(HOW, takes_entries=True), reading, "b:1")
    assert ask(steps, moved)[0] == [PULL], "asked for entries once"


def test_query_without_bodies_reads_messages_without_them() -> None:
    how = replace(HOW, takes_heads=True)
    reading = reading_from(5, 7)
    reading.record_bytes = reader.HEADS_FROM_BYTES
    records = b"".join((100).to_bytes(4) + bytes(16) + offset.to_bytes(8) + bytes(72) for offset in (5, 6))
    answer = Command(ResponseCode.SUCCESS, fields={"nextBeginOffset": "7"}, body=records)
    codes, found = ask(reader._ask_member(how, reading, "b:1"), answer)
    assert (codes, found.count, reading.position) == ([HEADS], 2, 7)


def test_messages_that_have_become_small_are_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "HEADS_PER_RESPONSE", 2)
    how, reading = replace(HOW, takes_heads=True), reading_from(5, 9)
    reading.record_bytes = reader.HEADS_FROM_BYTES
    records = b"".join((100).to_bytes(4) + bytes(16) + offset.to_bytes(8) + bytes(72) for offset in (5, 6))
    answer = Command(ResponseCode.SUCCESS, fields={"nextBeginOffset": "7"}, body=records)
    assert ask(reader._ask_member(how, reading, "b:1"), answer)[0] == [HEADS]
    moved = Command(ResponseCode.PULL_OFFSET_MOVED, fields={"nextBeginOffset": "9"})
    assert ask(reader._ask_member(how, reading, "b:1"), moved)[0] == [PULL]


@pytest.mark.parametrize("code", [ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_BUSY])
def test_member_that_returns_no_messages_without_bodies_is_pulled_from(code: ResponseCode) -> None:
    how, reading = replace(HOW, takes_heads=True), reading_from(5, 7)
    reading.record_bytes = reader.HEADS_FROM_BYTES
    moved = Command(ResponseCode.PULL_OFFSET_MOVED, fields={"nextBeginOffset": "7"})
    assert ask(reader._ask_member(how, reading, "b:1"), Command(code), moved) == ([HEADS, PULL], None)
    is_supported = code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    answers = (Command(code), moved) if is_supported else (moved,)
    assert ask(reader._ask_member(how, reading, "b:1"), *answers)[0] == [HEADS, PULL][not is_supported :]


@pytest.mark.parametrize("filters", [{"tags": frozenset("a"), "expression": "a"}, {"expression_type": "SQL92"}])
def test_filtered_messages_are_pulled(filters: dict[str, Any]) -> None:
    steps = reader._ask_member(replace(HOW, takes_entries=True, takes_heads=True, **filters), reading_from(5, 7), "b:1")
    assert ask(steps, Command(ResponseCode.PULL_OFFSET_MOVED, fields={"nextBeginOffset": "7"}))[0] == [PULL]
