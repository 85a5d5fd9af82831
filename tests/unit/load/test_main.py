"""`python -m tandemq.load` as a process."""

from __future__ import annotations

import json

import pytest

from tandemq.load.__main__ import main
from tests.unit.load.fake_broker import FakeBroker, running


def test_produce_prints_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    with running(FakeBroker()) as broker:
        assert main(["produce", broker.address, "--count", "50", "--queues", "4", "--connections", "2"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["messages"] == 50
    assert result["latency"]["count"] > 0


def test_varied_messages_of_several_topics_are_sent(capsys: pytest.CaptureFixture[str]) -> None:
    with running(FakeBroker(keep_requests=True)) as broker:
        options = ["--count", "200", "--queues", "4", "--topics", "3", "--lengths", "varied", "--form", "v5"]
        assert main(["produce", broker.address, *options]) == 0
    sends = [request["extFields"] for request in broker.requests if request["code"] == 310]
    created = [request["extFields"]["topic"] for request in broker.requests if request["code"] == 17]
    assert json.loads(capsys.readouterr().out)["messages"] == len(sends) == 200
    assert {fields["b"] for fields in sends} == set(created) == {"load-0", "load-1", "load-2"}
    assert all(fields["i"].endswith("\x02") for fields in sends)


def test_refused_connection_is_exit_code_one_and_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["consume", "127.0.0.1:1"]) == 1
    assert "load: no process answers at 127.0.0.1:1" in capsys.readouterr().err
