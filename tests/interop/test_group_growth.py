"""Broker groups join and leave while Java clients send and consume: `tandemq cluster add-group`, `drain`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandemq.cli import main
from tandemq.client.aio import elastic
from tandemq.run.local import LocalCluster
from tests.interop.checks import all_sent_ok, exactly, fail_one, lose_one, prove, repeat_one
from tests.interop.driver import JavaDriver
from tests.interop.peers import CLIENTS

FIRST, SECOND = "broker-a", "broker-b"
COUNT = 50


@pytest.mark.parametrize("version", CLIENTS)
def test_group_joins_and_another_leaves_while_java_clients_work(
    drivers: Callable[[str], JavaDriver], version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer begins at the end of each queue, and misses nothing in the new ones."""
    monkeypatch.setattr(elastic, "ROUTES_S", 3.0)  # clients of the tests look for routes every second
    with LocalCluster(tmp_path, groups=2) as cluster:
        java = drivers(version).at(cluster.name_servers)

        def command(*words: str) -> dict[str, object]:
            result = CliRunner().invoke(main, [*words, "--json", "--namesrv", cluster.name_servers])
            assert result.exit_code == 0, result.output
            return dict(json.loads(result.stdout))

        command("topic", "create", "Grows", "--queues", "4", "--broker", FIRST)
        consumer = java.begin("push", topic="Grows", group="growers", deadline_ms=120_000, **{"from": "last"})
        producer = java.begin("produce", topic="Grows", count=0, interval_ms=10, retries=2, deadline_ms=120_000)
        consumer.wait_for(lambda event: event["event"] == "message", within_s=60, count=COUNT)

        began_ms = time.time() * 1000
        joined = command("cluster", "add-group", SECOND)
        assert (joined["topics"], joined["lateGroups"]) == (["Grows"], [])
        producer.wait_for(lambda event: event["event"] == "sent" and event["broker"] == SECOND, 60, COUNT)

        assert command("cluster", "drain", FIRST)["drained"]
        drained = len(producer.events("sent"))
        producer.wait_for(lambda event: event["event"] == "sent", 60, drained + COUNT)
        sent = producer.end()
        assert {event["broker"] for event in sent[-COUNT + 1 :]} == {SECOND}
        prove(all_sent_ok(len(producer.events("sent"))), sent, lose_one, fail_one)
        wanted = [f"body-{event['index']}" for event in producer.events("sent") if event["broker"] == SECOND]
        consumer.wait_for(lambda event: event["event"] == "message" and event["body"] in wanted, 60, len(wanted))
        delivered = [event for event in consumer.end() if event["event"] == "message"]
        found = [event for event in delivered if event["body"] in wanted]
        prove(exactly(wanted), found, lose_one, repeat_one)
        assert not producer.events("failed")
        moved = [event for event in delivered if event["bornTimestamp"] >= began_ms]
        delays_ms = [event["at_ms"] - event["bornTimestamp"] for event in moved]
        print(f"Java {version}: {len(sent)} sends, 0 failed; longest delivery delay {max(delays_ms)} ms")
