"""One suite for every disk: the same calls, the same results, the same classes of errors."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.sim.world.disk import OPERATIONS, PAGE_BYTES, DiskEffect, SimDisk
from tandemq.boundary import Buffer, Disk, DiskUsage
from tandemq.errors import DiskFailed, DiskFull, StoreError
from tandemq.real.disk import RealDisk


@pytest.fixture(params=["real", "sim"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    made: Disk = RealDisk(tmp_path / "store") if request.param == "real" else SimDisk(Random(1))
    return made


def test_file_gives_back_what_was_written_at_any_position(disk: Disk) -> None:
    file = disk.open("a/b/c", create=True)
    file.pwrite(b"hello", 10)
    file.pwrite(memoryview(b"-world-")[1:6], 15)
    assert file.size() == 20
    assert file.pread(100, 0) == bytes(10) + b"helloworld"
    assert file.pread(3, 12) == b"llo"
    assert file.pread(4, 18) == b"ld"
    assert file.pread(4, 20) == b""
    assert file.pread(4, 1000) == b""
    assert file.pread(0, 0) == b""


def test_several_buffers_are_written_one_behind_the_other(disk: Disk) -> None:
    file = disk.open("f", create=True)
    parts: list[Buffer] = [b"", b"ab", memoryview(b"xcdex")[1:4], bytearray(b"f"), b""]
    file.pwritev(parts, 3)
    assert disk.read("f") == bytes(3) + b"abcdef"
    file.pwritev([bytes([number % 251]) * 2 for number in range(3_000)], 1)
    assert file.pread(9_000, 1) == b"".join([bytes([number % 251]) * 2 for number in range(3_000)])
    file.close()
    with pytest.raises(DiskFailed):
        file.pwritev([b"a", b"b"], 0)


def test_short_writes_of_several_buffers_are_continued_at_any_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[Buffer] = [b"abc", b"", b"d", memoryview(b"efghi")]
    whole, pwritev, disk = b"abcdefghi", os.pwritev, RealDisk(tmp_path)
    file = disk.open("0", create=True)
    for most in range(1, len(whole) + 1):
        file = disk.open(str(most), create=True)

        def short(fd: int, buffers: list[bytes], at: int, most: int = most) -> int:
            return pwritev(fd, [b"".join(buffers)[:most]], at)

        monkeypatch.setattr(os, "pwritev", short)
        file.pwritev(parts, 5)
        assert file.pread(100, 0) == bytes(5) + whole
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(DiskFull):
        file.pwritev(parts, 5)


def test_file_across_pages_gives_back_what_was_written(disk: Disk) -> None:
    file = disk.open("f", create=True)
    raw = bytes(range(256)) * 50
    file.pwrite(raw, 4090)
    assert file.pread(len(raw) + 9, 4090) == raw
    assert file.pread(10_000, 4000)[:90] == bytes(90)


def test_cached_bytes_are_those_of_a_read(disk: Disk) -> None:
    file = disk.open("f", create=True)
    raw = bytes(range(256)) * 50
    file.pwrite(raw, 100)
    file.will_read(1000, 0)
    for size, position in ((0, 0), (7, 300), (5_000, 4_090), (len(raw), 100), (500, 12_800), (10, 20_000)):
        assert file.pread_cached(size, position) == file.pread(size, position)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (BlockingIOError(), None),  # nothing is cached
        (4_000, None),  # not all
        (OSError(errno.EOPNOTSUPP, "not supported"), bytes(8_000)),
        (OSError(errno.EIO, "broken"), DiskFailed),
    ],
)
def test_read_that_needs_the_device_returns_nothing(
    outcome: int | OSError, expected: bytes | type[Exception] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealDisk(tmp_path).open("f", create=True)
    file.pwrite(bytes(10_000), 0)
    seen: list[int] = []

    def preadv(_descriptor: int, _buffers: list[bytearray], position: int, flags: int) -> int:
        seen.append(flags)
        assert position == 100
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    monkeypatch.setattr(os, "preadv", preadv)
    if isinstance(expected, type):
        with pytest.raises(expected, match="Input/output error"):
            file.pread_cached(8_000, 100)
    else:
        assert file.pread_cached(8_000, 100) == expected
    assert seen == [os.RWF_NOWAIT]


def test_two_handles_of_a_file_see_the_same_bytes(disk: Disk) -> None:
    one = disk.open("f", create=True)
    other = disk.open("f")
    one.pwrite(b"x", 3)
    assert other.pread(9, 0) == b"\0\0\0x"


def test_truncate_longer_reads_as_zero(disk: Disk) -> None:
    file = disk.open("f", create=True)
    file.pwrite(b"abc", 0)
    file.truncate(1 << 30)
    assert file.size() == 1 << 30
    assert file.pread(5, 0) == b"abc\0\0"
    assert file.pread(100, (1 << 30) - 3) == b"\0\0\0"


def test_truncate_shorter_and_longer_again_forgets_the_bytes(disk: Disk) -> None:
    file = disk.open("f", create=True)
    file.pwrite(b"x" * 10_000, 0)
    file.truncate(5000)
    assert file.size() == 5000
    file.truncate(20_000)
    assert file.pread(20_000, 0) == b"x" * 5000 + bytes(15_000)


def test_datasync_of_a_sound_file_returns(disk: Disk) -> None:
    file = disk.open("f", create=True)
    file.pwrite(b"x", 0)
    file.datasync()
    assert disk.read("f") == b"x"


def test_open_of_a_missing_file_fails(disk: Disk) -> None:
    with pytest.raises(DiskFailed):
        disk.open("missing")
    assert not disk.exists("missing")


def test_open_of_a_directory_fails(disk: Disk) -> None:
    disk.open("d/f", create=True)
    with pytest.raises(DiskFailed):
        disk.open("d")
    with pytest.raises(DiskFailed):
        disk.open("d", create=True)


def test_open_below_a_file_fails(disk: Disk) -> None:
    disk.open("f", create=True)
    with pytest.raises(DiskFailed):
        disk.open("f/g", create=True)


def test_a_closed_file_fails_and_closes_twice(disk: Disk) -> None:
    file = disk.open("f", create=True)
    file.close()
    file.close()
    with pytest.raises(DiskFailed):
        file.pread(1, 0)
    with pytest.raises(DiskFailed):
        file.pwrite(b"x", 0)
    with pytest.raises(DiskFailed):
        file.datasync()


def test_positions_before_the_file_fail(disk: Disk) -> None:
    file = disk.open("f", create=True)
    with pytest.raises(StoreError):
        file.pwrite(b"x", -1)
    with pytest.raises(StoreError):
        file.pread(1, -1)
    with pytest.raises(StoreError):
        file.truncate(-1)


def test_list_names_files_and_directories_sorted(disk: Disk) -> None:
    for path in ("d/b", "d/a", "d/sub/x", "other"):
        disk.open(path, create=True)
    assert disk.list("d") == ["a", "b", "sub"]
    assert disk.list("missing") == []
    assert disk.exists("d")
    assert disk.exists("d/sub")
    with pytest.raises(DiskFailed):
        disk.list("other")


def test_read_gives_a_whole_file_or_none(disk: Disk) -> None:
    assert disk.read("f") is None
    disk.open("f", create=True).pwrite(b"abc", 0)
    assert disk.read("f") == b"abc"
    disk.open("d/f", create=True)
    with pytest.raises(DiskFailed):
        disk.read("d")


def test_replace_puts_a_whole_file_and_leaves_nothing_beside_it(disk: Disk) -> None:
    disk.replace("d/f", b"one")
    old = disk.open("d/f")
    disk.replace("d/f", b"longer than before")
    assert disk.read("d/f") == b"longer than before"
    assert old.pread(100, 0) == b"one"
    disk.replace("d/f", b"")
    assert disk.read("d/f") == b""
    assert disk.list("d") == ["f"]


def test_remove_takes_files_and_directories_and_an_open_file_lives_on(disk: Disk) -> None:
    file = disk.open("d/sub/f", create=True)
    disk.open("d/g", create=True)
    file.pwrite(b"x", 0)
    disk.remove("d/g")
    assert disk.list("d") == ["sub"]
    disk.remove("d")
    assert not disk.exists("d/sub/f")
    assert not disk.exists("d")
    assert file.pread(5, 0) == b"x"
    disk.remove("d")
    disk.remove("never/there")


def test_modified_is_the_time_of_a_file_that_is_there(disk: Disk) -> None:
    disk.open("f", create=True).pwrite(b"x", 0)
    assert disk.modified_ms("f") >= 0
    with pytest.raises(DiskFailed):
        disk.modified_ms("missing")


def test_usage_counts_within_the_device(disk: Disk) -> None:
    usage = disk.usage()
    assert 0 < usage.free_bytes <= usage.total_bytes
    assert 0 <= usage.ratio < 1


def test_reserved_blocks_of_a_file_system_are_not_used_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `df` and RocketMQ count: a large reserve does not make a broker delete files."""
    found = os.statvfs_result((4096, 4096, 1000, 800, 100, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: found)
    usage = RealDisk(tmp_path).usage()
    assert usage == DiskUsage(300 * 4096, 100 * 4096)
    assert usage.ratio == pytest.approx(2 / 3)


CALLS = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 3), st.integers(0, 20_000), st.integers(0, 9000)),
    st.tuples(st.just("truncate"), st.integers(0, 3), st.integers(0, 30_000), st.just(0)),
    st.tuples(st.just("replace"), st.integers(0, 3), st.integers(0, 5000), st.just(0)),
    st.tuples(st.just("remove"), st.integers(0, 3), st.just(0), st.just(0)),
    st.tuples(st.just("sync"), st.integers(0, 3), st.just(0), st.just(0)),
)


