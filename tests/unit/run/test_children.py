"""A cluster of child processes starts, survives a kill, stops cleanly, and stops with its parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tandemq.config.samples import ON_ANY_DISK
from tandemq.coordination.registry.records import Mode
from tandemq.errors import ConfigError
from tandemq.run.children import ChildCluster

pytestmark = pytest.mark.system


def test_pair_of_processes_starts_restarts_after_sigkill_and_stops_cleanly(tmp_path: Path) -> None:
    with ChildCluster(tmp_path, groups=1, slaves=1, settings=ON_ANY_DISK) as cluster:
        master, slave = cluster.brokers
        address, pid = master.address, master.pid
        assert master.log_end() == slave.log_end() == 0
        master.kill()
        assert cluster.dead() == [master]
        assert master.log_end() == -1
        master.start()
        assert master.address == address
        assert master.pid not in {0, pid}
        cluster.wait_until(cluster.all_registered)
        cluster.wait_until(cluster.in_sync)
    assert cluster.unclean == []
    assert not (master.store / "abort").exists()


@pytest.mark.parametrize("mode", [Mode.SLAVE_CONSUME, Mode.ELECT])
def test_pair_with_a_registry_gets_its_roles_back_after_sigkill(tmp_path: Path, mode: Mode) -> None:
    with ChildCluster(tmp_path, groups=1, slaves=1, mode=mode, settings=ON_ANY_DISK) as cluster:
        first, second = cluster.brokers
        assert cluster.masters() == [first]
        assert cluster.registry == f"namesrv://{cluster.name_servers}"
        first.kill()
        takes = {Mode.SLAVE_CONSUME: "mayRead", Mode.ELECT: "mayWrite"}[mode]
        cluster.wait_until(lambda: bool(second.failover_status().get(takes)))
        assert first.failover_status() == {}
        assert cluster.master_of("broker-a") is (second if mode is Mode.ELECT else None)
        first.start()
        cluster.wait_until(cluster.in_sync)
        cluster.wait_until(cluster.all_registered)
        assert cluster.masters() == [second if mode is Mode.ELECT else first]
    assert cluster.unclean == []
    # Without a word about the mode it is what it was.
    with ChildCluster(tmp_path, groups=1, slaves=1, mode=None, settings=ON_ANY_DISK) as cluster:
        assert cluster.mode is mode
        assert [broker.broker_id for broker in cluster.masters()] == [1 if mode is Mode.ELECT else 0]


def test_child_that_cannot_start_reports_the_reason(tmp_path: Path) -> None:
    cluster = ChildCluster(tmp_path, groups=1, slaves=0, settings={"listenPrt": 1})
    with pytest.raises(ConfigError, match=r"broker-a-0 did not start: .*did you mean listenPort"):
        cluster.start()
    assert not cluster.name_server.is_running


def test_children_stop_when_their_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from tandemq.run.children import Child; from pathlib import Path; "
        "child = Child('namesrv', Path(sys.argv[1]), lambda: ['namesrv', '--port', '0', '--set', "
        "'kvConfigPath=' + sys.argv[1]]); child.start(); print(child.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        watched = os.pidfd_open(pid)
        parent.send_signal(signal.SIGKILL)
    try:
        import select

        assert select.select([watched], [], [], 10)[0], "the child outlived its parent"
    finally:
        os.close(watched)
