"""`tandemq ha check`: one line and an exit code for scripts; `ha status` starts with the same line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemq.cli.ha.health import COLUMNS_MAX, faults_of, open_members, open_warnings, verdict
from tandemq.cli.support.members import FoundBroker, Group
from tandemq.cli.support.name_servers import Openings
from tandemq.run.local import LocalCluster
from tests.unit.cli.conftest import Run

NOBODY = "127.0.0.1:1"
MODES = ("static", "slave-consume", "elect")


@pytest.fixture(params=MODES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, slaves=1, mode=request.param) as running:
        running.wait_in_sync()
        yield running


def wait_for_fault(run: Run, pair: LocalCluster, *texts: str) -> list[str]:
    """Wait until the group has a fault with one of these texts, and return its faults."""
    found: list[str] = []

    def has_it() -> bool:
        (group,) = checked(run, pair, code=None)["groups"]
        found[:] = group["faults"]
        return any(text in one for one in found for text in texts)

    pair.wait_until(has_it)
    return found


def checked(run: Run, pair: LocalCluster, *words: str, code: int | None = 0) -> Any:
    arguments = ("ha", "check", "--json", "-n", pair.name_servers, *words)
    if code is not None:
        return json.loads(run(*arguments, code=code).stdout)
    for either in (3, 0):
        try:
            return json.loads(run(*arguments, code=either).stdout)
        except AssertionError:
            continue
    raise AssertionError("neither healthy nor unhealthy")


def test_pair_is_healthy_until_its_slave_is_gone(run: Run, pair: LocalCluster) -> None:
    pair.wait_until(lambda: checked(run, pair, code=None)["healthy"])
    assert run("ha", "check", "-n", pair.name_servers).stdout == "HEALTHY: 1 group, 2 brokers\n"
    (group,) = checked(run, pair)["groups"]
    assert group == {
        "broker": "broker-a",
        "healthy": True,
        "master": pair.master().broker_id,
        "faults": [],
        "open": [],
    }
    slave = 1 - pair.master().broker_id
    pair.broker(broker_id=slave).kill()
    wait_for_fault(run, pair, f"broker {slave} is away", "SYNC_MASTER 0 has no slave in sync")
    line = run("ha", "check", "-n", pair.name_servers, code=3).stdout
    assert line.startswith("UNHEALTHY: broker-a: ")
    assert line.count("\n") == 1
    status = run("ha", "status", "-n", pair.name_servers).stdout
    assert status.startswith("UNHEALTHY: broker-a: ")


@pytest.mark.parametrize("pair", ["static", "slave-consume"], indirect=True)
def test_group_without_a_master_exits_with_3_and_is_on_top_of_status(run: Run, pair: LocalCluster) -> None:
    pair.broker().kill()
    wait_for_fault(run, pair, "no master")
    printed = checked(run, pair, code=3)
    assert (printed["healthy"], printed["groups"][0]["master"]) == (False, None)
    assert printed["verdict"].startswith("UNHEALTHY: broker-a: no master")
    assert len(printed["verdict"]) <= COLUMNS_MAX
    first, empty, heads = run("ha", "status", "-n", pair.name_servers).stdout.splitlines()[:3]
    assert first.startswith("UNHEALTHY: broker-a: no master")
    assert (empty, heads.split()[:2]) == ("", ["broker", "id"])


def test_unknown_group_exits_with_3(run: Run, cluster: LocalCluster) -> None:
    done = run("ha", "check", "-n", cluster.name_servers, "--broker", "broker-z", code=3)
    assert done.stdout.startswith("UNHEALTHY: broker-z: no broker of group broker-z was found")
    printed = json.loads(run("ha", "check", "-n", cluster.name_servers, "--address", NOBODY, "--json", code=3).stdout)
    assert "no broker given with --address answers" in printed["verdict"]


def test_check_exits_with_1_if_nothing_answers(run: Run) -> None:
    done = run("ha", "check", "-n", NOBODY, code=1)
    assert (done.stdout, f"no process answers at {NOBODY}" in done.stderr) == ("", True)
    run("ha", "check", "--address", "nonsense", code=2)
    assert "Exit code 3" in run("ha", "check", "--help").stdout


# Faults, one by one.


def row(broker_id: int, **changes: Any) -> dict[str, Any]:
    role = "SLAVE" if broker_id else "ASYNC_MASTER"
    return {
        "id": broker_id,
        "role": role,
        "state": "copies" if broker_id else "answers",
        "slaves": [],
        "damaged": 0,
        "slavesInSync": 1,
        "refusing": None,
        "lagBytes": None,
    } | changes


def static(broker_id: int, **changes: Any) -> FoundBroker:
    failover = {"brokerId": broker_id, "isMaster": broker_id == 0, "mode": "static"} | changes
    return FoundBroker("a", broker_id, f"h:{broker_id}", True, failover)


def led(broker_id: int, **changes: Any) -> FoundBroker:
    """A member of a group with a registry, of which broker 0 is the master."""
    members = [{"brokerId": one, "permission": "FULL"} for one in (0, 1)]
    failover = {
        "brokerId": broker_id,
        "isMaster": broker_id == 0,
        "stage": "slave" if broker_id else "serving",
        "epoch": 3,
        "mode": "elect",
        "inSync": [0, 1],
        "members": members,
        "mayRead": True,
        "mayWrite": True,
        "why": "because",
        "registry": "up",
        "registryAddress": "namesrv://h",
        "isLonely": False,
        "trouble": "",
    } | changes
    return FoundBroker("a", broker_id, f"h:{broker_id}", True, failover)


Case = tuple[list[FoundBroker], list[dict[str, Any]], list[str]]
LAGS = {"slave": 1, "address": "h", "inSync": False, "behindBytes": 5}
READ_ONLY = [{"brokerId": 0, "permission": "READ"}, {"brokerId": 1, "permission": "FULL"}]
CASES: dict[str, Case] = {
    "static": ([static(0), static(1)], [row(0), row(1)], []),
    "registry": ([led(0), led(1)], [row(0), row(1)], []),
    "java": ([FoundBroker("a", 0, "h", True)], [row(0, role="MASTER", state="answers; no TandemQ broker")], []),
    "java away": (
        [FoundBroker("a", 0, "h", True)],
        [row(0, role="", state="no answer")],
        ["no master", "broker 0 is away"],
    ),
    "two masters": ([static(0), static(1, isMaster=True)], [row(0), row(1)], ["2 masters: brokers 0, 1"]),
    "handing back": ([led(0, stage="awaiting hand-back"), led(1)], [row(0), row(1)], ["no master"]),
    "not written": ([led(0, mayWrite=False), led(1)], [row(0), row(1)], ["master 0 takes no messages: because"]),
    "not read": ([led(0, mayRead=False), led(1)], [row(0), row(1)], ["master 0 cannot be read: because"]),
    "full disk": ([static(0)], [row(0, refusing="the disk is full")], ["master 0 takes no messages: the disk is full"]),
    "full disk, registry": (
        [led(0), led(1)],
        [row(0, refusing="the disk is full"), row(1)],
        ["master 0 takes no messages: the disk is full"],
    ),
    "slave refuses, as slaves do": ([static(0), static(1)], [row(0), row(1, refusing="a slave")], []),
    "not written, once": (
        [led(0, mayWrite=False), led(1)],
        [row(0, refusing="because"), row(1)],
        ["master 0 takes no messages: because"],
    ),
    "read only by order": ([led(0, mayWrite=False, members=READ_ONLY), led(1)], [row(0), row(1)], []),
    "unlinked": (
        [static(0), static(1)],
        [row(0), row(1, state="has no link to its master")],
        ["broker 1 has no link to its master"],
    ),
    "lagging": ([static(0), static(1)], [row(0, slaves=[LAGS]), row(1)], ["slave 1 is 5 bytes behind"]),
    "alone": ([static(0)], [row(0, role="SYNC_MASTER", slavesInSync=0)], ["SYNC_MASTER 0 has no slave in sync"]),
    "out of sync": ([led(0, inSync=[0]), led(1, epoch=2)], [row(0), row(1)], ["broker 1 is not in sync"]),
    "away": ([led(0, inSync=[0])], [row(0), row(1, role="", state="away")], ["broker 1 is away"]),
    "registry away": (
        [led(0), led(1, registry="suspended")],
        [row(0), row(1)],
        ["broker 1: the registry namesrv://h does not answer"],
    ),
    "trouble": ([led(0, trouble="odd"), led(1)], [row(0), row(1)], ["broker 0: odd"]),
    "damage": ([static(0)], [row(0, damaged=2)], ["the log of broker 0 has 2 damaged ranges"]),
}


@pytest.mark.parametrize("name", CASES)
def test_fault_of_a_group(name: str) -> None:
    members, rows, faults = CASES[name]
    assert faults_of(Group("a", members), rows) == faults


@pytest.mark.parametrize(
    ("faults", "line"),
    [
        ({"a": [], "b": []}, "HEALTHY: 2 groups, 3 brokers"),
        ({"a": ["broker 1 is away"], "b": ["no master"]}, "UNHEALTHY: b: no master (and 1 more)"),
        ({"": ["no broker is registered"]}, "UNHEALTHY: no broker is registered"),
        ({"a": ["line\nbreak"]}, "UNHEALTHY: a: line break"),
    ],
)
def test_verdict_names_the_worst_fault(faults: dict[str, list[str]], line: str) -> None:
    assert verdict(faults, 3) == line


def test_verdict_fits_100_columns() -> None:
    line = verdict({"a" * 90: ["x" * 200, "y"]}, 1)
    assert len(line) == COLUMNS_MAX
    assert line.endswith("… (and 1 more)")


def test_open_members_name_servers_and_metrics_are_warned_of() -> None:
    group = Group("a", [static(0, isOpen=True), static(1, isOpen=False), FoundBroker("a", 2, "h:2", True)])
    assert open_members(group) == [0]
    (warning,) = open_warnings([group], {"h:1": Openings(False, False)})
    assert "at a/0: authenticationEnabled is off" in warning
    many = Group("b", [static(number, isOpen=True, hasOpenMetrics=number == 3) for number in range(8)])
    access, metrics = open_warnings([group, many], {"h:1": Openings(True, True)})
    assert "a/0, b/0, b/1, b/2, b/3 and 5 more:" in access
    assert "metrics of b/3, h:1: there is no metricsCredentialsFile" in metrics
    assert open_warnings([], {"h:1": Openings(True, False)})[0].startswith("any client may do everything at h:1:")
    assert open_warnings([Group("c", [static(0)])], {}) == []
