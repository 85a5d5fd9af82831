"""`tandemq broker --shards`: brokers of one machine that serve, die, return and stop together with one process."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tandemq import Message
from tandemq.client.blocking import BlockingProducer
from tandemq.config.settings import NameServerConfig
from tandemq.coordination.registry.records import Mode
from tandemq.errors import TandemError
from tandemq.model.codes import RequestCode
from tandemq.run.groups import configure
from tandemq.run.nameserver import NameServerProcess
from tandemq.run.ports import FAST_PORT_DISTANCE, ReservedPorts
from tandemq.run.restarted_child import RestartedChild
from tests.blackbox.in_process import running
from tests.blackbox.pair import Start
from tests.blackbox.programs import WAIT_S, Caller, Program, runs, wait_until

pytestmark = pytest.mark.timeout(300)
NAMES = ("broker-a", "broker-a-1")
DISTANCE = 10
"""Between the ports of two shards."""


@pytest.fixture
def names(tmp_path: Path) -> Iterator[NameServerProcess]:
    config = NameServerConfig(
        bind_address="127.0.0.1", listen_port=0, data_path=str(tmp_path / "names"), registry_enable=True
    )
    with running(NameServerProcess(config)) as server:
        yield server


@pytest.fixture
def start_shards(start: Start, names: NameServerProcess) -> Iterator[Callable[..., Program]]:
    """Starts a machine with two shards, on ports that stay its own."""
    machines: list[Program] = []
    with closing(ReservedPorts()) as ports:

        def begin(name: str, **settings: object) -> Program:
            distances = (-FAST_PORT_DISTANCE, 1)
            listen = ports.reserve(*distances, *(DISTANCE + distance for distance in (0, *distances)))
            of_machine = {"shards": 2, "namesrvAddr": names.address, "listenPort": listen, "haListenPort": 0}
            machines.append(start(name, **of_machine | {"metricsPort": ports.reserve()} | settings))
            return machines[-1]

        yield begin
        for machine in machines:
            if machine.process.poll() is not None and (machine.directory / "store" / "shards" / "run").exists():
                machine.start()  # it was killed, and its shards were not
            if machine.process.poll() is None:
                machine.stop()


def children_of(pid: int) -> list[int]:
    """Return the process ids of the children of a process."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            found += map(int, path.read_text().split())
    return sorted(found)


def pids(machine: Program) -> list[int]:
    """Return the process ids of the shards as the system has them."""
    return children_of(machine.process.pid)


def inbox_of(pid: int) -> Path:
    """Return the socket to which a shard reports, whose name is its number; empty while it starts or ends."""
    found = None
    with contextlib.suppress(OSError):
        found = re.search(rb"NOTIFY_SOCKET=([^\0]+)", Path(f"/proc/{pid}/environ").read_bytes())
    return Path(found[1].decode()) if found is not None else Path()


def shard_pid(machine: Program, number: int) -> int:
    """Return the process id of a shard; 0 if it does not run."""
    return next((pid for pid in pids(machine) if inbox_of(pid).name == str(number)), 0)


def get(machine: Program, path: str) -> str:
    """Return the response of the metrics port; "" if it is not 200."""
    try:
        url = f"http://127.0.0.1:{machine.settings['metricsPort']}{path}"
        with urllib.request.urlopen(url, timeout=20) as response:
            text: str = response.read().decode()
            return text
    except OSError:
        return ""


def is_ready(machine: Program) -> bool:
    return bool(get(machine, "/readyz"))


def port_of(machine: Program, number: int) -> int:
    return machine.port + DISTANCE * number


def log_end(machine: Program, number: int) -> int:
    with Caller(port_of(machine, number)) as caller:
        return int(caller.ask(RequestCode.TANDEM_PEER_INFO).fields["logEnd"])


def send_all(names: str, count: int) -> dict[str, set[bytes]]:
    """Send messages one after the other; return those that were acknowledged, by the name of the broker."""
    acknowledged: dict[str, set[bytes]] = {name: set() for name in NAMES}
    with BlockingProducer(names, group="g") as producer:
        for number in range(count):
            body = f"{os.urandom(4).hex()} {number}".encode()
            try:
                result = producer.send(Message("T", body))
            except TandemError:
                continue
            acknowledged[result.queue.broker_name].add(body)
    return acknowledged


