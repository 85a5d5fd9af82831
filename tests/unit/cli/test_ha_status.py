"""What `tandemq ha status` tells, and what it ends with, when no name server and no registry help."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemq.cli.ha.status import times_texts
from tandemq.coordination.lease import timing
from tandemq.coordination.registry.records import GroupConfig, GroupMember, Mode, Role, config_path, config_to_json
from tandemq.registry import Create, Done, parse_address
from tandemq.run.local import LocalCluster
from tandemq.run.registry_session import RegistryClient
from tests.blackbox.programs import Program, wait_until
from tests.unit.boundary.registries import NameServerPlace
from tests.unit.cli.conftest import Run

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
    """Broker 0 alone is the group."""
    config = config_to_json(GroupConfig(Mode.ELECT, (GroupMember(0, Role.MASTER),)))
    with RegistryClient(parse_address(f"namesrv://127.0.0.1:{place.port}")) as client:
        assert isinstance(client.do(Create(config_path("DefaultCluster", "broker-a"), config)), Done)


def at(program: Program) -> str:
    return f"127.0.0.1:{program.port}"


def wait_said(program: Program, text: str) -> None:
    wait_until(lambda: text in program.log_text(), f"{text} in the log")
    assert program.log_text().count(text) == 1


def test_empty_registry_is_told_by_the_broker_itself(run: Run, place: NameServerPlace, start: Start) -> None:
    names = f"127.0.0.1:{place.port}"
    broker = start(f"namesrv://{names}", namesrvAddr=names)
    told = run("ha", "status", "-n", names, code=1)
    assert told.stdout == ""
    assert f"no broker is registered at {names} (brokers are found through their name servers" in told.stderr
    wait_said(broker, "WARNING failover: trouble: the group's configuration is not in the registry: tandemq ha config")
    text = run("ha", "status", "-n", names, "--address", at(broker)).stdout
    assert "broker-a: the group's configuration has not been read from the registry" in text
    assert "broker 0: the group's configuration is not in the registry: tandemq ha config set" in text
    configure(place)
    wait_said(broker, "WARNING failover: over: the group's configuration is not in the registry")
    assert "master 0, in sync 0" in run("ha", "status", "-n", names).stdout


def test_broker_that_is_no_member_is_told_what_to_do(run: Run, place: NameServerPlace, start: Start) -> None:
    names = f"127.0.0.1:{place.port}"
    configure(place)
    stranger = start(f"namesrv://{names}", namesrvAddr=names, brokerRole="SLAVE", brokerId=7)
    wait_said(stranger, "WARNING failover: trouble: broker 7 is not a member of group broker-a")
    (row,) = (
        row
        for row in json.loads(run("ha", "status", "--json", "-n", names, "--address", at(stranger)).stdout)
        if row["id"] == 7
    )
    assert "tandemq ha config set broker-a --member 7,role=slave" in row["failover"]["why"]
    assert row["failover"]["trouble"] == row["failover"]["why"]


def test_master_whose_name_server_and_registry_died_is_asked_itself(
    run: Run, place: NameServerPlace, start: Start
) -> None:
    names = f"127.0.0.1:{place.port}"
    configure(place)
    broker = start(f"namesrv://{names}", namesrvAddr=names)
    wait_until(lambda: "may be read and written" in broker.log_text(), "it serves")
    place.kill()
    told = run("ha", "status", "-n", names, code=1).stderr
    assert f"nobody answers at {names}" in told
    assert "(--address HOST:PORT)" in told
    wait_said(broker, f"WARNING failover: trouble: the registry namesrv://{names} does not answer")
    done = run("ha", "status", "-n", names, "--address", at(broker))
    assert "read and write" in done.stdout
    assert f"broker 0: the registry namesrv://{names} does not answer" in done.stdout
    assert f"nobody answers at {names}" in done.stderr


def test_zookeeper_that_is_away_at_the_start_is_told(run: Run, start: Start) -> None:
    broker = start("zookeeper://127.0.0.1:1")
    wait_said(broker, "WARNING failover: trouble: the registry zookeeper://127.0.0.1:1 does not answer")
    text = run("ha", "status", "-n", NOBODY, "--address", at(broker)).stdout
    assert "unread" in text
    assert "\nno session yet, lease 1.3 s, 2 looks\n" in text
    assert "broker 0: the registry zookeeper://127.0.0.1:1 does not answer" in text


def test_longer_session_and_its_longer_lease_are_told(run: Run, place: NameServerPlace, start: Start) -> None:
    names = f"127.0.0.1:{place.port}"
    configure(place)
    broker = start(f"namesrv://{names}", namesrvAddr=names, registrySessionTimeout=4_000)
    wait_until(lambda: "may be read and written" in broker.log_text(), "it serves")
    text = run("ha", "status", "-n", names, "--address", at(broker)).stdout
    assert "\nsession 4 s, lease 2.6 s instead of 1.3 s, 2 looks\n" in text


def test_members_with_different_times_are_told_one_by_one() -> None:
    def standing(broker_id: int, session_ms: int) -> dict[str, int]:
        found = timing(session_ms)
        return {"brokerId": broker_id, "sessionMs": session_ms, "leaseMs": found.lease_ms, "checks": found.checks}

    assert times_texts([standing(0, 2_000), standing(1, 2_000)]) == ["session 2 s, lease 1.3 s, 2 looks"]
    assert times_texts([standing(1, 300), standing(0, 6_000)]) == [
        "broker 0: session 6 s, lease 3.9 s instead of 1.3 s, 2 looks",
        "broker 1: session 0.3 s, lease 1.3 s, 3 looks instead of 2",
    ]


def test_addresses_add_nobody_twice_and_show_their_groups_only(run: Run, cluster: LocalCluster) -> None:
    slave = cluster.broker("broker-b", 1)
    words = ["ha", "status", "--json", "-n", cluster.name_servers, "--address", slave.address]
    rows = json.loads(run(*words, "--address", slave.address.replace("127.0.0.1", "localhost")).stdout)
    assert [(row["broker"], row["id"], row["registered"]) for row in rows] == [
        ("broker-b", 0, True),
        ("broker-b", 1, True),
    ]


def test_broker_that_does_not_answer_ends_with_1_and_the_others_are_shown(run: Run, cluster: LocalCluster) -> None:
    words = ["ha", "status", "-n", cluster.name_servers, "--address", NOBODY]
    alone = run(*words, code=1)
    assert (alone.stdout, f"nobody answers at {NOBODY}" in alone.stderr) == ("", True)
    beside = run(*words, "--address", cluster.broker("broker-a").address, code=1)
    assert "broker-a" in beside.stdout
    assert f"nobody answers at {NOBODY}" in beside.stderr


@pytest.mark.parametrize("address", ["nonsense", "host:", "host:port", ":10911", "host:70000"])
def test_what_is_no_address_is_wrong_usage(run: Run, address: str) -> None:
    done = run("ha", "status", "--address", address, code=2)
    assert f"--address {address}: that is no HOST:PORT" in done.stderr


def test_name_server_is_no_broker(run: Run, cluster: LocalCluster) -> None:
    told = run("ha", "status", "--address", cluster.name_servers, code=1).stderr
    assert cluster.name_servers in told


def test_registry_that_is_away_hides_no_registered_broker(run: Run, cluster: LocalCluster) -> None:
    done = run("ha", "status", "-n", cluster.name_servers, "--registry", f"namesrv://{NOBODY}")
    assert "broker-a" in done.stdout
    assert f"the registry namesrv://{NOBODY} does not answer" in done.stderr