@given(st.lists(CALLS, max_size=25))
@settings(max_examples=60)
def test_both_disks_hold_the_same_after_any_calls(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[str, int, int, int]]
) -> None:
    disks: list[Disk] = [RealDisk(tmp_path_factory.mktemp("disk")), SimDisk(Random(1))]
    for number, (what, name, at, size) in enumerate(calls):
        raw = bytes([number % 255 + 1]) * size
        for disk in disks:
            path = f"d{name % 2}/f{name}"
            if what == "write":
                disk.open(path, create=True).pwrite(raw, at)
            elif what == "truncate":
                disk.open(path, create=True).truncate(at)
            elif what == "replace":
                disk.replace(path, bytes([number % 255 + 1]) * at)
            elif what == "remove":
                disk.remove(path)
            elif disk.exists(path):
                disk.open(path).datasync()
    real, sim = disks
    for directory in ("d0", "d1"):
        assert real.list(directory) == sim.list(directory)
        for name_ in real.list(directory):
            assert real.read(f"{directory}/{name_}") == sim.read(f"{directory}/{name_}")


def test_sim_disk_full_leaves_no_more_than_fits_and_goes_on_when_there_is_space() -> None:
    disk = SimDisk(Random(1), total_bytes=4 * 4096)
    file = disk.open("f", create=True)
    with pytest.raises(DiskFull):
        file.pwrite(b"x" * 5 * 4096, 0)
    assert file.pread(100_000, 0) == b"x" * 4 * 4096
    assert disk.usage().free_bytes == 0
    file.pwrite(b"y", 0)
    with pytest.raises(DiskFull):
        disk.replace("g", b"x")
    disk.total_bytes += 4096
    disk.replace("g", b"x")
    disk.remove("f")
    assert disk.usage().free_bytes == 4 * 4096


