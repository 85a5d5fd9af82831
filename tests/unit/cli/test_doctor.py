"""`tandemq doctor`: each check on machines, stores, settings and clusters made up for it."""

import errno
import json
import socket
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandemq import __version__
from tandemq.cli.doctor.cluster_checks import CheckedMember, ClusterFacts, clock_difference, cluster_findings
from tandemq.cli.doctor.findings import DoctorFinding, Level
from tandemq.cli.doctor.machine_checks import machine_findings
from tandemq.cli.doctor.machine_facts import UNLIMITED, MachineFacts, read_machine
from tandemq.cli.doctor.registry_checks import registry_findings
from tandemq.cli.doctor.settings_checks import advertised_findings, settings_findings
from tandemq.cli.doctor.store_checks import StoreFacts, file_system_of, read_store, store_findings
from tandemq.cli.ha.status import _empty
from tandemq.cli.support import output
from tandemq.cli.support.members import FoundBroker, Group
from tandemq.cli.support.name_servers import Openings
from tandemq.config.settings import BrokerConfig
from tandemq.registry import parse_address
from tandemq.run import registry_session
from tests.unit.cli.conftest import Run
from tests.unit.real.etcd.scripted_gateway import ScriptedGateway, error

OK, WARNING, PROBLEM = Level

MACHINE = MachineFacts(
    nofile_soft=1_024,
    nofile_hard=1 << 20,
    cores=4,
    files_open=1_000,
    files_max=1_000_000,
    map_count_max=65_530,
    backlog_max=4_096,
    overcommit=0,
    memory_kib=16 << 20,
    memory_free_kib=8 << 20,
    swap_kib=4 << 20,
    swap_used_kib=0,
    huge_pages="madvise",
    is_clock_synchronised=True,
    python="CPython 3.11.7",
    engine="compiled",
    engine_choice="",
)
STORE = StoreFacts(
    path="/data/store",
    exists=True,
    bytes_total=10**12,
    bytes_free=6 * 10**11,
    inodes_total=10**7,
    inodes_free=9 * 10**6,
    file_system="ext4",
    is_read_only=False,
    is_writable=True,
    is_in_use=False,
)


def faults(findings: Iterable[DoctorFinding]) -> list[tuple[Level, str]]:
    """Return level and check of what is not ok; each of it says what to do, and what is ok asks for nothing."""
    found = list(findings)
    assert all(bool(finding.todo) == (finding.level is not OK) for finding in found)
    assert all(finding.text and finding.where for finding in found)
    return [(finding.level, finding.check) for finding in found if finding.level is not OK]


# The machine.


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"nofile_hard": UNLIMITED, "nofile_soft": UNLIMITED}, []),
        ({"nofile_hard": 4_095}, [(WARNING, "open-files")]),
        ({"nofile_hard": 1_023}, [(PROBLEM, "open-files")]),
        ({"files_open": 900_000}, [(WARNING, "file-max")]),
        ({"files_open": None, "files_max": None, "map_count_max": None, "backlog_max": None}, []),
        ({"map_count_max": 65_529}, [(WARNING, "max-map-count")]),
        ({"backlog_max": 128}, [(WARNING, "somaxconn")]),
        ({"overcommit": 2}, [(WARNING, "overcommit")]),
        ({"memory_free_kib": 1 << 19}, [(WARNING, "memory")]),
        ({"swap_used_kib": 2 << 20}, [(WARNING, "swap")]),
        ({"swap_kib": 0, "memory_kib": None, "memory_free_kib": None, "huge_pages": ""}, []),
        ({"is_clock_synchronised": False}, [(WARNING, "clock")]),
        ({"is_clock_synchronised": None}, []),
        ({"engine": "Python"}, [(WARNING, "engine")]),
        ({"engine": "Python", "engine_choice": "python"}, [(WARNING, "engine")]),
    ],
)
def test_machine_is_checked(changes: dict[str, Any], expected: list[tuple[Level, str]]) -> None:
    assert faults(machine_findings(replace(MACHINE, **changes))) == expected


def test_chosen_engine_and_missing_engine_need_different_steps() -> None:
    chosen, missing = (
        next(found for found in machine_findings(replace(MACHINE, engine="Python", engine_choice=choice)) if found.todo)
        for choice in ("python", "")
    )
    assert "unset TANDEMQ_ENGINE" in chosen.todo
    assert "wheel" in missing.todo


