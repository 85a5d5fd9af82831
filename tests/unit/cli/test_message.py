"""`tandemq message`: messages are sent, followed and looked up."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemq import ConsumeFrom, Message, Producer, PushConsumer
from tandemq.cli.support.durations import parse_duration
from tandemq.client.connection import BlockingConnection
from tandemq.client.producer.encoder import SendRequest
from tandemq.model.codes import ResponseCode
from tandemq.run.local import LocalCluster
from tests.unit.cli.conftest import Run

RunJson = Callable[..., Any]
FIRST = ConsumeFrom.FIRST


def test_sent_message_is_found_by_key_unique_key_id_and_position(run_json: RunJson) -> None:
    run_json("topic", "create", "Find", "--queues", 1)
    [sent] = run_json("message", "send", "Find", "hello", "--tag", "t", "--key", "k1", "--property", "colour=red")
    assert sent["status"] == "SEND_OK"
    ways = [
        ("Find", "--key", "k1"),
        ("Find", "--unique-key", sent["id"]),
        ("--id", sent["offsetId"]),
        ("Find", "--broker", sent["broker"], "--queue", sent["queue"], "--offset", sent["offset"]),
    ]
    for way in ways:
        [found] = run_json("message", "query", *way)
        assert (found["body"], found["tag"], found["keys"], found["id"]) == ("hello", "t", ["k1"], sent["id"]), way
        assert found["properties"]["colour"] == "red"


def test_lines_of_standard_input_are_messages(run: Run, cluster: LocalCluster, run_json: RunJson) -> None:
    run_json("topic", "create", "Lines", "--queues", 1)
    words = ("message", "send", "Lines", "--file", "-", "--lines", "--json", "-n", cluster.name_servers)
    assert len(json.loads(run(*words, typed="a\nb\nc\n").stdout)) == 3
    printed = run("message", "tail", "Lines", "--from", "earliest", "--count", 3, "--json", "-n", cluster.name_servers)
    assert sorted(json.loads(line)["body"] for line in printed.stdout.splitlines()) == ["a", "b", "c"]


@pytest.mark.system
def test_interrupted_tail_has_printed_its_messages(cluster: LocalCluster, run_json: RunJson) -> None:
    run_json("topic", "create", "Followed", "--queues", 1)
    run_json("message", "send", "Followed", "one")
    words = ["message", "tail", "Followed", "--from", "earliest", "-n", cluster.name_servers]
    with subprocess.Popen([sys.executable, "-m", "tandemq", *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().endswith(" one\n")
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
        finally:
            process.kill()


def test_exit_code_page_lists_commands_that_exit_with_0_on_interrupt() -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "operations.md").read_text(encoding="utf-8")
    [row] = re.findall(r"^\| 130 \| (.*) \|$", page, re.MULTILINE)
    names = re.findall("`([^`]+)`", row)
    assert names == ["up", "broker", "namesrv", "message tail", "spark archive", "spark collect"]


def test_file_is_one_message_and_binary_bodies_are_printed_as_hex(run_json: RunJson, tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(b"\xff\x00\n")
    [sent] = run_json("message", "send", "Bytes", "--file", path)
    [found] = run_json("message", "query", "--id", sent["offsetId"])
    assert found["bodyHex"] == "ff000a"


def test_tail_filters_by_tag_and_stops_after_an_idle_time(run: Run, cluster: LocalCluster, run_json: RunJson) -> None:
    run_json("topic", "create", "Tags", "--queues", 1)
    for tag in ("x", "y", "x"):
        run_json("message", "send", "Tags", tag, "--tag", tag)
    words = ("message", "tail", "Tags", "--tags", "x", "--from", "earliest", "--seconds", 0.3, "--json")
    printed = run(*words, "-n", cluster.name_servers)
    assert [json.loads(line)["body"] for line in printed.stdout.splitlines()] == ["x", "x"]


def test_query_that_finds_nothing_has_exit_code_1(run_json: RunJson) -> None:
    run_json("topic", "create", "Empty")
    assert run_json("message", "query", "Empty", "--key", "none", code=1) == []


def test_query_without_criteria_is_wrong_usage(run: Run, cluster: LocalCluster) -> None:
    run("message", "query", "-n", cluster.name_servers, code=2)
    run("message", "query", "Empty", "-n", cluster.name_servers, code=2)
    run("message", "send", "Empty", "-n", cluster.name_servers, code=2)


def test_text_output_shows_position_tag_and_body(run_text: Callable[..., str], run_json: RunJson) -> None:
    [sent] = run_json("message", "send", "People", "line\x07", "--tag", "t")
    printed = run_text("message", "query", "--id", sent["offsetId"])
    assert f"People/{sent['queue']}@{sent['offset']} {sent['id']} tag=t line·" in printed


def test_message_that_cannot_be_decompressed_does_not_hide_others(
    run: Run, cluster: LocalCluster, run_json: RunJson, caplog: pytest.LogCaptureFixture
) -> None:
    run_json("topic", "create", "Garbled", "--queues", 1, "--broker", "broker-a")
    run_json("message", "send", "Garbled", "before", "--key", "k")
    key = "0" * 32
    garbled = SendRequest("Garbled", b"no zlib", f"UNIQ_KEY\x01{key}\x02KEYS\x01k\x02", 1, 0, (key,))
    with BlockingConnection(cluster.broker("broker-a").address) as opened:
        answer = opened.request(garbled.command("g", "broker-a", 0, 0, 1))
    assert answer.code == ResponseCode.SUCCESS
    run_json("message", "send", "Garbled", "behind", "--key", "k")
    words = ("message", "tail", "Garbled", "--from", "earliest", "--count", 2, "--json", "-n", cluster.name_servers)
    assert [json.loads(text)["body"] for text in run(*words).stdout.splitlines()] == ["before", "behind"]
    assert "unreadable message skipped" in caplog.text
    found = run_json("message", "query", "Garbled", "--key", "k")
    assert [one["body"] for one in found] == ["before", "no zlib", "behind"]
    assert ["fault" in one for one in found] == [False, True, False]
    [one] = run_json("message", "query", "--id", found[1]["offsetId"])
    assert one == found[1]
    printed = run("message", "query", "--id", one["offsetId"], "-n", cluster.name_servers).stdout
    assert "[the body cannot be decompressed: " in printed


async def _send_and_consume(name_servers: str, topic: str) -> tuple[str, str]:
    """Send a traced message that is sent back once and consumed; returns its unique key and its offset message id."""
    async with Producer(name_servers, group="traced", trace=True) as producer:
        sent = await producer.send(Message(topic, b"x", tags="paid", keys=["order-7"]))
    topics = {topic: "*"}
    async with PushConsumer(name_servers, group="tracing", topics=topics, consume_from=FIRST, trace=True) as consumer:
        for delay_level in (1, None):
            message = await consumer.receive(60)
            assert message is not None
            await (message.ack() if delay_level is None else message.retry(delay_level))
    return sent.unique_key, sent.offset_message_id


def test_trace_shows_send_and_deliveries_by_each_kind_of_key(
    run_json: RunJson, run_text: Callable[..., str], cluster: LocalCluster
) -> None:
    run_json("topic", "create", "Traced", "--queues", 1)
    unique_key, offset_id = asyncio.run(_send_and_consume(cluster.name_servers, "Traced"))
    for key in (unique_key, "order-7", offset_id):
        [found] = run_json("message", "trace", key)
        assert (found["id"], found["topic"], found["tag"], found["keys"]) == (unique_key, "Traced", "paid", ["order-7"])
        assert [(step["event"], step["group"], step["outcome"], step["retryTimes"]) for step in found["steps"]] == [
            ("sent", "traced", "stored", 0),
            ("delivered", "tracing", "not consumed: FAILED", 0),
            ("delivered", "tracing", "consumed", 1),
        ]
        sent = found["steps"][0]
        assert sent["offsetId"] == offset_id
        assert sent["broker"] in {cluster.broker(name).address for name in ("broker-a", "broker-b")}
        assert sent["client"].startswith("127.0.0.1:")
    printed = run_text("message", "trace", unique_key)
    assert printed.startswith(f"{unique_key} topic=Traced tag=paid keys=order-7\n")
    assert re.search(r"delivered +tracing .* consumed \(delivery 2\)", printed)


def test_trace_of_nothing_has_exit_code_1_and_a_missing_trace_topic_is_named(
    run: Run, run_json: RunJson, cluster: LocalCluster
) -> None:
    run_json("message", "send", "RMQ_SYS_TRACE_TOPIC", "x")  # which creates it
    for key in ("nobody", "7F00000100002A9F0000000000000000", "F" * 32):
        assert run_json("message", "trace", key, code=1) == []
    missing = run("message", "trace", "k", "--topic", "NoTraces", "-n", cluster.name_servers, code=1)
    assert "there is no topic NoTraces (start brokers with traceTopicEnable=true" in str(missing.output)


def test_trace_says_that_lines_could_not_be_read(run: Run, run_json: RunJson, cluster: LocalCluster) -> None:
    lines = "Recall\x017\x01r\x01g\x01T\x01ID\x1b7\x01true\x02nonsense\x02"
    run_json("message", "send", "RMQ_SYS_TRACE_TOPIC", lines, "--key", "odd")
    run_json("message", "send", "RMQ_SYS_TRACE_TOPIC", lines.replace("ID\x1b7", "odd"), "--key", "odd")
    shown = run("message", "trace", "odd", "-n", cluster.name_servers)
    assert "odd topic=T" in shown.output
    assert "2 lines of the trace topic could not be read." in shown.stderr


def test_message_with_a_delay_is_recalled_by_its_handle(run_json: RunJson, run: Run, cluster: LocalCluster) -> None:
    run_json("topic", "create", "Later", "--queues", 1)
    [sent] = run_json("message", "send", "Later", "x", "--delay", "1h30m")
    assert run_json("message", "recall", sent["recallHandle"]) == [{"id": sent["id"], "status": "RECALLED"}]
    [at] = run_json("message", "send", "Later", "x", "--at", "2026-01-01T00:00")
    assert "recallHandle" not in at
    assert "this is no recall handle" in run("message", "recall", "x", "-n", cluster.name_servers, code=1).output


def test_priority_chooses_the_queue_of_a_message(run_json: RunJson) -> None:
    run_json("topic", "create", "Urgent", "--queues", 3, "--type", "priority")
    run_json("group", "create", "rescue", "--priority-factor", 80)
    sent = [run_json("message", "send", "Urgent", "x", "--priority", number)[0]["queue"] for number in (1, 0, 2, 7)]
    assert sent == [1, 0, 2, 2]


@pytest.mark.parametrize("text", ["", "soon", "1x", "5m3", "-1s", "1.5.5s", "s"])
def test_word_that_is_no_duration_is_a_usage_error(run: Run, text: str) -> None:
    printed = run("message", "send", "Later", "x", "--delay", text or " ", "-n", "127.0.0.1:1", code=2)
    assert "is not a duration" in printed.output


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1h30m", 5400), ("2d", 172_800), ("250ms", 0.25), ("1.5s", 1.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text).total_seconds() == seconds