def create_topic(names: NameServerProcess, brokers: int = 2) -> None:
    """Create the topic T with one queue on each broker, once all are registered."""
    words = ["topic", "create", "T", "--queues", "1", "-n", names.address]
    wait_until(lambda: len(tandemq("cluster", "list", "-n", names.address)) >= brokers, "all brokers are registered")
    assert len(tandemq(*words)["brokers"].split(", ")) == brokers


def tandemq(*words: str, is_json: bool = True) -> Any:
    command = [sys.executable, "-m", "tandemq", *words, *(["--json"] if is_json else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if is_json else done.stdout


def test_killed_shard_returns_alone_and_loses_nothing_acknowledged(
    names: NameServerProcess, start_shards: Callable[..., Program]
) -> None:
    machine = start_shards("machine")
    wait_until(lambda: is_ready(machine), "both shards serve")
    assert [shard["brokerName"] for shard in machine.start_report["shards"]] == [*NAMES]  # type: ignore[attr-defined]
    create_topic(names)
    before = send_all(names.address, 100)
    assert all(before.values()), "producers use both shards"

    first, second = shard_pid(machine, 0), shard_pid(machine, 1)
    os.kill(second, signal.SIGKILL)
    during = send_all(names.address, 50)
    assert during["broker-a"]
    wait_until(lambda: shard_pid(machine, 1) not in (0, second) and is_ready(machine), "the killed shard serves again")
    assert shard_pid(machine, 0) == first
    page = get(machine, "/metrics")
    for name, restarts in (("broker-a", 0), ("broker-a-1", 1)):
        assert f'tandemq_shard_up{{cluster="DefaultCluster",broker="{name}"}} 1' in page
        assert f'tandemq_shard_restarts_total{{cluster="DefaultCluster",broker="{name}"}} {restarts}' in page
    series = [line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series)), "a series is on the page twice"
    for name in NAMES:
        assert f'tandemq_build_info{{cluster="DefaultCluster",broker="{name}"' in page

    after = send_all(names.address, 50)
    assert all(after.values())
    for number, name in enumerate(NAMES):
        with Caller(port_of(machine, number)) as caller:
            stored = caller.read_all("T")
        assert before[name] | during[name] | after[name] <= set(stored)
    children = pids(machine)
    assert machine.stop() == 0
    assert not any(map(runs, children))
    log = machine.log_text()
    assert "shard broker-a-1 ended (killed by SIGKILL); it is started again in" in log
    assert "shard broker-a ended" not in log and "Traceback" not in log
    assert log.count("broker: stopped cleanly") == 2


def test_shards_go_on_without_the_killed_process_that_started_them_and_the_next_one_adopts_them(
    names: NameServerProcess, start_shards: Callable[..., Program]
) -> None:
    machine = start_shards("machine")
    create_topic(names)
    shards = pids(machine)
    assert len(shards) == 2
    machine.kill()
    acknowledged = send_all(names.address, 20)
    assert all(acknowledged.values()), "both shards serve without it"
    assert all(map(runs, shards))

    machine.start()
    assert reported_pids(machine) == shards, "both are adopted"
    assert pids(machine) == [], "none was started"
    wait_until(lambda: is_ready(machine), "both shards serve")
    page = get(machine, "/metrics")
    assert all(f'tandemq_build_info{{cluster="DefaultCluster",broker="{name}"' in page for name in NAMES)
    second = reported_pids(machine)[1]
    os.kill(second, signal.SIGKILL)
    wait_until(lambda: len(pids(machine)) == 1 and is_ready(machine), "the killed shard is started again")
    (again,) = pids(machine)
    machine.kill()

    machine.settings["fileReservedTime"] = 71
    machine.start()
    assert not any(map(runs, [*shards, again])), "shards with other settings are stopped"
    wait_until(lambda: is_ready(machine), "both shards serve")
    last = pids(machine)
    assert len(last) == 2
    for number, name in enumerate(NAMES):
        with Caller(port_of(machine, number)) as caller:
            assert acknowledged[name] <= set(caller.read_all("T"))
    assert machine.stop() == 0
    assert not any(map(runs, last))
    assert [path.name for path in (machine.directory / "store" / "shards").iterdir() if path.name != "1"] == ["lock"]
    log = machine.log_text()
    assert "Traceback" not in log
    assert f"shard broker-a runs already, process {shards[0]}; it is adopted" in log
    assert f"shard broker-a-1, process {again}, runs with other settings; it is stopped" in log


def test_shards_are_started_by_one_process_at_a_time(start_shards: Callable[..., Program]) -> None:
    machine = start_shards("machine")
    command = [sys.executable, "-m", "tandemq", "broker", "-c", str(machine.directory / "broker.conf")]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "another process starts the shards of" in refused.stderr
    assert is_ready(machine)


def reported_pids(machine: Program) -> list[int]:
    """Return the process ids of the shards as the process that started or adopted them has reported."""
    shards: Any = machine.start_report["shards"]
    return [shard["pid"] for shard in shards]


def test_machine_whose_shard_cannot_start_ends_with_the_reason(tmp_path: Path) -> None:
    with closing(ReservedPorts()) as ports:
        listen = ports.reserve(-FAST_PORT_DISTANCE, 1, DISTANCE - FAST_PORT_DISTANCE, DISTANCE + 1)
        words = ["broker", "--shards", "2", "--set", "bindAddress=127.0.0.1", "--set", f"listenPort={listen}"]
        with closing(_listener(listen + DISTANCE)):
            command = [sys.executable, "-m", "tandemq", *words]
            done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{listen + DISTANCE}" in done.stderr
    assert "shard broker-a-1 did not start (exit code 2); its log says why" in done.stderr
    assert "Traceback" not in done.stderr


def _listener(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


def test_slave_machine_copies_each_shard_from_its_own_master(
    names: NameServerProcess, start_shards: Callable[..., Program]
) -> None:
    master = start_shards("master", brokerRole="SYNC_MASTER")
    slave = start_shards("slave", brokerRole="SLAVE", brokerId=1)
    create_topic(names)
    acknowledged = send_all(names.address, 60)
    assert all(acknowledged.values())
    for number in range(2):
        wait_until(lambda: log_end(master, number) == log_end(slave, number) > 0, "the slave has all")  # noqa: B023
    stores = [machine.directory / "store" for machine in (master, slave)]
    assert slave.stop() == 0 and master.stop() == 0
    for directory in ("commitlog", "shards/1/commitlog"):
        ours, theirs = (sorted((store / directory).iterdir()) for store in stores)
        assert [file.name for file in ours] == [file.name for file in theirs]
        assert [file.read_bytes() for file in ours] == [file.read_bytes() for file in theirs]


def test_existing_store_becomes_shard_0_and_fewer_shards_lose_no_message(
    names: NameServerProcess, start_shards: Callable[..., Program]
) -> None:
    machine = start_shards("machine", shards=1)
    create_topic(names, brokers=1)
    alone = send_all(names.address, 10)["broker-a"]
    assert len(alone) == 10
    assert machine.stop() == 0
    machine.settings["shards"] = 2
    machine.start()
    with Caller(machine.port) as caller:
        assert set(caller.read_all("T")) == alone
    wait_until(lambda: is_ready(machine), "both shards serve")
    create_topic(names)
    both = send_all(names.address, 10)
    assert all(both.values())
    assert machine.stop() == 0

    command = [sys.executable, "-m", "tandemq", "broker", "-c", str(machine.directory / "broker.conf"), "--shards", "1"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "shards/1 is the store of a shard and has messages" in refused.stderr
    (machine.directory / "store" / "shards").rename(machine.directory / "moved")
    machine.settings["shards"] = 1
    machine.start()
    with Caller(machine.port) as caller:
        assert set(caller.read_all("T")) == alone | both["broker-a"]


def test_roles_of_all_shards_move_together(names: NameServerProcess, start_shards: Callable[..., Program]) -> None:
    registry = f"namesrv://{names.address}"
    configure(registry, NAMES, Mode.ELECT, 2)
    machines = [start_shards(f"machine-{number}", brokerId=number, registryAddr=registry) for number in range(2)]
    at = ["-n", names.address]

    def masters() -> dict[str, Any]:
        rows = tandemq("ha", "status", *at)
        known = {row["broker"]: row for row in rows if (row["failover"] or {}).get("mayWrite")}
        return {name: row["id"] for name, row in known.items() if len(row["failover"]["inSync"]) == 2}

    wait_until(lambda: masters() == dict.fromkeys(NAMES, 0), "machine 0 has both masters, and slaves in sync")
    done = tandemq("ha", "switch", "--broker", "broker-a", "--to", "1", "--shards", *at)
    assert [(each["broker"], each["from"], each["to"]) for each in done] == [(name, 0, 1) for name in NAMES]
    wait_until(lambda: masters() == dict.fromkeys(NAMES, 1), "machine 1 has both masters, and slaves in sync")

    text = tandemq("ha", "status", *at, is_json=False)
    rows = [line.split("  ")[0] for line in text.splitlines() if line.startswith("broker-a")]
    assert rows == ["broker-a, 2 shards"] * 2
    opened = tandemq("ha", "status", "--shards", *at, is_json=False)
    assert "broker-a-1: mode elect" in opened and "2 shards" not in opened

    address = f"127.0.0.1:{port_of(machines[1], 1)}"
    done = tandemq("ha", "switch", "--away", "--address", address, "--shards", *at)
    assert [(each["broker"], each["from"], each["to"]) for each in done] == [(name, 1, 0) for name in NAMES]
    wait_until(lambda: masters() == dict.fromkeys(NAMES, 0), "machine 0 has both masters again")
    assert [machine.stop() for machine in machines] == [0, 0]


def test_roles_of_all_shards_follow_one_that_failed_over(
    names: NameServerProcess, start_shards: Callable[..., Program]
) -> None:
    registry = f"namesrv://{names.address}"
    configure(registry, NAMES, Mode.ELECT, 2)
    together = {"registryAddr": registry, "shardRolesTogether": "true"}
    machines = [start_shards(f"machine-{number}", brokerId=number, **together) for number in range(2)]
    at = ["-n", names.address]

    def masters() -> dict[str, Any]:
        rows = tandemq("ha", "status", *at)
        known = {row["broker"]: row for row in rows if (row["failover"] or {}).get("mayWrite")}
        return {name: row["id"] for name, row in known.items() if len(row["failover"]["inSync"]) == 2}

    def is_lost() -> bool:
        """Kill the master of shard 1 wherever it is found, until the other machine has taken over."""
        pid = shard_pid(machines[0], 1)
        if pid:
            os.kill(pid, signal.SIGKILL)
        return "took over here" in machines[1].log_text()

    wait_until(lambda: masters() == dict.fromkeys(NAMES, 0), "machine 0 has both masters, and slaves in sync")
    create_topic(names)
    before = send_all(names.address, 40)
    wait_until(is_lost, "machine 1 has taken over shard 1, and shard 0 has followed")
    wait_until(lambda: masters() == dict.fromkeys(NAMES, 1), "machine 1 has both masters, and slaves in sync")
    history = [entry["text"] for entry in tandemq("ha", "history", "--broker", "broker-a", *at)]
    why = "switch from broker 0 to 1 to have all shards of broker-a on one machine"
    assert sum(f"serving: {why}" in text for text in history) == 1
    text = tandemq("ha", "status", "--shards", *at, is_json=False)
    assert "broker-a: roles of its shards move together; broker 1 has all masters" in text
    after = send_all(names.address, 40)
    for number, name in enumerate(NAMES):
        with Caller(port_of(machines[1], number)) as caller:
            assert before[name] | after[name] <= set(caller.read_all("T"))

    tandemq("ha", "switch", "--broker", "broker-a", "--to", "0", *at)
    wait_until(lambda: masters() == {"broker-a": 0, "broker-a-1": 1}, "an operator has moved one role alone")
    assert [machine.stop() for machine in machines] == [0, 0]
    log = "".join(machine.log_text() for machine in machines)
    assert "Traceback" not in log
    assert log.count("which took over here") == 1, "the role moved by an operator is not taken again"


def test_child_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    settings = {"bindAddress": "127.0.0.1", "listenPort": "0", "kvConfigPath": str(tmp_path / "names")}
    child = RestartedChild("the name server", ["namesrv"], settings, stop_s=0.5)
    child.spawn()
    child.wait_ready()
    pid = child.pid
    os.kill(pid, signal.SIGSTOP)
    child.stop()
    assert not child.is_clean and not runs(pid)


def test_machine_stopped_while_it_starts_ends_in_order(tmp_path: Path) -> None:
    words = ["broker", "--shards", "2", "--set", "bindAddress=127.0.0.1", "--set", "listenPort=0"]
    command = [sys.executable, "-m", "tandemq", *words]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: len(children_of(process.pid)) == 2, "the shards are being started")
        children = children_of(process.pid)
        process.terminate()
        _, log = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0 and "Traceback" not in log
    assert not any(map(runs, children))