def test_sim_disk_empty_files_of_any_length_cost_nothing() -> None:
    disk = SimDisk(Random(1))
    for number in range(100):
        disk.open(f"log/{number}", create=True).truncate(1 << 30)
    assert disk.usage().free_bytes == disk.total_bytes


@pytest.mark.parametrize("operation", OPERATIONS)
def test_sim_disk_fails_the_call_that_was_asked_for(operation: str) -> None:
    disk = SimDisk(Random(1))
    file = disk.open("f", create=True)
    calls: dict[str, Callable[[], object]] = {
        "pwrite": lambda: file.pwrite(b"x", 0),
        "pread": lambda: file.pread(1, 0),
        "datasync": file.datasync,
        "truncate": lambda: file.truncate(9),
        "create": lambda: disk.open(f"g{disk.counts['create']}", create=True),
        "replace": lambda: disk.replace("h", b""),
        "remove": lambda: disk.remove("h"),
        "read": lambda: disk.read("f"),
    }
    fault = disk.fail(operation, 2, times=2, error=DiskFull)
    outcomes = []
    for _ in range(5):
        try:
            calls[operation]()
            outcomes.append(True)
        except DiskFull:
            outcomes.append(False)
    assert outcomes == [True, False, False, True, True]
    assert fault.seen == 5


def test_sim_disk_crash_keeps_what_was_synced_and_loses_the_rest_by_dice() -> None:
    survived = set()
    for seed in range(60):
        disk = SimDisk(Random(seed))
        file = disk.open("f", create=True)
        file.truncate(1 << 20)
        file.pwrite(b"s" * 10_000, 0)
        file.datasync()
        file.pwrite(b"u" * 10_000, 5000)
        disk.crash()
        with pytest.raises(DiskFailed):
            file.pread(1, 0)
        found = disk.read("f")
        assert found is not None
        assert len(found) == 1 << 20
        assert found[:5000] == b"s" * 5000
        assert set(found[5000:10_000]) <= set(b"su")
        assert set(found[10_000:15_000]) <= set(b"u\0")
        assert not found[15_000:].strip(b"\0")
        survived.add(found[5000:15_000].count(b"u"))
    assert 0 in survived
    assert len(survived) > 5


