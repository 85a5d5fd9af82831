"""`tandemq top`: rates between two refreshes, screens that fit, and the command on a cluster and on a terminal."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tandemq.cli.top import TopBroker, TopRefresh, as_json, group_rows, screen
from tandemq.client.admin.groups import ConsumeProgress
from tandemq.model.message import MessageQueue
from tandemq.run.local import LocalCluster

QUEUES = [MessageQueue("Orders", "broker-a", number) for number in range(2)]


def sample_of(taken_s: float, progress: dict[str, list[tuple[int, int]]], brokers: int = 1) -> TopRefresh:
    """Return a refresh; of each group the end and the committed offset of its queues."""
    rows = [TopBroker(f"broker-{number}", 0, 12.0, 3.0, 0.25) for number in range(brokers)]
    groups = {
        name: {queue: ConsumeProgress(*pair, 60_000) for queue, pair in zip(QUEUES, pairs, strict=False)}
        for name, pairs in progress.items()
    }
    return TopRefresh(taken_s, 100_000, 0.01, rows, groups)


def test_rates_are_the_growth_between_two_refreshes() -> None:
    before = sample_of(10.0, {"late": [(100, 50), (10, 10)], "level": [(100, 100)]})
    now = sample_of(12.0, {"late": [(140, 60), (10, 10)], "level": [(140, 140)], "new": [(5, 0)]})
    late, new, level = group_rows(before, now)
    assert (late.group, late.lag, late.in_per_s, late.out_per_s, late.behind_s) == ("late", 80, 20.0, 5.0, 40.0)
    assert (level.group, level.lag, level.in_per_s, level.out_per_s, level.behind_s) == ("level", 0, 20.0, 20.0, 0.0)
    assert (new.group, new.lag, new.in_per_s) == ("new", 5, None), "not known before"
    assert group_rows(None, now)[0].out_per_s is None


def test_offsets_that_were_reset_are_no_negative_rate() -> None:
    before, now = sample_of(0.0, {"g": [(100, 90)]}), sample_of(1.0, {"g": [(100, 10)]})
    assert group_rows(before, now)[0].out_per_s == 0.0


@pytest.mark.parametrize("height", [12, 13, 24, 60])
def test_screen_fits_and_says_how_many_groups_it_leaves_out(height: int) -> None:
    now = sample_of(1.0, {f"group-{number}": [(number, 0)] for number in range(100)}, brokers=30)
    lines = screen(None, now, 40, height, colour=False)
    assert len(lines) <= height
    assert all(len(line) <= 40 for line in lines)
    shown = sum(line.startswith("group-") for line in lines)
    assert f"… and {100 - shown} more groups" in lines[-1]
    assert "group-99" in "".join(lines), "those with most lag are shown"


def test_names_do_not_control_the_terminal() -> None:
    now = sample_of(1.0, {"evil\x1b[2J": [(5, 0)]})
    assert "\x1b" not in "".join(screen(None, now, 200, 40, colour=False))
    assert "evil?[2J" in "".join(screen(None, now, 200, 40, colour=False))


def test_broker_that_does_not_answer_is_shown_with_the_reason() -> None:
    now = TopRefresh(1.0, 0, 0.0, [TopBroker("broker-a", 1, error="it does not answer")])
    assert any("it does not answer" in line for line in screen(None, now, 200, 40, colour=True))
    assert as_json(None, now)["brokers"][0]["error"] == "it does not answer"


def test_top_once_prints_brokers_and_groups_of_a_cluster(
    cluster: LocalCluster, run_json: Callable[..., Any], run_text: Callable[..., str]
) -> None:
    run_json("topic", "create", "Watched")
    for body in ("one", "two", "three"):
        run_json("message", "send", "Watched", body)
    run_json("group", "create", "watchers")
    run_json("offset", "reset", "watchers", "Watched", "--to", "earliest", "--yes")
    found = run_json("top", "--once")
    assert {(one["broker"], one["id"]) for one in found["brokers"]} == {
        (one.name, one.broker_id) for one in cluster.brokers
    }
    [group] = [one for one in found["groups"] if one["group"] == "watchers"]
    assert (group["lag"], group["topics"], group["outPerS"]) == (3, ["Watched"], 0.0)
    text = run_text("top", "--once")
    assert "watchers" in text
    assert "BEHIND" in text


@pytest.mark.system
def test_top_draws_on_a_terminal_and_ends_on_q(cluster: LocalCluster) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "tandemq", "top", "--namesrv", cluster.name_servers, "--interval", "1"]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=subprocess.PIPE)
    os.close(slave)
    try:
        shown, until = b"", time.monotonic() + 120
        while b"GROUP" not in shown and time.monotonic() < until:
            if select.select([master], [], [], 0.5)[0]:
                shown += os.read(master, 65_536)
        assert b"broker-a" in shown
        os.write(master, b"q")
        assert process.wait(120) == 0
        shown += os.read(master, 65_536) if select.select([master], [], [], 0)[0] else b""
        assert shown.rstrip().endswith(b"\x1b[?1049l"), "the screen is restored"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        os.close(master)


def test_json_of_a_refresh_is_one_line() -> None:
    assert json.loads(json.dumps(as_json(None, sample_of(1.0, {"g": [(3, 1)]}))))["groups"][0]["lag"] == 2
