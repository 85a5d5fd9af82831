"""Brokers are listed; their settings are shown and changed."""

from collections.abc import Callable
from typing import Any

from tandemq.run.local import LocalCluster
from tests.unit.cli.conftest import Run

Ask = Callable[..., Any]


def test_list_shows_every_broker(ask: Ask, cluster: LocalCluster) -> None:
    rows = ask("cluster", "list")
    assert [(row["broker"], row["id"], row["answers"]) for row in rows] == [
        ("broker-a", 0, True),
        ("broker-a", 1, True),
        ("broker-b", 0, True),
        ("broker-b", 1, True),
    ]
    assert rows[0]["address"] == cluster.address


def test_settings_are_shown_and_changed_while_the_broker_runs(ask: Ask) -> None:
    assert ask("cluster", "broker-config", "broker-b")["brokerRole"] == "SYNC_MASTER"
    assert ask("cluster", "broker-config", "broker-b", "--id", 1, "--get", "brokerRole") == {"brokerRole": "SLAVE"}
    assert ask("cluster", "broker-config", "broker-b", "--set", "fileReservedTime=47") == {"fileReservedTime": "47"}
    assert ask("cluster", "broker-config", "broker-b", "--get", "fileReservedTime") == {"fileReservedTime": "47"}


def test_broker_or_setting_that_is_not_there_is_wrong_usage(run: Run, cluster: LocalCluster) -> None:
    told = run("cluster", "broker-config", "broker-z", "-n", cluster.name_servers, code=2)
    assert "broker-a/0" in told.stderr
    run("cluster", "broker-config", "broker-a", "--get", "nonsense", "-n", cluster.name_servers, code=2)
    run("cluster", "broker-config", "broker-a", "--set", "nonsense", "-n", cluster.name_servers, code=2)


def test_setting_that_needs_a_restart_is_refused(run: Run, cluster: LocalCluster) -> None:
    run("cluster", "broker-config", "broker-a", "--set", "listenPort=1", "-n", cluster.name_servers, code=1)
