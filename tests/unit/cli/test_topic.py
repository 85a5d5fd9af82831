"""Topics are created, listed, shown and deleted; deleting is previewed."""

from collections.abc import Callable
from typing import Any

from tandemq.run.local import LocalCluster

Ask = Callable[..., Any]


def test_created_topic_is_listed_and_shown_on_both_masters(ask: Ask, cluster: LocalCluster) -> None:
    made = ask("topic", "create", "Shown", "--queues", 3)
    assert made["brokers"].split(", ") == [cluster.broker(name).address for name in ("broker-a", "broker-b")]
    assert "Shown" in ask("topic", "list")
    found = ask("topic", "show", "Shown")
    assert [(b["broker"], b["readQueues"], b["permission"]) for b in found["brokers"]] == [
        ("broker-a", 3, 6),
        ("broker-b", 3, 6),
    ]
    assert [(q["broker"], q["queue"], q["messages"]) for q in found["queues"]] == [
        (name, queue, 0) for name in ("broker-a", "broker-b") for queue in range(3)
    ]


def test_topic_can_be_made_on_one_broker_and_read_only(ask: Ask) -> None:
    ask("topic", "create", "OnlyB", "--broker", "broker-b", "--permission", "r", "--queues", 1)
    [offer] = ask("topic", "show", "OnlyB")["brokers"]
    assert (offer["broker"], offer["permission"]) == ("broker-b", 4)


def test_list_hides_the_systems_topics_unless_asked(ask: Ask) -> None:
    assert "TBW102" not in ask("topic", "list")
    assert "TBW102" in ask("topic", "list", "--all")


def test_delete_without_yes_only_says_what_would_go(ask: Ask) -> None:
    ask("topic", "create", "Kept", "--queues", 1)
    ask("message", "send", "Kept", "one")
    assert ask("topic", "delete", "Kept") == {"topic": "Kept", "queues": 2, "messages": 1, "deleted": False}
    assert "Kept" in ask("topic", "list")


def test_delete_with_yes_deletes(ask: Ask, tell: Callable[..., str]) -> None:
    ask("topic", "create", "Gone")
    assert ask("topic", "delete", "Gone", "--yes")["deleted"]
    assert "Gone" not in ask("topic", "list")
    assert "no name server knows" in tell("topic", "show", "Gone", code=1)


def test_name_that_cannot_be_is_refused(tell: Callable[..., str]) -> None:
    assert "illegal" in tell("topic", "create", "no spaces", code=1)