def test_facts_are_read_from_the_files_of_the_system() -> None:
    files = {
        "/proc/sys/fs/file-nr": "2176\t0\t9223372036854775807\n",
        "/proc/meminfo": "MemTotal:  1000 kB\nMemAvailable: 400 kB\nSwapTotal: 300 kB\nSwapFree: 100 kB\n",
        "/proc/sys/vm/max_map_count": "65530\n",
        "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    }
    facts = read_machine(lambda path: files.get(path, ""))
    assert (facts.files_open, facts.files_max, facts.map_count_max) == (2_176, (1 << 63) - 1, 65_530)
    assert (facts.memory_kib, facts.memory_free_kib, facts.swap_kib, facts.swap_used_kib) == (1_000, 400, 300, 200)
    assert (facts.huge_pages, facts.backlog_max, facts.overcommit) == ("madvise", None, None)
    assert facts.engine in ("compiled", "Python")
    bare = read_machine(lambda _: "")
    assert (bare.files_open, bare.memory_kib, bare.swap_kib, bare.huge_pages) == (None, None, 0, "")
    assert (
        faults(machine_findings(replace(bare, nofile_hard=1 << 20, engine="compiled", is_clock_synchronised=None)))
        == []
    )
    assert read_machine().memory_kib


# The store.


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"is_in_use": True, "is_writable": False}, []),
        ({"exists": False, "file_system": "", "inodes_total": 0}, []),
        ({"is_writable": False}, [(PROBLEM, "store")]),
        ({"is_read_only": True}, [(PROBLEM, "store")]),
        ({"bytes_free": 249 * 10**9}, [(WARNING, "disk-space")]),
        ({"bytes_free": 10**11}, [(PROBLEM, "disk-space")]),
        ({"inodes_free": 400_000}, [(WARNING, "inodes")]),
        ({"inodes_free": 999}, [(PROBLEM, "inodes")]),
        ({"file_system": "tmpfs"}, [(WARNING, "file-system")]),
        ({"file_system": "nfs4"}, [(WARNING, "file-system")]),
        ({"file_system": "fuse.sshfs"}, [(WARNING, "file-system")]),
        ({"file_system": "overlay"}, [(WARNING, "file-system")]),
    ],
)
def test_store_is_checked(changes: dict[str, Any], expected: list[tuple[Level, str]]) -> None:
    assert faults(store_findings(replace(STORE, **changes), used_max=0.75, full=0.9)) == expected


def test_file_system_is_that_of_the_nearest_mount() -> None:
    mounts = (
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "30 22 0:30 / /data rw - xfs /dev/sdb rw\n"
        "31 30 0:31 / /data/with\\040space rw - nfs4 host:/x rw\n"
        "malformed\n"
    )
    for path, kind in (("/home", "ext4"), ("/data", "xfs"), ("/data/with space/s", "nfs4"), ("/database", "ext4")):
        assert file_system_of(Path(path), lambda: mounts) == kind

    def unreadable() -> str:
        raise PermissionError

    assert file_system_of(Path("/"), unreadable) == ""


def test_facts_of_a_store_are_those_of_the_directory_above_if_it_does_not_exist(tmp_path: Path) -> None:
    facts, above = read_store(tmp_path / "not" / "yet"), read_store(tmp_path)
    assert (facts.path, facts.exists, above.exists) == (str(tmp_path / "not" / "yet"), False, True)
    assert facts.is_writable and not facts.is_in_use and facts.bytes_total == above.bytes_total > 0
    (tmp_path / "file").write_text("")
    assert not read_store(tmp_path / "file").is_writable


# Settings.


def test_ports_in_use_are_problems_unless_the_broker_itself_runs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = BrokerConfig(bind_address="127.0.0.1", listen_port=0, ha_port=port, ha_secret_file="")
        found = list(settings_findings(config, running=()))
        assert faults(found) == [(PROBLEM, "port")]
        [fault] = [finding for finding in found if finding.level is PROBLEM]
        assert f"127.0.0.1:{port} (haListenPort)" in fault.where and "Address already in use" in fault.text
        assert faults(settings_findings(config, running=("broker-a",))) == []
    assert faults(settings_findings(config, running=())) == []
    assert faults(settings_findings(config, running=("broker-a",))) == [(WARNING, "port")]


def test_address_of_another_machine_cannot_be_listened_on() -> None:
    config = BrokerConfig(bind_address="192.0.2.1", listen_port=0, ha_port=10_912, advertised_ip="192.0.2.1")
    ports = [finding for finding in settings_findings(config, running=()) if finding.check == "port"]
    assert [finding.level for finding in ports] == [PROBLEM]
    assert "bindAddress is not an address of this machine" in ports[0].todo


