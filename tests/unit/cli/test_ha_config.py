"""`tandemq ha config`: groups are configured, contradictions are refused, and `apply` survives interruptions."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemq.coordination.registry.records import (
    BrokerPermission,
    GroupState,
    Mode,
    config_from_json,
    config_path,
    state_path,
    state_to_json,
)
from tandemq.registry import Create, NodeFound, NodeMissing, Outcome, Read, parse_address
from tandemq.run.registry_session import RegistryClient
from tests.blackbox.programs import wait_until
from tests.spec import spec
from tests.unit.boundary.registries import NameServerPlace
from tests.unit.cli.conftest import Run

Config = Callable[..., Any]
PAIR = ("--mode", "slave-consume", "--member", "0,role=master", "--member", "1,role=slave,permission=read,weight=50")


@pytest.fixture
def config(run: Run, tmp_path: Path) -> Config:
    """Run `ha config …` on the test's own database, and return its parsed JSON or the whole result."""

    def command(*words: object, code: int = 0, text: bool = False) -> Any:
        options = () if text else ("--json",)
        done = run("ha", "config", *words, *options, "--database", f"sqlite:///{tmp_path / 'g.db'}", code=code)
        return done if text or code in (1, 2) else json.loads(done.stdout)

    return command


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServerPlace]:
    opened = NameServerPlace(tmp_path_factory.mktemp("namesrv"))
    yield opened
    opened.close()


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> str:
    """Name of the test's own cluster in the shared registry."""
    return f"c-{request.node.name[:60]}"


def address(place: NameServerPlace) -> str:
    return f"namesrv://127.0.0.1:{place.port}"


def read(place: NameServerPlace, path: str) -> Outcome:
    with RegistryClient(parse_address(address(place))) as client:
        return client.do(Read(path))


def test_a_group_is_set_shown_listed_changed_and_removed(config: Config) -> None:
    assert config("list") == []
    made = config("set", "broker-a", *PAIR)
    assert (made["mode"], made["revision"], made["applied"]) == ("slave-consume", 1, False)
    assert made["members"][1] == {"id": 1, "role": "slave", "permission": "READ", "weight": 50, "priority": 0}
    assert config("show", "broker-a") == made
    changed = config("set", "broker-a", "--member", "1,priority=7", "--mode", "elect")
    assert changed["members"][1] == {"id": 1, "role": "slave", "permission": "READ", "weight": 50, "priority": 7}
    assert [member["id"] for member in config("set", "broker-a", "--drop", 1)["members"]] == [0]
    (row,) = config("list")
    assert (row["group"], row["mode"], row["members"], row["revision"]) == ("broker-a", "elect", 1, 3)
    assert config("list", "--cluster", "other") == []
    assert "broker-a: elect, revision 3, not applied yet" in config("show", "broker-a", text=True).output
    config("remove", "broker-a", "--yes")
    assert config("list")[0]["mode"] == "removed"
    assert "group broker-a does not exist" in config("show", "broker-a", code=2).stderr


@spec("F40")
@pytest.mark.parametrize("permission", ["NONE", "WRITE"])
def test_slave_is_exempted_from_serving_reads(config: Config, permission: str) -> None:
    config("set", "broker-a", *PAIR)
    changed = config("set", "broker-a", "--member", f"1,permission={permission}")
    assert changed["members"][1]["permission"] == permission


@spec("F02")
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--member", "1,role=master"), "brokers 0, 1 are all master"),
        (("--drop", "7"), "broker 7 is unknown in group broker-a"),
        (("--member", "7,weight=1"), "broker 7 is unknown in group broker-a"),
        (("--drop", "0"), "it has no master"),
        (("--member", "1,colour=red"), "colour is unknown"),
        (("--member", "1,weight=1,weight=2"), "repeated"),
        (("--member", "x,role=slave"), "--member x,role=slave: the broker id must be a whole number, not 'x' (write"),
        (("--member", "1,weight=much"), "weight must be a whole number, not 'much'"),
        (("--member", "1,priority=1.5"), "priority must be a whole number, not '1.5'"),
        (("--member", "1,role=boss"), "role must be one of master, slave, not 'boss'"),
        (("--member", "1,permission=all"), "permission must be one of FULL, WRITE, READ, NONE, not 'ALL'"),
        (("--member", "1,weight=-3"), "weight -3 is outside"),
    ],
)
def test_contradictory_configuration_is_refused_when_entered(
    config: Config, words: tuple[str, ...], reason: str
) -> None:
    config("set", "broker-a", *PAIR)
    assert reason in config("set", "broker-a", *words, code=2).stderr
    assert config("show", "broker-a")["revision"] == 1