def test_sim_disk_crash_undoes_names_only_from_some_moment_on() -> None:
    seen = set()
    for seed in range(60):
        disk = SimDisk(Random(seed))
        disk.open("kept", create=True).datasync()
        disk.open("a", create=True)
        disk.remove("kept")
        disk.open("b", create=True)
        disk.crash()
        seen.add(disk.paths())
    assert seen == {("kept",), ("a", "kept"), ("a",), ("a", "b")}


def test_sim_disk_replace_survives_a_crash_at_once() -> None:
    for seed in range(30):
        disk = SimDisk(Random(seed))
        disk.replace("f", b"one")
        disk.replace("f", b"two")
        disk.crash()
        assert disk.read("f") == b"two"


def test_sim_disk_kill_loses_nothing_written() -> None:
    disk = SimDisk(Random(1))
    disk.open("f", create=True).pwrite(b"x" * 9999, 0)
    disk.kill()
    assert disk.read("f") == b"x" * 9999


def test_sim_disk_that_lies_loses_what_was_synced() -> None:
    lost = 0
    for seed in range(20):
        disk = SimDisk(Random(seed))
        file = disk.open("f", create=True)
        file.datasync()
        disk.lies = True
        file.pwrite(b"x", 0)
        file.datasync()
        disk.crash()
        lost += disk.read("f") != b"x"
    assert lost


def test_sim_disk_that_lies_loses_a_replacement_and_keeps_it_once_it_is_honest() -> None:
    found = set()
    for seed in range(40):
        disk = SimDisk(Random(seed))
        disk.replace("f", b"before")
        disk.lies = True
        disk.replace("f", b"after")
        if seed % 2:
            disk.heal()
        disk.crash()
        found.add((seed % 2, disk.read("f") == b"before"))
    assert found == {(0, True), (0, False), (1, False)}


@pytest.mark.parametrize("effect", [DiskEffect.LOST, DiskEffect.MISDIRECTED])
def test_sim_disk_reports_a_write_that_it_does_not_do(effect: DiskEffect) -> None:
    disk = SimDisk(Random(1))
    file = disk.open("f", create=True)
    file.pwrite(b"a" * 8192, 0)
    struck: list[tuple[str, int]] = []
    fault = disk.lie("pwrite", effect, 2, times=1, prefix="f")
    fault.on_strike = lambda path, position: struck.append((path, position))
    fault.allows = lambda _path, position, _data: position != 4096
    for number in range(3):
        file.pwrite(b"b" * 100, 8192 + 100 * number)
    assert struck == [("f", 8292)]
    data = file.pread(9000, 0)
    assert data[8192:] == b"b" * 100 + bytes(100) + b"b" * 100
    elsewhere = data[:8192].count(b"b")
    assert elsewhere == (100 if effect is DiskEffect.MISDIRECTED else 0)
    assert data[4096:4196] == b"a" * 100


def test_sim_disk_reads_older_bytes_for_a_while() -> None:
    disk = SimDisk(Random(1))
    file = disk.open("f", create=True)
    file.pwrite(b"old", 0)
    disk.lie("pread", DiskEffect.STALE, 2, times=1, prefix="f")
    file.pwrite(b"new bytes", 0)
    file.datasync()
    assert [file.pread(9, 0) for _ in range(3)] == [b"new bytes", b"old" + bytes(6), b"new bytes"]
    disk.heal()
    assert disk.read("f") == b"new bytes"


def test_sim_disk_reads_bytes_that_are_not_synced_from_memory() -> None:
    disk = SimDisk(Random(1))
    file = disk.open("f", create=True)
    file.pwrite(bytes(PAGE_BYTES) + b"old", 0)
    file.datasync()
    disk.lie("pread", DiskEffect.STALE, 1, times=2, prefix="f")
    file.pwrite(b"new", 0)
    assert file.pread(3, 0) == b"new"
    assert file.pread(3, PAGE_BYTES) == b"old"


def test_sim_disk_is_the_same_for_the_same_seed() -> None:
    def history(seed: int) -> list[bytes | None]:
        disk = SimDisk(Random(seed))
        for round_ in range(5):
            file = disk.open("f", create=True)
            file.pwrite(bytes([round_ + 1]) * 20_000, round_ * 3000)
            if round_ % 2:
                file.datasync()
            disk.crash()
        return [disk.read(path) for path in disk.paths()]

    assert history(7) == history(7)
    assert len({repr(history(seed)) for seed in range(8)}) > 1


def test_sim_disk_flip_turns_one_bit_that_also_survives_a_crash() -> None:
    disk = SimDisk(Random(3))
    file = disk.open("f", create=True)
    file.pwrite(bytes(5000), 0)
    file.datasync()
    disk.flip("f", 4100, 3)
    disk.crash()
    found = disk.read("f")
    assert found is not None
    assert found[4100] == 8
    assert found.count(0) == 4999
