"""Epoch table: its file, and the offset at which two histories diverge."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.sim.world.disk import PowerLoss, SimDisk
from tandemq.errors import StoreDamaged
from tandemq.storage.log.epochs import (
    COPIES,
    FILE,
    EpochTable,
    common_end,
    load_epochs,
    restore_epoch_copies,
    save_epochs,
)


def test_table_round_trip() -> None:
    disk = SimDisk(Random(1))
    assert load_epochs(disk) == []
    for pairs in ([(1, 0)], [(1, 0), (2, 100), (7, 100)]):
        save_epochs(disk, pairs)
        assert load_epochs(disk) == pairs
    text = disk.read(FILE)
    assert text is not None
    assert text.decode().split("\n")[2:] == ["1-0", "2-100", "7-100", ""]


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b"1",
        b"x\ny",
        b"2\n0\n1-0\n",
        b"1\n5\n1-0\n",
        b"2\n0\n2-0\n1-5\n",
        b"2\n0\n1-9\n2-5\n",
        b"2\n0\n1-0\n1-5\n",
        b"1\n0\n1\n",
        b"1\n0\n1-2-3\n",
    ],
)
def test_unreadable_table_is_read_from_its_copy_or_refused(content: bytes) -> None:
    """Found by simulation seed 700995: a master without its table has no epoch in common with its slaves."""
    disk = SimDisk(Random(1))
    save_epochs(disk, [(1, 0)])
    for path in COPIES:
        disk.replace(path, content)
        assert load_epochs(disk) == [(1, 0)]
        restore_epoch_copies(disk, [(1, 0)])
    for path in COPIES:
        disk.replace(path, content)
    with pytest.raises(StoreDamaged, match="another member"):
        load_epochs(disk)


def test_every_flipped_bit_is_detected() -> None:
    disk = SimDisk(Random(1))
    save_epochs(disk, [(1, 0), (2, 500)])
    raw = disk.read(FILE)
    assert raw is not None
    crc = raw.index(b"\n") + 1
    for bit in range(crc * 8, len(raw) * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        disk.replace(FILE, bytes(damaged))
        try:
            assert load_epochs(disk) == [(1, 0), (2, 500)]
        except StoreDamaged:
            continue


def test_power_loss_at_every_call_leaves_the_old_or_the_new_table() -> None:
    for nth in (1, 2):
        for corrupt in (False, True):
            disk = SimDisk(Random(nth))
            save_epochs(disk, [(1, 0)])
            save_epochs(disk, [(1, 0), (2, 5)])
            if corrupt:
                disk.replace(FILE, b"junk")
            disk.stop_at(nth, ("replace",))
            with pytest.raises(PowerLoss):
                save_epochs(disk, [(1, 0), (2, 5), (3, 9)])
            disk.crash()
            assert load_epochs(disk) in ([(1, 0)], [(1, 0), (2, 5)], [(1, 0), (2, 5), (3, 9)])


Steps = list[tuple[str, int]]


def history(steps: Steps, start: list[str]) -> tuple[EpochTable, list[str]]:
    """Simulate appends in several epochs; return the table, and for each byte the epoch that wrote it."""
    pairs: EpochTable = []
    log: list[str] = list(start)
    for place, (who, count) in enumerate(steps):
        pairs.append((place + 1, len(log)))
        log += [f"{who}{place}"] * count
    return pairs, log


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=5),
    st.lists(st.integers(0, 5), max_size=3),
    st.lists(st.integers(0, 5), max_size=3),
    st.integers(0, 5),
    st.integers(0, 9),
)
def test_common_end_is_where_histories_diverge(
    shared: list[int], ours_more: list[int], theirs_more: list[int], lag: int, lost: int
) -> None:
    """Two logs share the epochs `shared`; one lags by `lag` bytes in the last one; then each continues on its own.

    A power loss may have destroyed the last bytes of one log, whose table still has the epochs that began in them.
    """
    steps = [("s", count) for count in shared]
    pairs, log = history(steps, [])
    behind = max(pairs[-1][1], len(log) - lag)
    ours_pairs, ours_log = list(pairs), log[:behind]
    theirs_pairs, theirs_log = list(pairs), list(log)
    for number, count in enumerate(ours_more):
        ours_pairs.append((100 + number, len(ours_log)))
        ours_log += [f"o{number}"] * count
    for number, count in enumerate(theirs_more):
        theirs_pairs.append((200 + number, len(theirs_log)))
        theirs_log += [f"t{number}"] * count
    theirs_log = theirs_log[: max(0, len(theirs_log) - lost)]
    same = 0
    while same < min(len(ours_log), len(theirs_log)) and ours_log[same] == theirs_log[same]:
        same += 1
    found = common_end(ours_pairs, len(ours_log), theirs_pairs, len(theirs_log))
    assert found == same == common_end(theirs_pairs, len(theirs_log), ours_pairs, len(ours_log))


def test_histories_without_a_common_epoch_have_no_common_end() -> None:
    assert common_end([(1, 0)], 9, [(2, 0)], 9) is None
    assert common_end([], 9, [(2, 0)], 9) is None
    assert common_end([(1, 0)], 9, [(1, 5)], 9) is None
