"""A broker that stops, and a client of the newest release: it is sent away, and no send fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.interop.checks import all_sent_ok, fail_one, lose_one, prove
from tests.interop.driver import JavaDriver
from tests.interop.peers import NEWEST_VERSION, SMALL_STORE, broker, name_server, start_registered
from tests.interop.wire import wait_topic

COUNT = 150


def test_newest_java_client_is_sent_away_by_a_broker_that_stops(
    drivers: Callable[[str], JavaDriver], tmp_path: Path
) -> None:
    with (
        name_server("ours", tmp_path / "namesrv") as namesrv,
        broker("ours", tmp_path / "a", namesrv, settings=SMALL_STORE, brokerName="broker-a") as stops,
        broker("ours", tmp_path / "b", namesrv, settings=SMALL_STORE, brokerName="broker-b") as stays,
    ):
        namesrv.start()
        for one in (stops, stays):
            start_registered(one, namesrv)
        java = drivers(NEWEST_VERSION).at(namesrv.address)
        for one in (stops, stays):
            at = ("-n", namesrv.address, "-b", one.address)
            java.mqadmin("updateTopic", *at, "-t", "Left", "-r", "2", "-w", "2")
        wait_topic(namesrv.port, "Left")
        consumer = java.begin("push", topic="Left", group="leavers", deadline_ms=120_000)
        producer = java.begin("produce", topic="Left", count=COUNT, interval_ms=40, retries=2)
        consumer.wait_for(lambda event: event["event"] == "message", within_s=60, count=COUNT // 3)
        stops.stop()
        sent_away = next(line for line in stops.lines() if "answered GO_AWAY" in line)
        assert int(sent_away.split(" requests")[0].split()[-1]) > 0, "a consumer's pulls were held"
        prove(all_sent_ok(COUNT), producer.result(60), lose_one, fail_one)
        wanted = {f"body-{event['index']}" for event in producer.events("sent") if event["broker"] == "broker-b"}
        consumer.wait_for(lambda event: event["event"] == "message" and event["body"] in wanted, 60, len(wanted))
        consumer.end()
