"""Log files that retention keeps for slaves, also absent ones and over restarts, until an operator removes them."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tandemq.boundary import DiskUsage, Now
from tandemq.broker.ha.replica_progress import FILE
from tandemq.coordination.registry.records import Mode
from tandemq.errors import StoreDamaged
from tests.unit.broker.ha.group import Group, Member
from tests.unit.broker.roles.registry_group import RegistryGroup

HOUR_MS = 3_600_000
CALM: dict[str, Any] = {"delete_when": "23"}


def clean(member: Member) -> None:
    """Delete expired files a hundred hours later, as an operator requests it; the first call syncs the queues."""
    changed_ms = member.disk.modified_ms(member.node.store.log.segment_path(member.node.store.log.start))
    for _ in range(2):
        member.node.upkeep.delete_expired()
        member.node.kernel.schedule.at(
            0, lambda now: member.node.upkeep.clean(Now(now.mono_ms, changed_ms + 100 * HOUR_MS))
        )
        member.turn()


def stop_slave_and_fill_files(group: Group) -> int:
    """Stop the slave, and fill two more log files of the master; return the end of the slave's log."""
    group.send_many(20)
    offset = group.master.log_end
    group.refuses = True
    group.stop(group.slave)
    group.send_many(600)
    group.pass_time(1_000)  # the log is flushed
    assert group.master.log_end > 2 * group.master.node.config.segment_bytes
    return offset


def start_again(group: Group, *, clean: bool = True, **changes: Any) -> Member:
    group.stop(group.master, clean=clean)
    master = group.start_master(**changes)
    group.pass_time(1_000)
    return master


def return_of_slave(group: Group) -> None:
    group.refuses = False
    group.restart_slave()
    group.pass_time(10_000)
    group.assert_same_logs()


def test_log_is_kept_for_an_absent_slave(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", **CALM)
    offset = stop_slave_and_fill_files(group)
    clean(group.master)
    assert group.master.node.store.log.start == 0
    assert f"an expired file stays, it is needed by slave 1 (not connected, has the log up to {offset})" in caplog.text
    return_of_slave(group)
    clean(group.master)
    assert group.master.node.store.log.start > offset, "the slave has all of the log now"


@pytest.mark.parametrize("is_clean", [True, False])
def test_restarted_master_keeps_the_log_for_an_absent_slave(tmp_path: Path, *, is_clean: bool) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", **CALM)
    stop_slave_and_fill_files(group)
    clean(start_again(group, clean=is_clean))
    assert group.master.node.store.log.start == 0
    return_of_slave(group)


def test_killed_master_keeps_the_log_from_the_slaves_offset_a_minute_ago(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", **CALM)
    group.send_many(350)
    seen = group.master.log_end
    group.pass_time(60_000)
    group.send_many(20)
    for wire in group.all_wires:
        wire.is_open = False  # the master is not notified
    group.refuses = True
    master = group.start_master()
    (needed,) = master.node.replication.masters.needed().values()
    assert needed == seen > master.node.config.segment_bytes


def test_known_slave_without_a_saved_offset_keeps_the_whole_log(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", **CALM)
    stop_slave_and_fill_files(group)
    group.stop(group.master, clean=True)
    for name in (FILE.path, FILE.backup):
        (tmp_path / "master" / name).unlink(missing_ok=True)
    group.start_master()
    assert list(group.master.node.replication.masters.needed().values()) == [0]


def test_disk_limit_forces_deletion_and_logs_which_slave_needed_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", delete_when="23", disk_force_ratio=0.85)
    offset = stop_slave_and_fill_files(group)
    monkeypatch.setattr(group.master.disk, "usage", lambda: DiskUsage(100, 13))
    with caplog.at_level(logging.WARNING):
        clean(group.master)
    size = group.master.node.config.segment_bytes
    assert group.master.node.store.log.start == 2 * size
    for start in (0, size):  # one at a time
        who = f"slave 1 (not connected, has the log up to {offset})"
        assert f"deleted log=[{start},{start + size}) although needed by {who}: the disk is too full" in caplog.text


def test_operator_removes_an_absent_slave_until_it_returns(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", **CALM)
    stop_slave_and_fill_files(group)
    start_again(group, accept_loss=True)
    clean(start_again(group))
    assert group.master.node.store.log.start > 0, "it stays removed over restarts"
    (tmp_path / "slave1").rename(tmp_path / "gone")
    return_of_slave(group)
    group.stop(group.slave)
    assert list(group.master.node.replication.masters.needed().values()) == [group.master.log_end]


def test_offset_of_a_slave_in_a_truncated_tail_does_not_count(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", **CALM)
    group.send_many(10)
    masters = group.master.node.replication.masters
    cut = group.master.log_end - 100
    group.stop(group.slave)
    group.master.node.kernel.generations.set([(1, 0), (2, cut)])
    assert list(masters.needed().values()) == [cut]


def test_invalid_table_of_slave_offsets_is_an_error_with_a_hint(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.stop(group.master, clean=True)
    for name in (FILE.path, FILE.backup):
        (tmp_path / "master" / name).write_text('{"copied": {"slave 1": 7}}')
    with pytest.raises(StoreDamaged, match=r"is damaged.*delete it"):
        group.start_master()


def test_classic_slave_counts_while_its_address_is_admitted(tmp_path: Path) -> None:
    group = Group(
        tmp_path, role="ASYNC_MASTER", ha_classic_peers=("10.0.1.1",), slave_changes={"ha_protocol": "classic"}, **CALM
    )
    offset = stop_slave_and_fill_files(group)
    assert list(group.master.node.replication.masters.needed().values()) == [offset]
    clean(start_again(group))
    assert group.master.node.store.log.start == 0
    clean(start_again(group, ha_classic_peers=()))
    assert group.master.node.store.log.start > 0


@pytest.mark.parametrize("mode", [Mode.ELECT, Mode.SLAVE_CONSUME])
def test_absent_member_counts_as_long_as_it_is_configured(tmp_path: Path, mode: Mode) -> None:
    group = RegistryGroup(tmp_path, mode, **CALM)
    master = group.serving
    other = 1 - master.node.config.broker_id
    offset = master.log_end
    group.kill(other)
    needed = master.node.replication.masters.needed
    assert needed() == {f"slave {other} (not connected, has the log up to {offset})": offset}
    del group.allowed[other]
    group.configure()
    group.pass_time(1_000)
    assert needed() == {}
