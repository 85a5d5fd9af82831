"""Files of the registry: the result of any crash is replayed; other damage is refused."""

from random import Random

import pytest

from lab.sim.world.disk import PowerLoss, SimDisk
from tandemq.coordination.registry.interface import Create, Write
from tandemq.coordination.registry.tree import Change, NodeCreated, Tree
from tandemq.errors import DiskFailed, StoreDamaged
from tandemq.nameserver import registry_journal as module
from tandemq.nameserver.registry_journal import JOURNAL, SNAPSHOT, Journal


def grow(journal: Journal, tree: Tree, batches: int) -> list[list[Change]]:
    """Write batches; returns the snapshot before the first batch and after each."""
    states = [tree.snapshot()]
    session = tree.open_session(5_000, "me", 0)
    for number in range(batches):
        tree.execute(session, Create(f"/n{number}", bytes(20)))
        tree.execute(session, Write(f"/n{number}", bytes([number]), 0))
        journal.write(tree.take_changes()).datasync()
        states.append(tree.snapshot())
    return states


def test_batches_are_replayed_and_a_torn_end_is_truncated_at_every_byte() -> None:
    disk = SimDisk(Random(1))
    journal = Journal(disk)
    states = grow(journal, journal.load(), 4)
    name = f"{JOURNAL}1"
    whole = disk.read(name)
    assert whole is not None
    seen = set()
    for size in range(len(whole) + 1):
        disk.replace(name, whole[:size])
        again = Journal(disk)
        found = again.load().snapshot()
        assert found in states
        seen.add(states.index(found))
        assert again.end == disk.open(name).size() <= size
    assert seen == set(range(5))


def test_incomplete_end_and_missing_journal_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk(Random(1))
    journal = Journal(disk)
    tree = journal.load()
    grow(journal, tree, 3)
    name = f"{JOURNAL}1"
    whole = disk.read(name)
    assert whole is not None
    Journal(disk).load()
    assert not caplog.records, "a whole journal"
    disk.replace(name, whole[: len(whole) // 2])
    again = Journal(disk)
    again.load()
    (record,) = caplog.records
    assert f"{name} ends with an incomplete batch: {len(whole) // 2 - again.end} bytes from byte {again.end} on" in (
        record.getMessage()
    )
    assert "If the file was cut, changes are missing. Brokers that have seen a newer record" in record.getMessage()
    caplog.clear()
    again.fold(tree)
    disk.remove(f"{JOURNAL}2")
    Journal(disk).load()
    (record,) = caplog.records
    assert f"{JOURNAL}2 is missing: changes since registry.snapshot was written are lost" in record.getMessage()


def test_damage_before_the_last_batch_is_refused_and_not_truncated() -> None:
    disk = SimDisk(Random(1))
    journal = Journal(disk)
    grow(journal, journal.load(), 3)
    name = f"{JOURNAL}1"
    whole = disk.read(name)
    assert whole is not None
    for at in range(0, len(whole) // 2, 7):
        disk.replace(name, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(StoreDamaged, match=f"{name}: the batch at byte"):
            Journal(disk).load()
        assert len(disk.read(name) or b"") == len(whole)


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"journal":1}', b'{"journal":1,"lastSession":0,"changes":[{"type":"end","session":3}]}']
)
def test_damaged_snapshot_is_refused(content: bytes) -> None:
    disk = SimDisk(Random(1))
    disk.replace(SNAPSHOT, content)
    with pytest.raises(StoreDamaged, match=r"registry.snapshot.*members that have seen a newer record"):
        Journal(disk).load()


def test_inapplicable_batch_is_refused() -> None:
    disk = SimDisk(Random(1))
    journal = Journal(disk)
    journal.load()
    journal.write([NodeCreated("/a/b", b"")]).datasync()
    with pytest.raises(StoreDamaged, match="cannot be applied"):
        Journal(disk).load()


def test_fold_keeps_the_tree_and_session_ids_are_not_reused() -> None:
    disk = SimDisk(Random(1))
    journal = Journal(disk)
    tree = journal.load()
    grow(journal, tree, 3)
    tree.close_session(1)
    journal.fold(tree)
    assert journal.end == 0
    assert disk.list("") == [f"{JOURNAL}2", SNAPSHOT]
    again = Journal(disk).load()
    assert again.snapshot() == tree.snapshot()
    assert again.open_session(1_000, "new", 0) == 2


@pytest.mark.parametrize("seed", range(3))
def test_power_loss_at_any_step_of_a_fold_loses_nothing(seed: int) -> None:
    step = 0
    while True:
        step += 1
        disk = SimDisk(Random(seed))
        journal = Journal(disk)
        tree = journal.load()
        states = grow(journal, tree, 3)
        disk.stop_at(step)
        try:
            journal.fold(tree)
        except PowerLoss:
            pass
        else:
            break
        disk.crash()
        again = Journal(disk)
        assert again.load().snapshot() == states[-1]
    assert step == 4, "two files put in place, one removed"


def test_failed_fold_leaves_the_journal_in_use() -> None:
    disk = SimDisk(Random(1))
    journal = Journal(disk)
    tree = journal.load()
    grow(journal, tree, 2)
    disk.fail("replace", prefix=SNAPSHOT)
    with pytest.raises(DiskFailed):
        journal.fold(tree)
    disk.heal()
    tree.execute(1, Create("/later", b""))
    journal.write(tree.take_changes()).datasync()
    assert Journal(disk).load().snapshot() == tree.snapshot()
    journal.fold(tree)
    assert Journal(disk).load().snapshot() == tree.snapshot()


def test_journal_limit_exceeds_the_size_of_one_operation() -> None:
    assert module.JOURNAL_BYTES_MAX > 2 * (256 << 10)
