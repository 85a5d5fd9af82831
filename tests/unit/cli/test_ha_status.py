"""`tandemq ha status`: output and exit code when name server or registry do not answer."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemq.cli.ha.status import times_texts
from tandemq.coordination.lease import timing
from tandemq.coordination.registry.records import GroupConfig, GroupMember, Mode, Role, config_path, config_to_json
from tandemq.registry import Create, Done, parse_address
from tandemq.run import registry_session
from tandemq.run.local import LocalCluster
from tandemq.run.registry_session import RegistryClient
from tests.blackbox.programs import Program, wait_until
from tests.unit.boundary.registries import NameServerPlace
from tests.unit.cli.conftest import Run

pytestmark = pytest.mark.system

NOBODY = "127.0.0.1:1"
Start = Callable[..., Program]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[NameServerPlace]:
    """A name server with an empty registry."""
    opened = NameServerPlace(tmp_path / "namesrv")
    yield opened
    opened.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    programs: list[Program] = []

    def begin(registry: str, **settings: object) -> Program:
        directory = tmp_path / f"b{len(programs)}"
        programs.append(Program(directory, brokerName="broker-a", registryAddr=registry, **settings))
        return programs[-1]

    yield begin
    for program in programs:
        program.end()


def configure(place: NameServerPlace) -> None:
    """Configure a group with broker 0 as its only member."""
    config = config_to_json(GroupConfig(Mode.ELECT, (GroupMember(0, Role.MASTER),)))
    with RegistryClient(parse_address(f"namesrv://127.0.0.1:{place.port}")) as client:
        assert isinstance(client.do(Create(config_path("DefaultCluster", "broker-a"), config)), Done)


def at(program: Program) -> str:
    return f"127.0.0.1:{program.port}"


def wait_logged(program: Program, text: str) -> None:
    wait_until(lambda: text in program.log_text(), f"{text} in the log")
    assert program.log_text().count(text) == 1


def test_broker_reports_an_empty_registry(run: Run, place: NameServerPlace, start: Start) -> None:
    names = f"127.0.0.1:{place.port}"
    broker = start(f"namesrv://{names}", namesrvAddr=names)
    printed = run("ha", "status", "-n", names, code=1)
    assert printed.stdout == ""
    assert f"no broker is registered at {names} (brokers are found through name servers" in printed.stderr
    wait_logged(
        broker, "WARNING failover: trouble: the group's configuration is not in the registry: tandemq ha config"
    )
    text = run("ha", "status", "-n", names, "--address", at(broker)).stdout
    assert "broker-a: the group's configuration has not been read from the registry" in text
    assert "broker 0: the group's configuration is not in the registry: tandemq ha config set" in text
    configure(place)
    wait_logged(broker, "WARNING failover: over: the group's configuration is not in the registry")
    assert "master 0, in sync 0" in run("ha", "status", "-n", names).stdout


def test_broker_that_is_not_a_member_reports_what_to_do(run: Run, place: NameServerPlace, start: Start) -> None:
    names = f"127.0.0.1:{place.port}"
    configure(place)
    outsider = start(f"namesrv://{names}", namesrvAddr=names, brokerRole="SLAVE", brokerId=7)
    wait_logged(outsider, "WARNING failover: trouble: broker 7 is not a member of group broker-a")
    (row,) = (
        row
        for row in json.loads(run("ha", "status", "--json", "-n", names, "--address", at(outsider)).stdout)
        if row["id"] == 7
    )
    assert "tandemq ha config set broker-a --member 7,role=slave" in row["failover"]["why"]
    assert row["failover"]["trouble"] == row["failover"]["why"]


def test_master_is_queried_directly_when_name_server_and_registry_died(
    run: Run, place: NameServerPlace, start: Start
) -> None:
    names = f"127.0.0.1:{place.port}"
    configure(place)
    broker = start(f"namesrv://{names}", namesrvAddr=names)
    wait_until(lambda: "may be read and written" in broker.log_text(), "it serves")
    place.kill()
    printed = run("ha", "status", "-n", names, code=1).stderr
    assert f"no process answers at {names}" in printed
    assert "(--address HOST:PORT)" in printed
    wait_logged(broker, f"WARNING failover: trouble: the registry namesrv://{names} does not answer")
    done = run("ha", "status", "-n", names, "--address", at(broker))
    assert "read and write" in done.stdout
    assert f"broker 0: the registry namesrv://{names} does not answer" in done.stdout
    assert f"no process answers at {names}" in done.stderr


@pytest.mark.parametrize("registry", ["zookeeper://127.0.0.1:1", "etcd://127.0.0.1:1/apps?tls=true"])
def test_registry_unreachable_at_the_start_is_reported(run: Run, start: Start, registry: str) -> None:
    broker = start(registry)
    wait_logged(broker, f"WARNING failover: trouble: the registry {registry} does not answer")
    text = run("ha", "status", "-n", NOBODY, "--address", at(broker)).stdout
    assert "unread" in text
    assert "\nno session yet, lease 1.3 s, 2 checks\n" in text
    assert f"broker 0: the registry {registry} does not answer" in text


def test_longer_session_and_its_longer_lease_are_shown(run: Run, place: NameServerPlace, start: Start) -> None:
    names = f"127.0.0.1:{place.port}"
    configure(place)
    broker = start(f"namesrv://{names}", namesrvAddr=names, registrySessionTimeout=4_000)
    wait_until(lambda: "may be read and written" in broker.log_text(), "it serves")
    text = run("ha", "status", "-n", names, "--address", at(broker)).stdout
    assert "\nsession 4 s, lease 2.6 s instead of 1.3 s, 2 checks\n" in text


def test_members_with_different_timeouts_are_listed_one_by_one() -> None:
    def failover(broker_id: int, session_ms: int) -> dict[str, int]:
        found = timing(session_ms)
        return {"brokerId": broker_id, "sessionMs": session_ms, "leaseMs": found.lease_ms, "checks": found.checks}

    assert times_texts([failover(0, 2_000), failover(1, 2_000)]) == ["session 2 s, lease 1.3 s, 2 checks"]
    assert times_texts([failover(1, 300), failover(0, 6_000)]) == [
        "broker 0: session 6 s, lease 3.9 s instead of 1.3 s, 2 checks",
        "broker 1: session 0.3 s, lease 0.195 s instead of 1.3 s, 2 checks",
    ]


def test_addresses_add_no_duplicates_and_show_only_their_groups(run: Run, cluster: LocalCluster) -> None:
    slave = cluster.broker("broker-b", 1)
    words = ["ha", "status", "--json", "-n", cluster.name_servers, "--address", slave.address]
    rows = json.loads(run(*words, "--address", slave.address.replace("127.0.0.1", "localhost")).stdout)
    assert [(row["broker"], row["id"], row["registered"]) for row in rows] == [
        ("broker-b", 0, True),
        ("broker-b", 1, True),
    ]


def test_status_exits_with_1_if_a_broker_does_not_answer_and_shows_the_others(run: Run, cluster: LocalCluster) -> None:
    words = ["ha", "status", "-n", cluster.name_servers, "--address", NOBODY]
    alone = run(*words, code=1)
    assert (alone.stdout, f"no process answers at {NOBODY}" in alone.stderr) == ("", True)
    beside = run(*words, "--address", cluster.broker("broker-a").address, code=1)
    assert "broker-a" in beside.stdout
    assert f"no process answers at {NOBODY}" in beside.stderr


@pytest.mark.parametrize("address", ["nonsense", "host:", "host:port", ":10911", "host:70000"])
def test_malformed_address_is_wrong_usage(run: Run, address: str) -> None:
    done = run("ha", "status", "--address", address, code=2)
    assert f"--address {address}: HOST:PORT is expected" in done.stderr


def test_address_of_a_name_server_is_an_error(run: Run, cluster: LocalCluster) -> None:
    printed = run("ha", "status", "--address", cluster.name_servers, code=1).stderr
    assert cluster.name_servers in printed


def test_registered_brokers_are_shown_while_the_registry_is_unreachable(
    run: Run, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_session, "ANSWER_SECONDS", 1.0)
    done = run("ha", "status", "-n", cluster.name_servers, "--registry", f"namesrv://{NOBODY}")
    assert "broker-a" in done.stdout
    assert f"the registry namesrv://{NOBODY} does not answer" in done.stderr
