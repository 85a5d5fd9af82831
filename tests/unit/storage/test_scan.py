"""Walk through the log with checks."""

from functools import partial

from tandemq.codec.record.record import encode_record
from tandemq.storage.log.scan import Reader, faults_within, find_next_record

SEGMENT = 1 << 20


def build_log(sizes: list[int]) -> tuple[bytearray, list[int]]:
    """Return contiguous records, and the position of each; the last position is the end."""
    data, starts = bytearray(), [0]
    for number, size in enumerate(sizes):
        data += encode_record(
            topic=b"TopicA",
            queue_id=0,
            queue_offset=number,
            log_offset=len(data),
            body=bytes([number % 251]) * size,
            properties=b"UNIQ_KEY\x01%d\x02" % number,
            flag=0,
            sys_flag=0,
            born_ms=1,
            born_host=bytes(8),
            store_ms=1,
            store_host=bytes(8),
            reconsume_times=0,
            prepared_offset=0,
        )
        starts.append(len(data))
    return data, starts


def faults(data: bytearray, start: int, end: int) -> list[tuple[int, int | None]]:
    found = faults_within(lambda at, size: bytes(data[at : at + size]), start, end, SEGMENT)
    return [(fault.offset, fault.resumes) for fault in found]


def test_valid_records_have_no_faults_for_any_start_of_the_range() -> None:
    data, starts = build_log([100] * 2_000)
    for start in (0, 1, starts[5], starts[1_900] + 3, starts[-2]):
        assert faults(data, start, len(data)) == []


def test_each_damaged_record_in_the_range_is_reported_and_none_before_it() -> None:
    data, starts = build_log([100] * 2_000)
    for number in (10, 1_500, 1_999):
        data[starts[number] + 120] ^= 1
    assert faults(data, starts[1_000], len(data)) == [(starts[1_500], starts[1_501]), (starts[1_999], None)]
    assert faults(data, starts[1_500] + 50, starts[1_600]) == [(starts[1_500], starts[1_501])]
    assert faults(data, starts[10] + 50, starts[20]) == [(starts[10], starts[11])]


def test_damage_in_a_large_record_that_begins_far_before_the_range_is_found() -> None:
    data, starts = build_log([100, 300_000, 100])
    data[starts[1] + 200] ^= 1
    assert faults(data, starts[2] - 1_000, len(data)) == [(starts[1], starts[2])]


def reader_of(data: bytes) -> Reader:
    return lambda at, size: data[at : at + size]


def record_at(log_offset: int) -> bytes:
    return encode_record(
        topic=b"TopicA",
        queue_id=0,
        queue_offset=0,
        log_offset=log_offset,
        body=b"b" * 100,
        properties=b"",
        flag=0,
        sys_flag=0,
        born_ms=1,
        born_host=bytes(8),
        store_ms=1,
        store_host=bytes(8),
    )


def test_a_record_across_search_windows_is_found() -> None:
    for start in [*range(65_400, 65_550), 5 * 65_536 - 1, 5 * 65_536 - 90]:
        record = record_at(start)
        data = b"?" * start + record
        assert find_next_record(reader_of(data), 0, len(data), SEGMENT) == start


PAGE = 4_096


def data_after(data: bytes, at: int) -> int:
    """Return the first offset from one on whose page was written, as file systems tell it."""
    while at < len(data) and not any(data[at - at % PAGE : at - at % PAGE + PAGE]):
        at += PAGE - at % PAGE
    return min(at, len(data))


def test_ranges_never_written_are_skipped_and_the_record_behind_them_is_found() -> None:
    """Its size begins with bytes that are zero, so that it may begin before the first page with data."""
    for start in (5, 20 * PAGE - 90, *(200 * PAGE - before for before in range(6)), 250 * PAGE):
        data = bytes(start) + record_at(start)
        read: list[int] = []

        def reader(at: int, size: int, data: bytes = data, read: list[int] = read) -> bytes:
            read.append(at)
            return data[at : at + size]

        data = data.ljust(SEGMENT, b"\0")
        found = find_next_record(reader, 0, len(data), SEGMENT, partial(data_after, data))
        assert found == start
        assert min(read) >= max(0, start - PAGE)
        assert find_next_record(reader_of(data), 0, len(data), SEGMENT) == start


def test_search_in_a_file_of_zeroes_reads_nothing_of_it() -> None:
    data = bytes(SEGMENT)
    read: list[bytes] = []

    def reader(at: int, size: int) -> bytes:
        read.append(data[at : at + size])
        return read[-1]

    assert find_next_record(reader, 100, SEGMENT, SEGMENT, lambda at: data_after(data, at)) is None
    assert sum(map(len, read)) < 16
