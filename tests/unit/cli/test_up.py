"""A whole cluster by one command: it tells its addresses, works, stops on Ctrl-C, and its data stay."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tandemq import ConsumeFrom, Message
from tandemq.cli.up import ports_of
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.run.request import try_ask
from tests.unit.cli.conftest import Run


@contextmanager
def started(data: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A cluster of one group, and what it told when it was ready; killed if the test did not stop it."""
    words = ["up", "--brokers", "1", *(more or ("--slaves", "0")), "--port", "0", "--data", str(data), "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "tandemq", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
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


def next_error_line(process: subprocess.Popen[str]) -> str:
    """What it says next on standard error, which must come soon."""
    assert process.stderr is not None
    assert select.select([process.stderr], [], [], 20)[0], "it said nothing"
    return process.stderr.readline()


@pytest.mark.parametrize("mode", ["elect", "slave-consume", "static"])
def test_slave_has_proven_itself_and_serves_on_when_the_master_is_killed(run: Run, tmp_path: Path, mode: str) -> None:
    with started(tmp_path, "--mode", mode) as (process, told):
        master = told["brokers"][0]
        rows = json.loads(run("ha", "status", "--json", "-n", told["nameServer"]).stdout)
        assert [link["secured"] for row in rows for link in row["slaves"]] == ["secret"]
        with BlockingProducer(told["nameServer"], group="g") as producer:
            assert producer.send(Message("T", b"before")).status.name == "SEND_OK"
            expected = [b"before"]
            os.kill(master["pid"], signal.SIGKILL)
            said = next_error_line(process)
            assert said.startswith("broker-a-0 ended: killed by SIGKILL; broker-a goes on with broker-a-1.")
            assert f"tandemq broker -c {tmp_path / 'broker-a-0.conf'}" in said
            if mode == "elect":
                producer.send(Message("T", b"after"))
                expected.append(b"after")
        with BlockingConsumer(
            told["nameServer"], group="c", topics={"T": "*"}, consume_from=ConsumeFrom.FIRST
        ) as consumer:
            found = [consumer.receive(timeout_s=20) for _ in expected]
            assert sorted(one.body for one in found if one is not None) == sorted(expected)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("who", "said"),
    [
        ("broker", "broker-a-0 ended: killed by SIGKILL; broker-a has no member left"),
        ("name server", "the name server ended: killed by SIGKILL"),
    ],
)
def test_cluster_stops_when_a_whole_group_or_the_name_server_is_gone(tmp_path: Path, who: str, said: str) -> None:
    with started(tmp_path) as (process, told):
        pid = told["brokers"][0]["pid"] if who == "broker" else told["nameServerPid"]
        os.kill(pid, signal.SIGKILL)
        assert process.wait(30) == 1
        assert said in next_error_line(process)


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
