"""`tandemq ha check --nagios`: states, exit codes, thresholds and the form of performance data."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemq.cli.ha.nagios import ClusterFaults, LagLimits, PluginState, plain, plugin_line, unknown_line
from tandemq.run.local import LocalCluster
from tests.spec import spec
from tests.unit.cli.conftest import Run

NOBODY = "127.0.0.1:1"
LABEL = r"(?:[A-Za-z_]+|'[^'=|]+')"
LINE = re.compile(rf"TANDEMQ (OK|WARNING|CRITICAL) - [^|\n]+ \| {LABEL}=\d+B?;\d*;\d*;0(?: {LABEL}=\d+B?;\d*;\d*;0)*\Z")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, slaves=1, mode="static") as running:
        running.wait_in_sync()
        yield running


def values_of(line: str) -> dict[str, str]:
    """Return the performance data of a line: value with limits by label."""
    assert LINE.match(line), line
    return {label.strip("'"): value for label, value in re.findall(r"('[^']+'|\w+)=(\S+)", line.partition(" | ")[2])}


def row(broker_id: int, **changes: Any) -> dict[str, Any]:
    return {"id": broker_id, "state": "answers", "lagBytes": None, "damaged": 0} | changes


def wait_for_state(run: Run, pair: LocalCluster, state: PluginState) -> str:
    """Wait until the plugin has this state; return its line."""
    lines: list[str] = []

    def has_it() -> bool:
        try:
            lines.append(run("ha", "check", "--nagios", "-n", pair.name_servers, code=state).stdout.strip())
        except AssertionError:
            return False
        return True

    pair.wait_until(has_it)
    assert lines[-1].startswith(f"TANDEMQ {state.name} - ")
    return lines[-1]


@spec("O12")
def test_plugin_of_a_real_pair_is_ok_then_warning_then_critical_then_unknown(run: Run, pair: LocalCluster) -> None:
    line = wait_for_state(run, pair, PluginState.OK)
    assert "1 group, 2 brokers |" in line
    assert values_of(line)["answering"] == "2;;;0"
    assert values_of(line)["broker-a_lag"] == "0B;;;0"
    master = pair.broker(broker_id=0).node
    master.puts.refuse("disk full", "the disk is full")
    assert "master 0 takes no messages: the disk is full" in wait_for_state(run, pair, PluginState.CRITICAL)
    master.puts.admit("disk full")
    wait_for_state(run, pair, PluginState.OK)
    pair.broker(broker_id=1).kill()
    assert "slave in sync" in wait_for_state(run, pair, PluginState.WARNING)
    pair.broker(broker_id=0).kill()
    line = wait_for_state(run, pair, PluginState.CRITICAL)
    assert "no master" in line or "no broker is registered" in line
    line = run("ha", "check", "--nagios", "-n", NOBODY, code=3).stdout
    assert line.startswith("TANDEMQ UNKNOWN - ")
    assert line.count("\n") == 1


def test_group_that_does_not_exist_is_critical(run: Run, cluster: LocalCluster) -> None:
    line = run("ha", "check", "--nagios", "-n", cluster.name_servers, "--broker", "broker-z", code=2).stdout.strip()
    assert line.startswith("TANDEMQ CRITICAL - broker-z: no broker of group broker-z")
    assert values_of(line)["groups"] == "0;;;0"


@pytest.mark.parametrize(
    "words",
    [("--nagios", "--json"), ("--warning-lag", "1"), ("--nagios", "--warning-lag", "2", "--critical-lag", "1")],
)
def test_options_that_contradict_each_other_are_refused(words: tuple[str, ...], run: Run) -> None:
    run("ha", "check", "-n", NOBODY, *words, code=2)


@spec("O12")
@pytest.mark.parametrize(
    ("lag", "state"),
    [
        (None, PluginState.OK),
        (100, PluginState.OK),
        (101, PluginState.WARNING),
        (500, PluginState.WARNING),
        (501, PluginState.CRITICAL),
    ],
)
def test_lag_above_a_threshold_has_its_state(lag: int | None, state: PluginState) -> None:
    rows = {"broker-a": [row(0), row(1, lagBytes=lag)]}
    line, found = plugin_line(ClusterFaults({"broker-a": []}, {"broker-a": []}, rows), LagLimits(100, 500))
    assert found is state
    assert values_of(line)["broker-a_lag"] == f"{lag or 0}B;100;500;0"
    assert ("bytes behind" in line) == (state is not PluginState.OK)


def test_worst_fault_is_named_first_and_the_others_are_counted() -> None:
    faults = {"a": ["broker 1 is away"], "b": ["no master", "broker 0 is away"]}
    rows = {"a": [row(0), row(1, state="away")], "b": [row(0, state="no answer", damaged=None)]}
    line, state = plugin_line(ClusterFaults({"a": [], "b": ["no master"]}, faults, rows), LagLimits())
    assert state is PluginState.CRITICAL
    assert line.startswith("TANDEMQ CRITICAL - b: no master (and 2 more) | ")
    values = values_of(line)
    assert (values["groups"], values["brokers"], values["answering"], values["faults"]) == (
        "2;;;0",
        "3;;;0",
        "1;;;0",
        "3;;;0",
    )


def test_text_of_a_fault_does_not_break_the_line() -> None:
    rows = {"a|b": [row(0)]}
    line, _ = plugin_line(ClusterFaults({}, {"a|b": ["two\nlines | x=1"]}, rows), LagLimits())
    assert LINE.match(line), line
    assert "a/b_lag" in values_of(line)
    assert len(plain("x" * 1_000)) == 300
    assert "|" not in unknown_line("no | answer")
