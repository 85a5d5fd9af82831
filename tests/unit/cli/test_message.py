"""Messages are sent, followed and looked up."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemq.client.producer.encoder import SendRequest
from tandemq.model.codes import ResponseCode
from tandemq.run.local import LocalCluster
from tandemq.run.request import line
from tests.unit.cli.conftest import Run

Ask = Callable[..., Any]


def test_sent_message_is_found_by_key_unique_key_id_and_place(ask: Ask) -> None:
    ask("topic", "create", "Find", "--queues", 1)
    [sent] = ask("message", "send", "Find", "hello", "--tag", "t", "--key", "k1", "--property", "colour=red")
    assert sent["status"] == "SEND_OK"
    ways = [
        ("Find", "--key", "k1"),
        ("Find", "--unique-key", sent["id"]),
        ("--id", sent["offsetId"]),
        ("Find", "--broker", sent["broker"], "--queue", sent["queue"], "--offset", sent["offset"]),
    ]
    for way in ways:
        [found] = ask("message", "query", *way)
        assert (found["body"], found["tag"], found["keys"], found["id"]) == ("hello", "t", ["k1"], sent["id"]), way
        assert found["properties"]["colour"] == "red"


def test_lines_of_standard_input_are_messages(run: Run, cluster: LocalCluster, ask: Ask) -> None:
    ask("topic", "create", "Lines", "--queues", 1)
    words = ("message", "send", "Lines", "--file", "-", "--lines", "--json", "-n", cluster.name_servers)
    assert len(json.loads(run(*words, typed="a\nb\nc\n").stdout)) == 3
    told = run("message", "tail", "Lines", "--from", "earliest", "--count", 3, "--json", "-n", cluster.name_servers)
    assert sorted(json.loads(line)["body"] for line in told.stdout.splitlines()) == ["a", "b", "c"]


def test_tail_that_is_interrupted_was_not_in_vain(cluster: LocalCluster, ask: Ask) -> None:
    ask("topic", "create", "Followed", "--queues", 1)
    ask("message", "send", "Followed", "one")
    words = ["message", "tail", "Followed", "--from", "earliest", "-n", cluster.name_servers]
    with subprocess.Popen([sys.executable, "-m", "tandemq", *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().endswith(" one\n")
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_page_of_exit_codes_names_what_ends_with_0_when_it_is_interrupted() -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "operations.md").read_text(encoding="utf-8")
    [row] = re.findall(r"^\| 130 \| (.*) \|$", page, re.MULTILINE)
    names = re.findall("`([^`]+)`", row)
    assert names == ["up", "broker", "namesrv", "message tail", "sim --forever", "spark archive", "spark collect"]


def test_file_is_one_message_and_bytes_that_are_no_text_come_as_digits(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(b"\xff\x00\n")
    [sent] = ask("message", "send", "Bytes", "--file", path)
    [found] = ask("message", "query", "--id", sent["offsetId"])
    assert found["bodyHex"] == "ff000a"


def test_tail_filters_by_tag_and_ends_when_nothing_comes(run: Run, cluster: LocalCluster, ask: Ask) -> None:
    ask("topic", "create", "Tags", "--queues", 1)
    for tag in ("x", "y", "x"):
        ask("message", "send", "Tags", tag, "--tag", tag)
    words = ("message", "tail", "Tags", "--tags", "x", "--from", "earliest", "--seconds", 0.3, "--json")
    told = run(*words, "-n", cluster.name_servers)
    assert [json.loads(line)["body"] for line in told.stdout.splitlines()] == ["x", "x"]


def test_query_that_finds_nothing_has_exit_code_1(ask: Ask) -> None:
    ask("topic", "create", "Empty")
    assert ask("message", "query", "Empty", "--key", "none", code=1) == []


def test_query_without_a_question_is_wrong_usage(run: Run, cluster: LocalCluster) -> None:
    run("message", "query", "-n", cluster.name_servers, code=2)
    run("message", "query", "Empty", "-n", cluster.name_servers, code=2)
    run("message", "send", "Empty", "-n", cluster.name_servers, code=2)


def test_text_for_people_shows_place_tag_and_body(tell: Callable[..., str], ask: Ask) -> None:
    [sent] = ask("message", "send", "People", "line\x07", "--tag", "t")
    told = tell("message", "query", "--id", sent["offsetId"])
    assert f"People/{sent['queue']}@{sent['offset']} {sent['id']} tag=t line·" in told


def test_message_that_cannot_be_decompressed_hides_no_other(
    run: Run, cluster: LocalCluster, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    ask("topic", "create", "Garbled", "--queues", 1, "--broker", "broker-a")
    ask("message", "send", "Garbled", "before", "--key", "k")
    key = "0" * 32
    garbled = SendRequest("Garbled", b"no zlib", f"UNIQ_KEY\x01{key}\x02KEYS\x01k\x02", 1, 0, (key,))
    with line(cluster.broker("broker-a").address) as opened:
        answer = opened.ask(garbled.command("g", "broker-a", 0, 0, 1))
    assert answer.code == ResponseCode.SUCCESS
    ask("message", "send", "Garbled", "behind", "--key", "k")
    words = ("message", "tail", "Garbled", "--from", "earliest", "--count", 2, "--json", "-n", cluster.name_servers)
    assert [json.loads(text)["body"] for text in run(*words).stdout.splitlines()] == ["before", "behind"]
    assert "unreadable message passed over" in caplog.text
    found = ask("message", "query", "Garbled", "--key", "k")
    assert [one["body"] for one in found] == ["before", "no zlib", "behind"]
    assert ["fault" in one for one in found] == [False, True, False]
    [one] = ask("message", "query", "--id", found[1]["offsetId"])
    assert one == found[1]
    told = run("message", "query", "--id", one["offsetId"], "-n", cluster.name_servers).stdout
    assert "[the body cannot be decompressed: " in told