@pytest.mark.parametrize(
    ("mode", "content", "expected"),
    [
        (0o600, "x" * 32, []),
        (0o640, "x" * 32, [(WARNING, "secret")]),
        (0o644, "x" * 32, [(PROBLEM, "secret")]),
        (0o600, "short", [(PROBLEM, "secret")]),
        (None, "", [(PROBLEM, "secret")]),
    ],
)
def test_secrets_are_checked(
    tmp_path: Path, mode: int | None, content: str, expected: list[tuple[Level, str]], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "secret"
    if mode is not None:
        path.write_text(content)
        path.chmod(mode)
    config = BrokerConfig(bind_address="127.0.0.1", listen_port=0, ha_secret_file=str(path))
    assert faults(settings_findings(config, running=())) == expected
    assert caplog.messages == []


def test_certificates_that_cannot_be_read_are_problems(tmp_path: Path) -> None:
    config = BrokerConfig(bind_address="127.0.0.1", listen_port=0, tls_ca_file=str(tmp_path / "none.pem"))
    assert faults(settings_findings(config, running=())) == [(PROBLEM, "certificate")]


def test_open_access_is_a_warning_beyond_the_loopback() -> None:
    local = BrokerConfig(bind_address="127.0.0.1", listen_port=0)
    assert faults(settings_findings(local, running=())) == []
    everywhere = replace(local, bind_address="0.0.0.0", metrics_port=0, metrics_bind_address="0.0.0.0")
    assert faults(settings_findings(everywhere, running=())) == 3 * [(WARNING, "access")]
    closed = replace(everywhere, authentication_enable=True, ha_secret_file=__file__)
    found = settings_findings(closed, running=())
    assert faults(finding for finding in found if finding.check == "access") == [(WARNING, "access")]


@pytest.mark.parametrize(
    ("host", "name_servers", "expected"),
    [
        ("10.0.0.1", ["10.0.0.9:9876"], []),
        ("127.0.0.1", ["127.0.0.1:9876"], []),
        ("127.0.0.1", [], []),
        ("127.0.0.1", ["10.0.0.9:9876"], [PROBLEM]),
        ("127.0.0.1", ["127.0.0.1:9876", "10.0.0.9:9876"], [PROBLEM]),
        ("::1", ["[2001:db8::9]:9876"], [PROBLEM]),
        ("localhost", ["10.0.0.9:9876"], [PROBLEM]),
        ("0.0.0.0", ["10.0.0.9:9876"], [PROBLEM]),
        ("169.254.3.4", ["10.0.0.9:9876"], [PROBLEM]),
        ("172.17.0.2", ["10.0.0.9:9876"], [WARNING]),
        ("172.17.0.2", ["172.17.0.3:9876"], []),
        ("no-such-host.invalid", ["10.0.0.9:9876"], [PROBLEM]),
    ],
)
def test_advertised_addresses_are_checked(
    host: str, name_servers: list[str], expected: list[Level], monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(name: str, *_: object, **__: object) -> list[tuple[Any, ...]]:
        if name.endswith(".invalid"):
            raise socket.gaierror(errno.ENOENT, "unknown")
        return [(0, 0, 0, "", ("127.0.0.1" if name == "localhost" else name, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    found = list(advertised_findings("brokerIP1", host, name_servers, "clients"))
    assert [level for level, _ in faults(found)] == expected


# The registry.


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    opened = ScriptedGateway()
    yield opened
    opened.close()


def test_session_at_the_registry_is_checked(
    gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(registry_session, "ANSWER_SECONDS", 2.0)
    assert faults(registry_findings(parse_address(f"etcd://{gateway.host}"))) == []
    assert gateway.key_version == 0, "the session was ended"
    assert faults(registry_findings(parse_address("etcd://127.0.0.1:1"))) == [(PROBLEM, "registry")]
    unreadable = parse_address(f"etcd://{gateway.host}?user=mq&passwordFile={tmp_path / 'none'}")
    assert faults(registry_findings(unreadable)) == [(PROBLEM, "registry")]


def test_refusing_registry_says_what_to_do(gateway: ScriptedGateway) -> None:
    gateway.script["lease/grant"].extend([lambda _: error(400, 3, "user name is empty")] * 9)
    (found,) = registry_findings(parse_address(f"etcd://{gateway.host}"))
    assert found.level is PROBLEM
    assert "add user=NAME&passwordFile=FILE to the address" in found.text


def test_registry_of_a_single_name_server_is_a_warning_beyond_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_session, "ANSWER_SECONDS", 0.2)
    far, near = (registry_findings(parse_address(f"namesrv://{host}:1")) for host in ("192.0.2.1", "127.0.0.1"))
    assert faults(far) == [(WARNING, "registry"), (PROBLEM, "registry")]
    assert faults(near) == [(PROBLEM, "registry")]


# The cluster.


def group_of(name: str, *members: int, **changes: Any) -> tuple[Group, list[dict[str, Any]]]:
    """Return a healthy group with a master, and its rows."""
    found = [
        FoundBroker(name, number, f"10.0.0.{number + 1}:10911", True, {"isMaster": number == 0, **changes})
        for number in members
    ]
    rows = [
        {**_empty(name, number, f"10.0.0.{number + 1}:10911"), "role": "ASYNC_MASTER", "state": "copies"}
        for number in members
    ]
    return Group(name, found), rows


def member(number: int, **changes: Any) -> CheckedMember:
    facts = CheckedMember(
        name=f"a/{number}",
        group="a",
        address=f"10.0.0.{number + 1}:10911",
        version=f"TandemQ {__version__}",
        clock_ms=(-500.0, 500.0),
        has_secret=True,
    )
    return replace(facts, **changes)


def cluster(*members: CheckedMember, **changes: Any) -> ClusterFacts:
    group, rows = group_of("a", *range(len(members)))
    brokers = frozenset(found.address for found in members)
    facts = ClusterFacts(
        name_servers={"10.0.0.9:9876": brokers, "10.0.0.8:9876": brokers},
        versions={"10.0.0.9:9876": __version__, "10.0.0.8:9876": __version__},
        groups=[group],
        rows={"a": rows},
        members=members,
    )
    return replace(facts, **changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"error": "no process answers"}, [(PROBLEM, "address")]),
        ({"address": "127.0.0.1:10911"}, [(PROBLEM, "advertised-address")]),
        ({"clock_ms": None}, []),
        ({"clock_ms": (-2_500.0, 1_000.0)}, []),
        ({"clock_ms": (2_000.0, 3_500.0)}, [(WARNING, "clock")]),
        ({"clock_ms": (-9_000.0, -2_100.0)}, [(WARNING, "clock")]),
        ({"clock_ms": (61_000.0, 62_000.0)}, [(PROBLEM, "clock")]),
        ({"version": "TandemQ 0.0.9"}, [(WARNING, "version")]),
        ({"version": "RocketMQ V4_9_8"}, [(WARNING, "version")]),
        ({"has_secret": False}, [(PROBLEM, "secret")]),
        ({"has_secret": None}, []),
        ({"shares_secret": False}, [(PROBLEM, "secret")]),
        ({"shares_secret": True}, []),
        ({"refused": 7}, [(WARNING, "secret")]),
    ],
)
def test_members_are_checked(changes: dict[str, Any], expected: list[tuple[Level, str]]) -> None:
    assert faults(cluster_findings(cluster(member(0), member(1, **changes)))) == expected


def test_group_without_secrets_is_no_problem() -> None:
    facts = cluster(member(0, has_secret=False), member(1, has_secret=False))
    assert faults(cluster_findings(facts)) == []


def test_name_servers_are_compared() -> None:
    known = frozenset({"10.0.0.1:10911"})
    silent = cluster(member(0), name_servers={"10.0.0.9:9876": known, "10.0.0.8:9876": "no process answers"})
    assert faults(cluster_findings(silent)) == [(PROBLEM, "name-server")]
    partial = cluster(member(0), name_servers={"10.0.0.9:9876": known, "10.0.0.8:9876": frozenset()})
    assert faults(cluster_findings(partial)) == [(WARNING, "name-server")]


def test_cluster_without_brokers_is_one_problem() -> None:
    empty = ClusterFacts(name_servers={"10.0.0.9:9876": frozenset()}, versions={}, missing="no broker is registered")
    assert faults(cluster_findings(empty)) == [(PROBLEM, "brokers")]
    silent = ClusterFacts(name_servers={"10.0.0.9:9876": "no process answers"}, versions={}, missing="none answers")
    assert faults(cluster_findings(silent)) == [(PROBLEM, "name-server")]


def test_health_and_open_access_are_those_of_ha_check() -> None:
    group, rows = group_of("a", 0, isOpen=True)
    rows[0]["damaged"] = 2
    facts = cluster(member(0), groups=[group], rows={"a": rows}, openings={"10.0.0.9:9876": Openings(False, True)})
    found = list(cluster_findings(facts))
    assert faults(found) == [(PROBLEM, "health"), (WARNING, "access"), (WARNING, "access")]
    assert "damaged ranges" in next(finding.text for finding in found if finding.check == "health" and finding.todo)


@pytest.mark.parametrize(
    ("runtime", "least_ms", "most_ms"),
    [
        ("[ 0 days, 0 hours, 0 minutes, 9 seconds ]", -1_100, 0),
        ("[ 1 days, 2 hours, 3 minutes, 4 seconds ]", 93_773_900, 93_775_000),
    ],
)
def test_clock_of_a_broker_follows_from_its_start_and_uptime(runtime: str, least_ms: int, most_ms: int) -> None:
    table = {"bootTimestamp": "1000000", "runtime": runtime}
    assert clock_difference(table, 1_010_000.0, 1_010_100.0) == (least_ms, most_ms)


@pytest.mark.parametrize("table", [{}, {"runtime": "x", "bootTimestamp": "1"}, {"runtime": "", "bootTimestamp": "x"}])
def test_clock_is_unknown_without_a_time(table: dict[str, str]) -> None:
    assert clock_difference(table, 0.0, 0.0) is None


# The command.


def test_settings_that_are_malformed_are_a_problem(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("listenPort=many\n")
    found = json.loads(run("doctor", "--config", path, "--json", code=3).stdout)
    [fault] = [finding for finding in found["findings"] if finding["level"] == "problem"]
    assert (fault["check"], fault["where"]) == ("settings", str(path))
    assert "listenPort" in fault["text"] and found["problems"] == 1
    assert run("doctor", "--config", tmp_path / "none", code=2).stderr


def test_text_names_the_level_and_fits_the_terminal(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "terminal_columns", lambda: 80)
    path = tmp_path / "broker.conf"
    path.write_text(f"storePathRootDir={tmp_path}\nlistenPort=0\nbrokerIP1=127.0.0.1\nnoSuchFeature=1\n")
    shown = run("doctor", "--config", path, "--namesrv", "127.0.0.1:1", code=3).stdout
    assert max(len(line) for line in shown.splitlines() if str(tmp_path) not in line) <= 80
    assert "\nproblem  " in f"\n{shown}" and "\n         → " in shown
    quiet = run("doctor", "--config", path, "--namesrv", "127.0.0.1:1", "--quiet", code=3).stdout
    assert not [line for line in quiet.splitlines() if line.startswith("ok ")]
    assert quiet.splitlines()[-1] == shown.splitlines()[-1]


def test_ports_of_all_shards_are_checked() -> None:
    config = BrokerConfig(bind_address="127.0.0.1", shards=2, listen_port=29_911, metrics_port=25_557)
    found = list(settings_findings(config, running=()))
    ports = [finding.where for finding in found if finding.check == "port"]
    numbers = (29_911, 29_909, 29_912, 29_921, 29_919, 29_922, 25_557)
    assert [where.partition(" ")[0] for where in ports] == [f"127.0.0.1:{port}" for port in numbers]
    assert "(listenPort of broker-a-1)" in ports[3]
    running = [finding for finding in settings_findings(config, running=("broker-a-1",)) if finding.check == "port"]
    assert [finding.level for finding in running] == [OK] * 3 + [WARNING] * 4, "its ports are free although it runs"
    overlapping = list(settings_findings(replace(config, ha_port=29_921), running=()))
    assert (PROBLEM, "shards") in faults(overlapping)


def test_stores_of_all_shards_are_checked(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "shards").mkdir(parents=True)
    (store / "shards" / "1").write_text("a file in place of a directory")
    left = store / "shards" / "2" / "commitlog"
    left.mkdir(parents=True)
    (left / "00000000000000000000").write_bytes(b"message")
    conf = tmp_path / "broker.conf"
    conf.write_text(f"shards=2\nstorePathRootDir={store}\nbindAddress=127.0.0.1\nlistenPort=29911\n")
    found = json.loads(run("doctor", "--config", str(conf), "--json", code=3).stdout)["findings"]
    stores = {each["where"]: each["level"] for each in found if each["check"] == "store"}
    assert stores == {str(store): "ok", f"{store}/shards/1": "problem"}
    assert len([each for each in found if each["check"] == "disk-space"]) == 2
    (left_store,) = [each for each in found if each["check"] == "shards"]
    assert "2 is the store of a shard and has messages" in left_store["text"]


def test_more_shards_than_cores_are_a_warning() -> None:
    facts = replace(MACHINE, cores=4)
    assert faults(machine_findings(facts, brokers=4)) == []
    assert faults(machine_findings(facts, brokers=5)) == [(WARNING, "cores")]
    assert faults(machine_findings(replace(facts, files_open=10, files_max=16_000), brokers=4)) == [
        (WARNING, "file-max")
    ]