@spec("F02")
@pytest.mark.system
def test_stored_configuration_is_published_and_publishing_again_changes_nothing(
    config: Config, place: NameServerPlace, cluster: str
) -> None:
    def apply(code: int = 0) -> Any:
        return config("apply", "--registry", address(place), code=code)

    assert apply() == []
    config("set", "broker-a", *PAIR, "--cluster", cluster)
    assert apply() == [{"cluster": cluster, "group": "broker-a", "done": "created", "reason": ""}]
    assert config("list")[0]["applied"] is True
    found = read(place, config_path(cluster, "broker-a"))
    assert isinstance(found, NodeFound)
    carried = config_from_json("broker-a", found.data)
    assert carried.mode is Mode.SLAVE_CONSUME
    assert [member.permission for member in carried.members] == [BrokerPermission.FULL, BrokerPermission.READ]
    assert [row["done"] for row in apply()] == ["unchanged"]
    config("remove", "broker-a", "--yes", "--cluster", cluster)
    assert [row["done"] for row in apply()] == ["removed"]
    assert read(place, config_path(cluster, "broker-a")) == NodeMissing()
    assert config("list") == []


def test_add_only_keeps_what_is_stored(config: Config) -> None:
    made = config("set", "broker-a", *PAIR, "--add-only")
    assert (made["mode"], made["revision"]) == ("slave-consume", 1)
    config("set", "broker-a", "--member", "0,weight=7")
    again = ("--mode", "elect", "--member", "0,role=master,weight=50", "--member", "1,role=slave", "--add-only")
    kept = config("set", "broker-a", *again)
    assert (kept["mode"], kept["revision"]) == ("slave-consume", 2)
    added = config("set", "broker-a", *again, "--member", "2,role=slave,priority=3")
    assert (added["mode"], added["revision"]) == ("slave-consume", 3)
    assert [member["weight"] for member in added["members"]] == [7, 50, 100]
    assert added["members"][1]["permission"] == "READ"
    assert added["members"][2]["priority"] == 3
    refused = config("set", "broker-a", "--add-only", "--drop", 1, code=2).stderr
    assert "--add-only and --drop contradict each other" in refused
    assert (
        "must be a whole number" in config("set", "broker-a", "--add-only", "--member", "x,role=slave", code=2).stderr
    )


@spec("F02")
@pytest.mark.system
def test_new_database_imports_the_groups_of_the_registry(
    config: Config, run: Run, place: NameServerPlace, cluster: str, tmp_path: Path
) -> None:
    def other(*words: object) -> Any:
        done = run("ha", "config", *words, "--json", "--database", f"sqlite:///{tmp_path / 'other.db'}")
        return json.loads(done.stdout)

    registry = ("--registry", address(place))
    assert config("import", "--cluster", cluster, *registry) == []
    config("set", "broker-a", *PAIR, "--cluster", cluster)
    config("apply", *registry)
    (row,) = other("import", "--cluster", cluster, *registry)
    assert (row["group"], row["mode"], row["members"], row["applied"]) == ("broker-a", "slave-consume", 2, True)
    assert [group["group"] for group in other("import", *registry) if group["cluster"] == cluster] == []
    assert (
        other("show", "broker-a", "--cluster", cluster)["members"]
        == (config("show", "broker-a", "--cluster", cluster)["members"])
    )
    # A change that is not published yet stays.
    other("set", "broker-a", "--member", "0,weight=3", "--cluster", cluster)
    assert other("import", "--cluster", cluster, *registry) == []
    assert other("show", "broker-a", "--cluster", cluster)["members"][0]["weight"] == 3
    # What a deployment does at each upgrade: only the new member changes in the registry.
    config("set", "broker-a", *PAIR, "--member", "2,role=slave", "--mode", "elect", "--add-only", "--cluster", cluster)
    config("apply", "--cluster", cluster, *registry)
    found = read(place, config_path(cluster, "broker-a"))
    assert isinstance(found, NodeFound)
    published = config_from_json("broker-a", found.data)
    assert published.mode is Mode.SLAVE_CONSUME
    assert [member.broker_id for member in published.members] == [0, 1, 2]


