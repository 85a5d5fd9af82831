"""`tandemq cluster`: list brokers, show and change their settings."""

from collections.abc import Callable
from typing import Any

from tandemq.run.local import LocalCluster
from tests.unit.cli.conftest import Run

RunJson = Callable[..., Any]


def test_list_shows_every_broker(run_json: RunJson, cluster: LocalCluster) -> None:
    rows = run_json("cluster", "list")
    assert [(row["broker"], row["id"], row["answers"]) for row in rows] == [
        ("broker-a", 0, True),
        ("broker-a", 1, True),
        ("broker-b", 0, True),
        ("broker-b", 1, True),
    ]
    assert rows[0]["address"] == cluster.address


def test_settings_are_shown_and_changed_while_the_broker_runs(run_json: RunJson) -> None:
    assert run_json("cluster", "broker-config", "broker-b")["brokerRole"] == "SYNC_MASTER"
    assert run_json("cluster", "broker-config", "broker-b", "--id", 1, "--get", "brokerRole") == {"brokerRole": "SLAVE"}
    assert run_json("cluster", "broker-config", "broker-b", "--set", "slaveTimeout=2900") == {"slaveTimeout": "2900"}
    assert run_json("cluster", "broker-config", "broker-b", "--get", "slaveTimeout") == {"slaveTimeout": "2900"}


def test_unknown_broker_or_setting_is_named(run: Run, cluster: LocalCluster) -> None:
    printed = run("cluster", "broker-config", "broker-z", "-n", cluster.name_servers, code=1)
    assert "broker-a/0" in printed.stderr
    run("cluster", "broker-config", "broker-a", "--get", "nonsense", "-n", cluster.name_servers, code=1)
    run("cluster", "broker-config", "broker-a", "--set", "nonsense", "-n", cluster.name_servers, code=2)


def test_setting_that_needs_a_restart_is_refused(run: Run, cluster: LocalCluster) -> None:
    run("cluster", "broker-config", "broker-a", "--set", "listenPort=1", "-n", cluster.name_servers, code=1)


def test_setting_that_only_the_file_changes_is_refused(run: Run, cluster: LocalCluster) -> None:
    words = ("cluster", "broker-config", "broker-a", "--set", "fileReservedTime=1", "-n", cluster.name_servers)
    assert "can only be changed in the configuration file" in run(*words, code=1).output
