"""A whole cluster by one command: it tells its addresses, works, stops on Ctrl-C, and its data stay."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tandemq import Message
from tandemq.cli.up import ports_of
from tandemq.client.blocking import BlockingProducer
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.run.ask import try_ask


@contextmanager
def started(data: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A cluster of one broker, and what it told when it was ready; killed if the test did not stop it."""
    words = ["up", "--brokers", "1", "--slaves", "0", "--port", "0", "--data", str(data), "--json"]
    with subprocess.Popen([sys.executable, "-m", "tandemq", *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def test_cluster_runs_until_interrupted_and_its_data_stay(tmp_path: Path) -> None:
    with started(tmp_path) as (process, told):
        with BlockingProducer(told["nameServer"], group="g") as producer:
            assert producer.send(Message("T", b"kept")).status.name == "SEND_OK"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert len(told["brokers"]) == 1
    assert not [one for one in told["brokers"] if try_ask(one["address"], Command(RequestCode.TANDEM_PEER_INFO))]

    with started(tmp_path) as (process, told):
        answer = try_ask(told["brokers"][0]["address"], Command(RequestCode.TANDEM_PEER_INFO))
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert answer is not None
    assert int(answer.fields["logEnd"]) > 0


@pytest.mark.parametrize("groups", [26])
def test_ports_of_all_brokers_differ(groups: int) -> None:
    ports = [port for group in range(groups) for member in range(10) for port in ports_of(group, member)]
    fast = [listen - 2 for group in range(groups) for member in range(10) for listen in ports_of(group, member)[:1]]
    assert len({*ports, *fast}) == len(ports) + len(fast)
    assert ports_of(0, 0) == (10911, 10912)


def test_cluster_that_is_interrupted_while_it_starts_leaves_nothing_running(tmp_path: Path) -> None:
    words = ["up", "--brokers", "1", "--slaves", "0", "--port", "0", "--data", str(tmp_path)]
    with subprocess.Popen([sys.executable, "-m", "tandemq", *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            # The name server's log is made when it is started, before the brokers are.
            deadline = time.monotonic() + 20
            while not (tmp_path / "namesrv.log").exists():
                assert time.monotonic() < deadline
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_cluster_stops_when_a_process_ends_by_itself(tmp_path: Path) -> None:
    with started(tmp_path) as (process, told):
        os.kill(told["brokers"][0]["pid"], signal.SIGKILL)
        assert process.wait(20) == 1


def test_mode_is_said_once(tmp_path: Path) -> None:
    words = ["up", "--brokers", "1", "--port", "0", "--data", str(tmp_path), "--json"]
    for more, mode in (
        (["--mode", "slave-consume"], "slave-consume"),
        ([], "slave-consume"),
        (["--mode", "elect"], "elect"),
    ):
        with subprocess.Popen(
            [sys.executable, "-m", "tandemq", *words, *more], stdout=subprocess.PIPE, text=True
        ) as up:
            try:
                assert up.stdout is not None
                told = json.loads(up.stdout.readline())
                assert (told["mode"], told["registry"]) == (mode, f"namesrv://{told['nameServer']}")
                up.send_signal(signal.SIGINT)
                assert up.wait(20) == 0
            finally:
                up.kill()
