"""Small requests that a Java broker 5.3.3 and ours answer alike, over the same stores and after the same traffic."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemq import Admin, Message, Producer
from tests.interop.driver import JavaDriver
from tests.interop.java import Value, free_port, wait_until
from tests.interop.peers import SMALL_STORE, Broker, NameServer, broker, name_server, start_registered
from tests.interop.test_metrics import LABEL, SAMPLE, scrape
from tests.interop.wire import Frame, ask, wait_topic
from tests.samples import slow

VERSION = "5.3.3"
KINDS = ("ours", VERSION)
PULL, SEND, UPDATE_TOPIC, CONSUME_STATS, FORBIDDEN, LITE_PULL = 11, 310, 17, 208, 353, 361
SUCCESS, NO_PERMISSION = 0, 16
GROUP, TOPIC = "readers", "Measured"
QUEUES, EACH, LIMIT, CACHED = 3, 24, 5, 7


def make_topic(place: Broker, namesrv: NameServer, topic: str, queues: int) -> None:
    counts = {"readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6"}
    fixed = {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    assert ask(place.port, UPDATE_TOPIC, {"topic": topic, **counts, **fixed}).fields["code"] == SUCCESS
    wait_topic(namesrv.port, topic)


def send(namesrv: NameServer, topic: str, count: int) -> None:
    """Send messages to the queues of a topic in turn; return when all are in the queues, later than the responses."""

    async def story() -> None:
        async with Producer(namesrv.address, group="p") as producer:
            for number in range(count):
                await producer.send(Message(topic, b"m%d" % number, tags="T"))

    async def queued() -> int:
        async with Admin(namesrv.address) as admin:
            return sum(queue.max_offset for queue in (await admin.topic_stats(topic)).values())

    asyncio.run(story())
    wait_until(lambda: asyncio.run(queued()) >= count, what="all messages in their queues", within_s=20, every_s=0.1)


def forbidden(place: Broker, topic: str, *, readable: bool | None = None) -> bool:
    """Send 353; without `readable` only ask. Return whether the group may read the topic now."""
    fields = {"group": GROUP, "topic": topic}
    if readable is not None:
        fields["readable"] = str(readable).lower()
    answer = ask(place.port, FORBIDDEN, fields, version=479)
    assert answer.fields["code"] == SUCCESS
    body: dict[str, Any] = json.loads(answer.body)
    assert {**body, "readable": None} == {"group": GROUP, "topic": topic, "readable": None}
    return not body["readable"]


def pull(place: Broker, code: int, topic: str, offset: int = 0) -> Frame:
    """Pull without a subscription in the request: that of the group's consumer counts."""
    fields = {
        "consumerGroup": GROUP,
        "topic": topic,
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "0",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return ask(place.port, code, fields, version=479)


@pytest.mark.parametrize(("first", "second"), [KINDS, slow(KINDS[::-1])])
def test_topic_forbidden_to_a_group_stays_so_when_the_store_moves(
    first: str, second: str, drivers: Callable[[str], JavaDriver], tmp_path: Path
) -> None:
    settings: dict[str, Value] = {**SMALL_STORE, "store": str(tmp_path / "store")}
    with name_server("ours", tmp_path / "namesrv") as namesrv:
        namesrv.start()
        java = drivers(VERSION).at(namesrv.address)
        for turn, kind in enumerate((first, second)):
            with broker(kind, tmp_path / kind, namesrv, settings=settings) as place:
                start_registered(place, namesrv)
                if turn == 0:
                    make_topic(place, namesrv, TOPIC, 1)
                    send(namesrv, TOPIC, 4)
                    assert not forbidden(place, TOPIC)
                    assert forbidden(place, TOPIC, readable=False)
                assert forbidden(place, TOPIC), "also after the move"
                consumer = java.begin("push", topic=TOPIC, group=GROUP, instance=f"c{turn}", deadline_ms=120_000)
                consumer.wait_for(lambda event: event["event"] == "started", within_s=60)
                answers: list[Frame] = []

                def is_known(found: list[Frame] = answers, at: Broker = place) -> bool:
                    found[:] = [pull(at, code, TOPIC) for code in (PULL, LITE_PULL)]
                    return {answer.fields["code"] for answer in found} == {NO_PERMISSION}

                wait_until(is_known, what=f"{kind} refuses both pulls", within_s=60, every_s=0.3)
                for answer in answers:
                    assert answer.fields["extFields"]["forbiddenType"] == "5"
                    assert f"the consumer group[{GROUP}] is forbidden for topic[{TOPIC}]" in answer.fields["remark"]
                if turn:
                    assert not forbidden(place, TOPIC, readable=True)
                    consumer.wait_for(lambda event: event["event"] == "message", within_s=60, count=4)
                    answers[:] = [pull(place, code, TOPIC) for code in (PULL, LITE_PULL)]
                    assert [answer.fields["code"] for answer in answers] == [SUCCESS] * 2
                    assert answers[0].body == answers[1].body
                consumer.end()
                place.stop()


def consume_stats(place: Broker, topic: str = "") -> dict[str, dict[str, int]]:
    """Return what GET_CONSUME_STATS says of each queue; without a topic of all that the group consumes."""
    answer = ask(place.port, CONSUME_STATS, {"consumerGroup": GROUP, "topic": topic}, version=479)
    assert answer.fields["code"] == SUCCESS, answer.fields
    table = _pairs(answer.body.decode())
    return {f"{queue['topic']} {queue['queueId']}": figures for queue, figures in table}


def _pairs(text: str) -> list[tuple[dict[str, Any], dict[str, int]]]:
    """Return the offset table: Java writes queues, which are objects, as keys of an object."""
    decoder, found = json.JSONDecoder(), []
    at = text.index('"offsetTable"')
    at = text.index("{", at) + 1
    while text[at] != "}":
        queue, at = decoder.raw_decode(text, at)
        figures, at = decoder.raw_decode(text, at + 1)
        found.append((queue, figures))
        at += text[at] == ","
    return found


def shown_progress(java: JavaDriver, namesrv: NameServer) -> list[str]:
    """Return the lines of `consumerProgress` that have figures."""
    printed = java.mqadmin("consumerProgress", "-n", namesrv.address, "-g", GROUP)
    # The driver's consumers log to the same output.
    return sorted(line.strip() for line in printed.splitlines() if line.startswith((TOPIC, "#Topic", "Consume Diff")))


def test_lag_of_a_group_is_the_same_in_the_same_store(drivers: Callable[[str], JavaDriver], tmp_path: Path) -> None:
    """A Java broker's store, asked there and here: consumer progress by request and by mqadmin."""
    found: dict[str, Any] = {}
    settings: dict[str, Value] = {**SMALL_STORE, "store": str(tmp_path / "store")}
    with name_server("ours", tmp_path / "namesrv") as namesrv:
        namesrv.start()
        java = drivers(VERSION).at(namesrv.address)
        with broker(VERSION, tmp_path / "first", namesrv, settings=settings) as place:
            start_registered(place, namesrv)
            for topic in (TOPIC, f"{TOPIC}2"):
                make_topic(place, namesrv, topic, QUEUES)
                send(namesrv, topic, QUEUES * EACH)
            for topic, limit in ((TOPIC, LIMIT), (f"{TOPIC}2", EACH)):
                java.call("pull", topic=topic, group=GROUP, resume=True, limit=limit, commit=True)
            wanted = {f"{TOPIC} {queue}": LIMIT for queue in range(QUEUES)}
            wait_until(
                lambda: (
                    {queue: each["consumerOffset"] for queue, each in consume_stats(place, TOPIC).items()} == wanted
                ),
                what="all offsets committed",
                within_s=20,
                every_s=0.5,
            )
            place.stop()
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
        for kind, store in ((VERSION, "store"), ("ours", "copy")):
            settings["store"] = str(tmp_path / store)
            with broker(kind, tmp_path / f"second-{kind}", namesrv, settings=settings) as place:
                start_registered(place, namesrv)
                wait_topic(namesrv.port, TOPIC)
                found[kind] = {
                    "topic": consume_stats(place, TOPIC),
                    "all": consume_stats(place),
                    "mqadmin": shown_progress(java, namesrv),
                }
                place.stop()
    mine, theirs = found["ours"], found[VERSION]
    assert {f"{TOPIC} {queue}" for queue in range(QUEUES)} == theirs["topic"].keys()
    assert {(one["brokerOffset"], one["consumerOffset"]) for one in theirs["topic"].values()} == {(EACH, LIMIT)}
    assert mine == theirs


def lag_figures(page: str) -> dict[str, float]:
    """Return the sums of the lag metrics of the group."""
    names = ("lag", "inflight", "ready")
    found = dict.fromkeys(names, 0.0)
    for name, labels, value in SAMPLE.findall(page):
        known = dict(LABEL.findall(labels))
        for each in names:
            if name == f"rocketmq_consumer_{each}_messages" and known.get("topic") == TOPIC:
                found[each] += float(value)
    return found


def test_messages_in_flight_are_counted_alike(drivers: Callable[[str], JavaDriver], tmp_path: Path) -> None:
    """A consumer has fetched some messages and finished none: both brokers report the same offsets and the same lag."""
    found: dict[str, tuple[dict[str, dict[str, int]], dict[str, float]]] = {}
    for kind in KINDS:
        port = free_port()
        java_page: dict[str, Value] = {"metricsExporterType": "PROM", "metricsPromExporterPort": port}
        exporter = {"metricsPort": port} if kind == "ours" else java_page
        with (
            name_server("ours", tmp_path / f"namesrv-{kind}") as namesrv,
            broker(kind, tmp_path / kind, namesrv, settings={**SMALL_STORE, **exporter}) as place,
        ):
            namesrv.start()
            start_registered(place, namesrv)
            make_topic(place, namesrv, TOPIC, 1)
            send(namesrv, TOPIC, EACH)
            consumer = (
                drivers(VERSION)
                .at(namesrv.address)
                .begin(
                    "push",
                    topic=TOPIC,
                    group=GROUP,
                    instance=f"flight-{kind}",
                    threads=1,
                    cache=CACHED,
                    consume_ms=90_000,
                    deadline_ms=90_000,
                )
            )

            def is_counted(at: Broker = place, page: int = port) -> bool:
                queue = consume_stats(at, TOPIC).get(f"{TOPIC} 0", {})
                fetched = queue.get("pullOffset", 0) > queue.get("consumerOffset", -1) == 0
                return fetched and min(lag_figures(scrape(page)).values()) > 0

            wait_until(is_counted, what=f"offsets and lag of {kind}", within_s=60, every_s=0.5)
            found[kind] = consume_stats(place, TOPIC), lag_figures(scrape(port))
            place.kill()
            namesrv.kill()
            consumer.end()
    for stats, _ in found.values():
        stats[f"{TOPIC} 0"].pop("lastTimestamp")
    assert found["ours"] == found[VERSION]
    assert found["ours"][1]["lag"] == EACH
    assert 0 < found["ours"][1]["inflight"] < EACH
