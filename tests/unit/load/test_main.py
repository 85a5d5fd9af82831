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


def test_refused_connection_is_exit_code_one_and_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["consume", "127.0.0.1:1"]) == 1
    assert "load: cannot connect to 127.0.0.1:1" in capsys.readouterr().err
