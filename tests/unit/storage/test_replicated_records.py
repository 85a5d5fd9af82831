"""Replicated records: the same queues and index as recovery makes from the log, record by record."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemq.codec.record.record import encode_record, parse_record
from tandemq.errors import DiskFailed
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.store import Store, StoreConfig
from tests.unit.storage.harness import HOST, NOW_MS, derived, new_disk, queue_entries, start

CONFIG = StoreConfig(64 * 1024, 2000, True, 16, 64, (1000, 5000), "boot-1")
COUNT = 24
Fields = dict[str, int | bytes]


def uniform(number: int) -> Fields:
    """Return a message of the common layout, for one of three queues in turn."""
    properties = b"UNIQ_KEY\x01k%05d\x02TAGS\x01t\x02" % number
    return {"queue_id": number % 3, "queue_offset": number // 3, "properties": properties, "topic": b"T", "sys_flag": 0}


def log_of(messages: list[Fields], base: int = 0) -> bytes:
    log = b""
    for number, fields in enumerate(messages):
        one = dict(fields)
        body = b"x" * int(one.pop("size", 20))
        log += encode_record(
            log_offset=base + len(log),
            body=body,
            flag=number,
            born_ms=1,
            born_host=HOST,
            store_ms=NOW_MS + number,
            store_host=HOST,
            **one,  # type: ignore[arg-type]
        )
    return log


def copy(store: Store, log: bytes, *, at_once: bool) -> None:
    """Append a piece of the master's log, with a byte behind it that is not part of it; or dispatch each record."""
    if at_once:
        store.append_copy(memoryview(log + b"?")[:-1])
        store.commit()
        return
    store.log.append(log)
    store.commit()
    at = 0
    while at < len(log):
        record = parse_record(log, at, len(log))
        assert not isinstance(record, str)
        store.dispatch_found(record)
        at += record.size


def same(pieces: list[list[Fields]]) -> None:
    disk, other_disk = new_disk(), new_disk()
    many, single = start(disk, CONFIG), start(other_disk, CONFIG)
    base = 0
    for messages in pieces:
        log = log_of(messages, base)
        copy(many, log, at_once=True)
        copy(single, log, at_once=False)
        base += len(log)
    assert queue_entries(many) == queue_entries(single)
    assert many.log.read(0, base) == single.log.read(0, base)
    many.close()
    single.close()
    assert derived(disk) == derived(other_disk)


CHANGES: list[Fields] = [
    {"queue_id": 7},
    {"queue_offset": 0},
    {"queue_offset": 3},
    {"queue_offset": 100},
    {"topic": b"U"},
    {"topic": b"../x"},
    {"properties": b"TAGS\x01t\x02"},
    {"properties": b""},
    {"sys_flag": 4},
    {"sys_flag": 8},
    {"sys_flag": 12},
    {"size": 33},
    {"topic": b"SCHEDULE_TOPIC_XXXX"},
    {"properties": b"UNIQ_KEY\x01k99999\x02TAGS\x01u\x02"},
    {"properties": b"UNIQ_KEY\x01k9999\xff\x02TAGS\x01t\x02"},
    {"properties": b"UNIQ_KEY\x01\x02\x02\x02\x02\x02\x02TAGS\x01t\x02"},
    {"properties": b"KEYS\x01a b\x02UNIQ_KEY\x01k1\x02TAG"},
    {"queue_id": -1},
    {"queue_offset": -1},
]


@given(st.lists(st.tuples(st.integers(0, 3 * COUNT - 1), st.sampled_from(CHANGES)), max_size=4))
@settings(max_examples=80)
def test_changed_records_are_dispatched_as_one_by_one(changes: list[tuple[int, Fields]]) -> None:
    messages = [uniform(number) for number in range(3 * COUNT)]
    for at, change in changes:
        messages[at] = uniform(at) | change
    same([messages[:COUNT], messages[COUNT : 2 * COUNT], messages[2 * COUNT :]])


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_all_records_is_dispatched_as_one_by_one(change: Fields) -> None:
    same([[uniform(number) | change for number in range(COUNT)]] * 2)


@pytest.mark.parametrize("failing", range(6))
def test_pieces_with_a_queue_that_cannot_be_opened_are_appended_later(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without open files: none of the pieces of the turn is stored, and all of them when they come again."""
    disk, other_disk = new_disk(), new_disk()
    store, expected = start(disk, CONFIG), start(other_disk, CONFIG)
    topics = b"T", b"U"
    turns = [
        [[uniform(number) | {"topic": topics[number % 2]} for number in numbers] for numbers in pieces]
        for pieces in ([range(2), range(2, 6), range(6, 18)], [range(18, COUNT)])
    ]
    opened = 0
    open_queue = Store.queue

    def fail(self: Store, topic: str, queue_id: int) -> ConsumeQueue:
        nonlocal opened
        if self is store and (topic, queue_id) not in self.queues:
            opened += 1
            if opened - 1 == failing:
                raise DiskFailed("too many open files")
        return open_queue(self, topic, queue_id)

    monkeypatch.setattr(Store, "queue", fail)
    failures = base = 0
    for pieces in turns:
        logs: list[bytes] = []
        for messages in pieces:
            logs.append(log_of(messages, base + sum(map(len, logs))))
        for log in logs:
            expected.append_copy(log)
        expected.commit()
        while store.log.end == base:
            try:
                for log in logs:
                    store.append_copy(log)
            except DiskFailed:
                failures += 1
            store.commit()
        base += sum(map(len, logs))
    assert failures == 1
    assert queue_entries(store) == queue_entries(expected)
    assert store.log.read(0, base) == expected.log.read(0, base)
    store.close()
    expected.close()
    assert derived(disk) == derived(other_disk)
