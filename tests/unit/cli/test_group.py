"""Groups are created, shown, deleted; their offsets are shown and moved."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tandemq import ConsumeFrom, PushConsumer
from tandemq.run.local import LocalCluster
from tests.unit.cli.conftest import Run

Ask = Callable[..., Any]


async def consume(name_servers: str, group: str, topic: str, count: int) -> None:
    async with PushConsumer(name_servers, group=group, topics={topic: "*"}, consume_from=ConsumeFrom.FIRST) as consumer:
        for _ in range(count):
            message = await consumer.receive(10)
            assert message is not None
            await message.ack()


def test_created_group_is_listed_and_shown_before_anybody_joins(ask: Ask) -> None:
    ask("group", "create", "fresh", "--retry-max", 3)
    [found] = [row for row in ask("group", "list") if row["group"] == "fresh"]
    assert found["retryMax"] == 3
    assert ask("group", "show", "fresh") == {
        "group": "fresh",
        "lag": 0,
        "queues": [],
        "members": [],
        "subscriptions": {},
    }


def test_group_that_is_not_there_is_said_to_be_so(run: Run, cluster: LocalCluster) -> None:
    for _ in range(2):  # asking does not make it
        told = run("group", "show", "nobody", "-n", cluster.name_servers, code=1)
        assert "there is no group nobody" in told.stderr


def test_list_hides_the_systems_groups_unless_asked(ask: Ask) -> None:
    assert "TOOLS_CONSUMER" not in [row["group"] for row in ask("group", "list")]
    assert "TOOLS_CONSUMER" in [row["group"] for row in ask("group", "list", "--all")]


def test_delete_is_previewed(ask: Ask) -> None:
    ask("group", "create", "doomed")
    assert ask("group", "delete", "doomed")["deleted"] is False
    assert "doomed" in [row["group"] for row in ask("group", "list")]
    assert ask("group", "delete", "doomed", "--yes")["deleted"] is True
    assert "doomed" not in [row["group"] for row in ask("group", "list")]


def test_offsets_of_a_group_are_shown_previewed_and_moved(ask: Ask, cluster: LocalCluster) -> None:
    ask("topic", "create", "Moved", "--queues", 1, "--broker", "broker-a")
    for body in "abcde":
        ask("message", "send", "Moved", body)
    asyncio.run(consume(cluster.name_servers, "mover", "Moved", 5))
    shown = [row for row in ask("offset", "show", "mover") if row["topic"] == "Moved"]
    assert [(row["offset"], row["end"], row["lag"]) for row in shown] == [(5, 5, 0)]
    assert ask("group", "show", "mover")["lag"] == 0

    plan = ask("offset", "reset", "mover", "Moved", "--to", "earliest")
    assert plan == {
        "group": "mover",
        "topic": "Moved",
        "done": False,
        "queues": [{"broker": "broker-a", "queue": 0, "from": 5, "to": 0, "again": 5}],
    }
    assert ask("offset", "show", "mover", "--topic", "Moved")[0]["offset"] == 5

    assert ask("offset", "reset", "mover", "Moved", "--to", "2", "--yes")["done"] is True
    assert ask("offset", "show", "mover", "--topic", "Moved")[0]["offset"] == 2
    ask("offset", "reset", "mover", "Moved", "--to", "latest", "--broker", "broker-a", "--queue", 0, "--yes")
    assert ask("offset", "show", "mover", "--topic", "Moved")[0]["offset"] == 5
    ask("offset", "reset", "mover", "Moved", "--to", "2001-01-01T00:00", "--yes")
    assert ask("offset", "show", "mover", "--topic", "Moved")[0]["offset"] == 0


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
def test_group_that_is_not_there_is_neither_shown_nor_deleted_nor_moved(
    run: Run, ask: Ask, cluster: LocalCluster, words: tuple[str, ...]
) -> None:
    ask("topic", "create", "Somewhere")
    told = run(*words, "-n", cluster.name_servers, code=1).stderr
    assert "there is no group nobody" in told
    assert "tandemq group list" in told
    if "reset" in words:
        assert "tandemq group create nobody makes it" in told
    assert "nobody" not in [row["group"] for row in ask("group", "list")]


def test_offsets_of_a_group_that_nobody_joined_are_shown(ask: Ask) -> None:
    ask("topic", "create", "Ahead", "--queues", 1)
    for body in "abc":
        ask("message", "send", "Ahead", body)
    ask("group", "create", "later")
    assert ask("offset", "show", "later") == []

    plan = ask("offset", "reset", "later", "Ahead", "--to", "earliest", "--yes")["queues"]
    assert [(row["broker"], row["from"], row["to"], row["again"]) for row in plan] == [
        ("broker-a", None, 0, None),
        ("broker-b", None, 0, None),
    ]
    shown = ask("group", "show", "later")
    assert shown["lag"] == sum(row["lag"] for row in shown["queues"]) == 3
    assert {row["broker"] for row in shown["queues"]} == {"broker-a", "broker-b"}
    assert ask("offset", "show", "later") == ask("offset", "show", "later", "--topic", "Ahead") == shown["queues"]

    # The offsets of a group that was deleted without them can still be deleted.
    ask("group", "delete", "later", "--yes")
    assert ask("group", "delete", "later", "--clean", "--yes")["deleted"] is True
    with pytest.raises(AssertionError, match="there is no group later"):
        ask("group", "show", "later")


def test_offset_that_is_not_there_is_previewed_as_nothing(ask: Ask, tell: Callable[..., str]) -> None:
    ask("topic", "create", "Unread", "--queues", 1, "--broker", "broker-a")
    ask("group", "create", "reader")
    [row] = ask("offset", "reset", "reader", "Unread", "--to", "latest")["queues"]
    assert row == {"broker": "broker-a", "queue": 0, "from": None, "to": 0, "again": None}
    assert "None" not in tell("offset", "reset", "reader", "Unread", "--to", "latest")


def test_time_that_is_none_and_half_a_place_are_wrong_usage(run: Run, cluster: LocalCluster, ask: Ask) -> None:
    ask("topic", "create", "Still")
    run("offset", "reset", "g", "Still", "--to", "soon", "-n", cluster.name_servers, code=2)
    run("offset", "reset", "g", "Still", "--to", "1", "--queue", 1, "-n", cluster.name_servers, code=2)