@pytest.mark.system
def test_serving_broker_cannot_be_removed(config: Config, place: NameServerPlace, cluster: str) -> None:
    config("set", "broker-a", *PAIR, "--cluster", cluster)
    with RegistryClient(parse_address(address(place))) as client:
        state = state_to_json(GroupState(3, 0, (0, 1), reader=1))
        client.do(Create(state_path(cluster, "broker-a"), state))
    config("set", "broker-a", "--drop", 1, "--cluster", cluster)
    (row,) = config("apply", "--registry", address(place), code=3)
    assert row["done"] == "refused"
    assert "broker 1 serves reads at present" in row["reason"]


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("apply", "--registry", "nonsense"), 2, "'nonsense' is not the address of a registry"),
        (("apply", "--database", "nonsense"), 2, "the database URL cannot be used"),
        (("list", "--database", "sqlite:////nonexistent/g.db"), 1, "cannot be used: unable to open database file"),
        (("show", "nobody"), 2, "group nobody does not exist"),
        (("remove", "nobody", "--yes"), 2, "group nobody does not exist"),
    ],
)
def test_error_is_one_line_and_an_exit_code(
    run: Run, tmp_path: Path, words: tuple[str, ...], code: int, reason: str
) -> None:
    done = run(
        "ha", "config", *words, *(() if "--database" in words else ("--database", f"sqlite:///{tmp_path}/g")), code=code
    )
    assert len(done.stderr.splitlines()) == 1
    assert reason in done.stderr


@pytest.mark.system
@pytest.mark.parametrize(
    ("registry", "options", "has_attempts"),
    [
        ("zookeeper://127.0.0.1:1", (), False),
        ("zookeeper://127.0.0.1:1", ("-v",), True),
        ("etcd://127.0.0.1:1/apps", (), False),
    ],
)
def test_unreachable_registry_is_one_line_unless_verbose(
    tmp_path: Path, registry: str, options: tuple[str, ...], has_attempts: bool
) -> None:
    words = ("ha", "config", "apply", "--registry", registry)
    within_a_second = (
        "from tandemq.cli import main; from tandemq.run import registry_session;"
        "registry_session.ANSWER_SECONDS = 1.0; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", within_a_second, *options, *words],
        env={**os.environ, "TANDEMQ_DATABASE": f"sqlite:///{tmp_path}/g.db"},
        capture_output=True,
        text=True,
    )
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert f"the registry {registry} does not answer within 1 s" in lines[-1], done.stderr
    assert (len(lines) > 1) is has_attempts, done.stderr


@pytest.mark.system
def test_the_default_database_is_in_the_home_directory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tandemq", "ha", "config", "set", "broker-a", "--member", "0,role=master"],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".tandemq" / "groups.db").is_file()


class Follower:
    """Start `ha config apply --follow` as a process."""

    def __init__(self, database: str, registry: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tandemq", "ha", "config", "apply", "--follow", "--registry", registry],
            env={**os.environ, "TANDEMQ_DATABASE": database},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C counts also where the tests themselves run in the background, with it ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509  # no threads
        )

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(120)


@spec("F02")
@pytest.mark.system
def test_registry_is_correct_after_apply_follow_is_killed_repeatedly(
    config: Config, place: NameServerPlace, cluster: str, tmp_path: Path
) -> None:
    def carried_weight() -> int:
        found = read(place, config_path(cluster, "broker-a"))
        return config_from_json("broker-a", found.data).members[0].weight if isinstance(found, NodeFound) else -1

    def wait_carried(weight: int) -> None:
        wait_until(lambda: carried_weight() == weight, f"weight {weight} is carried")

    database, registry = f"sqlite:///{tmp_path / 'g.db'}", address(place)
    config("set", "broker-a", *PAIR, "--cluster", cluster)
    for weight in range(1, 4):
        follower = Follower(database, registry)
        config("set", "broker-a", "--member", f"0,weight={weight}", "--cluster", cluster)
        wait_carried(weight)
        follower.end(signal.SIGKILL)
    follower = Follower(database, registry)
    place.restart()
    config("set", "broker-a", "--member", "0,weight=9", "--cluster", cluster)
    wait_carried(9)
    wait_until(lambda: config("list")[0]["applied"], "noted")
    assert follower.end(signal.SIGINT) == 130


def test_groups_of_all_shards_are_configured_shown_and_removed_together(config: Config) -> None:
    made = config("set", "a", *PAIR, "--shards", 3)
    assert [each["group"] for each in made] == ["a", "a-1", "a-2"]
    assert [each["members"] for each in made] == [made[0]["members"]] * 3
    config("set", "a-1", "--member", "1,weight=7")
    assert [each["members"][1]["weight"] for each in config("show", "a", "--shards", 3)] == [50, 7, 50]
    assert "a-1: slave-consume, revision 2" in config("show", "a", "--shards", 3, text=True).stdout
    assert "group a-3 does not exist" in config("show", "a", "--shards", 4, code=2).stderr
    assert [each["mode"] for each in config("remove", "a", "--shards", 3, "--yes")] == ["removed"] * 3
