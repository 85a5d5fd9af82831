"""Recent writes: the newest bytes of the log, for a second or two and up to a limit."""

from tandemq.storage.log.recent_writes import KEPT_BYTES, RecentWrites
from tests.unit.storage.harness import fill, new_disk, start


def test_bytes_are_those_that_were_written_until_they_have_aged() -> None:
    recent = RecentWrites()
    recent.restart(1000)
    recent.add(b"abc")
    recent.age()
    recent.add(memoryview(b"defg"))
    assert (recent.start, recent.read(1002, 3), recent.read(1005, 100)) == (1000, b"cde", b"fg")
    recent.age()
    assert (recent.start, recent.read(1003, 9)) == (1003, b"defg")
    recent.age()
    assert (recent.start, len(recent.data)) == (1007, 0)


def test_bytes_are_limited_also_between_two_seconds() -> None:
    recent, end = RecentWrites(), 0
    for number in range(50):
        recent.add(bytes([number]) * 100_000)
        end += 100_000
        assert len(recent.data) <= 2 * KEPT_BYTES
        assert recent.start + len(recent.data) == end
        assert recent.read(end - 1, 9) == bytes([number])
    recent.add(b"x" * (KEPT_BYTES - 1), b"y")
    assert (recent.start, len(recent.data)) == (end + KEPT_BYTES, 0)
    recent.add(b"z", b"zz")
    assert (recent.start, recent.read(end + KEPT_BYTES + 1, 9)) == (end + KEPT_BYTES, b"zz")


def test_log_reads_the_same_bytes_from_memory_and_from_its_files() -> None:
    store = start(new_disk())
    fill(store, 60, per_turn=7, size=300)
    end = store.log.written_end
    places = [(offset, size) for offset in range(0, end, 997) for size in (1, 500, 5000)]
    before = [store.log.read(*place) for place in places]
    store.log.recent.restart(end)
    assert before == [store.log.read(*place) for place in places]
