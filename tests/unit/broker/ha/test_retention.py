"""What retention keeps for slaves, also for absent ones and over restarts, until an operator gives them up."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tandemq.boundary import DiskUsage, Now
from tandemq.broker.ha.replica_progress import FILE
from tandemq.coordination.registry.records import Mode
from tandemq.errors import StoreDamaged
from tests.unit.broker.failover.elected import ElectedGroup
from tests.unit.broker.ha.group import Group, Member

HOUR_MS = 3_600_000
CALM: dict[str, Any] = {"delete_when": "23", "disk_used_ratio_max": 95, "disk_force_ratio": 1.0, "disk_full_ratio": 1.0}


def clean(member: Member) -> None:
    """An operator has expired files deleted, a hundred hours later. The first time syncs the queues."""
    changed_ms = member.disk.modified_ms(member.node.store.log.segment_path(member.node.store.log.start))
    for _ in range(2):
        member.node.upkeep.delete_expired()
        member.node.schedule.at(0, lambda now: member.node.upkeep.clean(Now(now.mono_ms, changed_ms + 100 * HOUR_MS)))
        member.turn()


def left_behind(group: Group) -> int:
    """The slave goes away, and the master fills two log files more; where the slave's copy ends."""
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


def test_absent_slave_finds_what_it_lacks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", **CALM)
    offset = left_behind(group)
    clean(group.master)
    assert group.master.node.store.log.start == 0
    assert f"an expired file stays, it is needed by slave 1 (not connected, has the log up to {offset})" in caplog.text
    return_of_slave(group)
    clean(group.master)
    assert group.master.node.store.log.start > offset, "it has all now"


@pytest.mark.parametrize("is_clean", [True, False])
def test_master_started_again_still_knows_what_an_absent_slave_lacks(tmp_path: Path, *, is_clean: bool) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", **CALM)
    left_behind(group)
    clean(start_again(group, clean=is_clean))
    assert group.master.node.store.log.start == 0
    return_of_slave(group)


def test_killed_master_keeps_from_where_its_slave_was_a_minute_ago_at_least(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", **CALM)
    group.send_many(350)
    seen = group.master.log_end
    group.pass_time(60_000)
    group.send_many(20)
    for wire in group.all_wires:
        wire.is_open = False  # the master is not told
    group.refuses = True
    master = group.start_master()
    (needed,) = master.node.replication.masters.needed().values()
    assert needed == seen > master.node.config.segment_bytes


def test_slave_noted_by_a_master_that_kept_no_offsets_may_lack_everything(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", **CALM)
    left_behind(group)
    group.stop(group.master, clean=True)
    for name in (FILE, f"{FILE}.bak"):
        (tmp_path / "master" / "config" / name).unlink(missing_ok=True)
    group.start_master()
    assert list(group.master.node.replication.masters.needed().values()) == [0]


def test_disk_limit_forces_and_says_who_needed_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", delete_when="23", disk_full_ratio=1.0)
    offset = left_behind(group)
    monkeypatch.setattr(group.master.disk, "usage", lambda: DiskUsage(100, 13))
    with caplog.at_level(logging.WARNING):
        clean(group.master)
    size = group.master.node.config.segment_bytes
    assert group.master.node.store.log.start == 2 * size
    for start in (0, size):  # one at a time
        who = f"slave 1 (not connected, has the log up to {offset})"
        assert f"deleted log=[{start},{start + size}) although needed by {who}: the disk is too full" in caplog.text


def test_operator_gives_an_absent_slave_up_until_it_is_back(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", **CALM)
    left_behind(group)
    start_again(group, accept_loss=True)
    clean(start_again(group))
    assert group.master.node.store.log.start > 0, "said once, it holds over restarts"
    (tmp_path / "slave1").rename(tmp_path / "gone")
    return_of_slave(group)
    group.stop(group.slave)
    assert list(group.master.node.replication.masters.needed().values()) == [group.master.log_end]


def test_what_a_slave_has_of_a_cut_tail_does_not_count(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER", **CALM)
    group.send_many(10)
    masters = group.master.node.replication.masters
    cut = group.master.log_end - 100
    group.stop(group.slave)
    group.master.node.replication.set_generations([(1, 0), (2, cut)])
    assert list(masters.needed().values()) == [cut]


def test_offsets_that_are_no_table_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.stop(group.master, clean=True)
    for name in (FILE, f"{FILE}.bak"):
        (tmp_path / "master" / "config" / name).write_text('{"copied": {"slave 1": 7}}')
    with pytest.raises(StoreDamaged, match=r"no table of slaves.*delete it"):
        group.start_master()


def test_classic_slave_counts_while_its_address_is_admitted(tmp_path: Path) -> None:
    group = Group(
        tmp_path, role="ASYNC_MASTER", ha_classic_peers=("10.0.1.1",), slave_changes={"ha_protocol": "classic"}, **CALM
    )
    offset = left_behind(group)
    assert list(group.master.node.replication.masters.needed().values()) == [offset]
    clean(start_again(group))
    assert group.master.node.store.log.start == 0
    clean(start_again(group, ha_classic_peers=()))
    assert group.master.node.store.log.start > 0


@pytest.mark.parametrize("mode", [Mode.ELECT, Mode.SLAVE_CONSUME])
def test_absent_member_counts_as_long_as_it_is_configured(tmp_path: Path, mode: Mode) -> None:
    group = ElectedGroup(tmp_path, mode, **CALM)
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
