"""`tandemq group` and `tandemq offset`: groups are created, shown, deleted; their offsets are shown and reset."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tandemq import ConsumeFrom, PushConsumer
from tandemq.run.local import LocalCluster
from tests.unit.cli.conftest import Run

RunJson = Callable[..., Any]


async def consume(name_servers: str, group: str, topic: str, count: int) -> None:
    async with PushConsumer(name_servers, group=group, topics={topic: "*"}, consume_from=ConsumeFrom.FIRST) as consumer:
        for _ in range(count):
            message = await consumer.receive(120)
            assert message is not None
            await message.ack()


def test_created_group_is_listed_and_shown_before_a_member_joins(run_json: RunJson) -> None:
    run_json("group", "create", "fresh", "--retry-max", 3)
    [found] = [row for row in run_json("group", "list") if row["group"] == "fresh"]
    assert found["retryMax"] == 3
    assert run_json("group", "show", "fresh") == {
        "group": "fresh",
        "lag": 0,
        "queues": [],
        "members": [],
        "subscriptions": {},
    }


def test_unknown_group_is_an_error(run: Run, cluster: LocalCluster) -> None:
    for _ in range(2):  # asking does not make it
        printed = run("group", "show", "nobody", "-n", cluster.name_servers, code=1)
        assert "group nobody does not exist" in printed.stderr


def test_list_hides_system_groups_by_default(run_json: RunJson) -> None:
    assert "TOOLS_CONSUMER" not in [row["group"] for row in run_json("group", "list")]
    assert "TOOLS_CONSUMER" in [row["group"] for row in run_json("group", "list", "--all")]


def test_delete_is_previewed(run_json: RunJson) -> None:
    run_json("group", "create", "doomed")
    assert run_json("group", "delete", "doomed")["deleted"] is False
    assert "doomed" in [row["group"] for row in run_json("group", "list")]
    assert run_json("group", "delete", "doomed", "--yes")["deleted"] is True
    assert "doomed" not in [row["group"] for row in run_json("group", "list")]


def test_offsets_of_a_group_are_shown_previewed_and_reset(run_json: RunJson, cluster: LocalCluster) -> None:
    run_json("topic", "create", "Moved", "--queues", 1, "--broker", "broker-a")
    for body in "abcde":
        run_json("message", "send", "Moved", body)
    asyncio.run(consume(cluster.name_servers, "mover", "Moved", 5))
    shown = [row for row in run_json("offset", "show", "mover") if row["topic"] == "Moved"]
    assert [(row["offset"], row["end"], row["lag"]) for row in shown] == [(5, 5, 0)]
    assert run_json("group", "show", "mover")["lag"] == 0

    plan = run_json("offset", "reset", "mover", "Moved", "--to", "earliest")
    assert plan == {
        "group": "mover",
        "topic": "Moved",
        "done": False,
        "queues": [{"broker": "broker-a", "queue": 0, "from": 5, "to": 0, "again": 5}],
    }
    assert run_json("offset", "show", "mover", "--topic", "Moved")[0]["offset"] == 5

    assert run_json("offset", "reset", "mover", "Moved", "--to", "2", "--yes")["done"] is True
    assert run_json("offset", "show", "mover", "--topic", "Moved")[0]["offset"] == 2
    run_json("offset", "reset", "mover", "Moved", "--to", "latest", "--broker", "broker-a", "--queue", 0, "--yes")
    assert run_json("offset", "show", "mover", "--topic", "Moved")[0]["offset"] == 5
    run_json("offset", "reset", "mover", "Moved", "--to", "2001-01-01T00:00", "--yes")
    assert run_json("offset", "show", "mover", "--topic", "Moved")[0]["offset"] == 0


@pytest.mark.parametrize(
    "words",
    [
        ("offset", "show", "nobody"),
        ("offset", "show", "nobody", "--topic", "Somewhere"),
        ("offset", "reset", "nobody", "Somewhere", "--to", "latest"),
        ("offset", "reset", "nobody", "Somewhere", "--to", "latest", "--yes"),
        ("group", "delete", "nobody"),
        ("group", "delete", "nobody", "--yes"),
    ],
)
def test_unknown_group_cannot_be_shown_deleted_or_reset(
    run: Run, run_json: RunJson, cluster: LocalCluster, words: tuple[str, ...]
) -> None:
    run_json("topic", "create", "Somewhere")
    printed = run(*words, "-n", cluster.name_servers, code=1).stderr
    assert "group nobody does not exist" in printed
    assert "tandemq group list" in printed
    if "reset" in words:
        assert "tandemq group create nobody creates it" in printed
    assert "nobody" not in [row["group"] for row in run_json("group", "list")]


def test_offsets_of_a_group_without_members_are_shown(run_json: RunJson) -> None:
    run_json("topic", "create", "Ahead", "--queues", 1)
    for body in "abc":
        run_json("message", "send", "Ahead", body)
    run_json("group", "create", "later")
    assert run_json("offset", "show", "later") == []

    plan = run_json("offset", "reset", "later", "Ahead", "--to", "earliest", "--yes")["queues"]
    assert [(row["broker"], row["from"], row["to"], row["again"]) for row in plan] == [
        ("broker-a", None, 0, None),
        ("broker-b", None, 0, None),
    ]
    shown = run_json("group", "show", "later")
    assert shown["lag"] == sum(row["lag"] for row in shown["queues"]) == 3
    assert {row["broker"] for row in shown["queues"]} == {"broker-a", "broker-b"}
    assert (
        run_json("offset", "show", "later")
        == run_json("offset", "show", "later", "--topic", "Ahead")
        == shown["queues"]
    )

    # The offsets of a group that was deleted without them can still be deleted.
    run_json("group", "delete", "later", "--yes")
    assert run_json("group", "delete", "later", "--clean", "--yes")["deleted"] is True
    with pytest.raises(AssertionError, match="group later does not exist"):
        run_json("group", "show", "later")


def test_missing_offset_is_previewed_as_empty(run_json: RunJson, run_text: Callable[..., str]) -> None:
    run_json("topic", "create", "Unread", "--queues", 1, "--broker", "broker-a")
    run_json("group", "create", "reader")
    [row] = run_json("offset", "reset", "reader", "Unread", "--to", "latest")["queues"]
    assert row == {"broker": "broker-a", "queue": 0, "from": None, "to": 0, "again": None}
    assert "None" not in run_text("offset", "reset", "reader", "Unread", "--to", "latest")


def test_malformed_time_and_incomplete_position_are_wrong_usage(
    run: Run, cluster: LocalCluster, run_json: RunJson
) -> None:
    run_json("topic", "create", "Still")
    run("offset", "reset", "g", "Still", "--to", "soon", "-n", cluster.name_servers, code=2)
    run("offset", "reset", "g", "Still", "--to", "1", "--queue", 1, "-n", cluster.name_servers, code=2)
