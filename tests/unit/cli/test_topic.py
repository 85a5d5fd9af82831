"""`tandemq topic`: topics are created, listed, shown and deleted."""

from collections.abc import Callable
from typing import Any

from tandemq.run.local import LocalCluster

RunJson = Callable[..., Any]


def test_created_topic_is_listed_and_shown_on_both_masters(run_json: RunJson, cluster: LocalCluster) -> None:
    made = run_json("topic", "create", "Shown", "--queues", 3)
    assert made["brokers"].split(", ") == [cluster.broker(name).address for name in ("broker-a", "broker-b")]
    assert "Shown" in run_json("topic", "list")
    found = run_json("topic", "show", "Shown")
    assert [(b["broker"], b["readQueues"], b["permission"]) for b in found["brokers"]] == [
        ("broker-a", 3, 6),
        ("broker-b", 3, 6),
    ]
    assert [(q["broker"], q["queue"], q["messages"]) for q in found["queues"]] == [
        (name, queue, 0) for name in ("broker-a", "broker-b") for queue in range(3)
    ]


def test_topic_can_be_created_on_one_broker_and_read_only(run_json: RunJson) -> None:
    run_json("topic", "create", "OnlyB", "--broker", "broker-b", "--permission", "r", "--queues", 1)
    [offer] = run_json("topic", "show", "OnlyB")["brokers"]
    assert (offer["broker"], offer["permission"]) == ("broker-b", 4)


def test_list_hides_system_topics_by_default(run_json: RunJson) -> None:
    assert "TBW102" not in run_json("topic", "list")
    assert "TBW102" in run_json("topic", "list", "--all")


def test_delete_without_yes_is_a_preview(run_json: RunJson) -> None:
    run_json("topic", "create", "Kept", "--queues", 1)
    run_json("message", "send", "Kept", "one")
    assert run_json("topic", "delete", "Kept") == {"topic": "Kept", "queues": 2, "messages": 1, "deleted": False}
    assert "Kept" in run_json("topic", "list")


def test_delete_with_yes_deletes(run_json: RunJson, run_text: Callable[..., str]) -> None:
    run_json("topic", "create", "Gone")
    assert run_json("topic", "delete", "Gone", "--yes")["deleted"]
    assert "Gone" not in run_json("topic", "list")
    assert "no name server knows" in run_text("topic", "show", "Gone", code=1)


def test_invalid_topic_name_is_refused(run_text: Callable[..., str]) -> None:
    assert "illegal" in run_text("topic", "create", "no spaces", code=1)
