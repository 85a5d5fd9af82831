"""`tandemq quota`: limits are set, listed with how often they were exceeded, and deleted."""

from collections.abc import Callable
from typing import Any

import pytest

from tandemq.cli.admin import message
from tandemq.run.local import LocalCluster
from tests.unit.cli.conftest import Run

RunJson = Callable[..., Any]


def test_limit_is_set_exceeded_listed_and_deleted(
    run: Run, run_json: RunJson, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message, "RETRY_MS", 500)
    run_json("topic", "create", "Tight", "--queues", 1, "--broker", "broker-a")
    run_json("quota", "set", "topic", "Tight", "--messages", 1, "--bytes", 500)
    run_json("quota", "set", "group", "*", "--in-flight", 10)
    run_json("message", "send", "Tight", "x" * 4_000)
    printed = run("message", "send", "Tight", "y", "-n", cluster.name_servers, code=1)
    assert "topic Tight exceeds its limit" in printed.stderr
    rows = {(row["kind"], row["name"]): row for row in run_json("quota", "list")}
    tight = rows["topic", "Tight"]
    assert (tight["messages/s"], tight["bytes/s"], tight["slows"]) == (1, 500, False)
    assert tight["refused"] >= 1
    assert rows["group", "*"]["inFlight"] == 10
    for kind, name in rows:
        run_json("quota", "delete", kind, name)
    assert run_json("quota", "list") == []
    run_json("message", "send", "Tight", "z")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("set", "topic", "T"), "nothing is limited"),
        (("set", "topic", "a b", "--messages", "1"), "topic"),
        (("set", "group", "g", "--messages", "1", "--slow"), "always wait"),
        (("set", "cluster", "c", "--messages", "1"), "cluster"),
    ],
)
def test_wrong_limits_are_errors_with_the_reason(run: Run, words: tuple[str, ...], why: str) -> None:
    code = 1 if why in ("topic", "always wait") else 2
    assert why in run("quota", *words, "-n", "127.0.0.1:1", code=code).stderr
