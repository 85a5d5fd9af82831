"""Commands that name a static topic: each refuses it with the reason and what to do, and changes nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tandemq.cli import main
from tandemq.run.local import LocalCluster
from tests.spec import spec
from tests.unit.client.static_topic import HINT, REFUSAL, create_static_topic, end_of

TOPIC, GROUP = "CliStatic", "of-static"
RunJson = Callable[..., Any]


@pytest.fixture(scope="module")
def static(cluster: LocalCluster) -> LocalCluster:
    """The static topic is on the second broker only; there is a group."""
    create_static_topic(cluster, TOPIC, "broker-b")
    made = CliRunner().invoke(main, ["group", "create", GROUP, "--namesrv", cluster.name_servers])
    assert made.exit_code == 0, made.output
    return cluster


@spec("L08")
@pytest.mark.parametrize(
    "words",
    [
        ("topic", "create", TOPIC),
        ("topic", "create", TOPIC, "--broker", "broker-a"),
        ("topic", "show", TOPIC),
        ("topic", "delete", TOPIC),
        ("topic", "delete", TOPIC, "--yes"),
        ("message", "send", TOPIC, "x"),
        ("message", "send", TOPIC, "x", "--delay", "10s"),
        ("message", "tail", TOPIC, "--seconds", "5"),
        ("message", "query", TOPIC, "--key", "k"),
        ("message", "query", TOPIC, "--broker", "broker-b", "--queue", "0", "--offset", "0"),
        ("offset", "show", GROUP, "--topic", TOPIC),
        ("offset", "reset", GROUP, TOPIC, "--to", "latest"),
        ("offset", "reset", GROUP, TOPIC, "--to", "latest", "--yes"),
    ],
    ids=" ".join,
)
def test_command_refuses_a_static_topic(
    static: LocalCluster, run_text: Callable[..., str], words: tuple[str, ...]
) -> None:
    printed = " ".join(run_text(*words, code=1).split())
    assert f"topic {TOPIC} {REFUSAL}" in printed
    assert HINT in printed
    assert TOPIC not in static.broker("broker-a").node.topics.table
    assert static.broker("broker-b").node.topics.mappings.table[TOPIC].epoch == 1_000
    assert end_of(static, "broker-b", TOPIC) == "0"


@spec("L08")
def test_commands_about_other_topics_go_on(static: LocalCluster, run_json: RunJson, tmp_path: Path) -> None:
    assert TOPIC in run_json("topic", "list")
    run_json("topic", "create", "BesideStatic", "--queues", 1)
    run_json("message", "send", "BesideStatic", "x")
    run_json("group", "create", "beside-static")
    assert "beside-static" in [row["group"] for row in run_json("group", "list")]
