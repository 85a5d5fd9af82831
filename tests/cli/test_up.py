"""A whole cluster by one command: it tells its addresses, works, stops on Ctrl-C, and its data stay."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tandemq import Message
from tandemq.cli.up import ports_of
from tandemq.client.blocking import BlockingProducer
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.run.ask import try_ask


def start(data: Path) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    words = ["up", "--brokers", "1", "--slaves", "0", "--port", "0", "--data", str(data), "--json"]
    process = subprocess.Popen([sys.executable, "-m", "tandemq", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def test_cluster_runs_until_interrupted_and_its_data_stay(tmp_path: Path) -> None:
    process, told = start(tmp_path)
    with process:
        with BlockingProducer(told["nameServer"], group="g") as producer:
            assert producer.send(Message("T", b"kept")).status.name == "SEND_OK"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert len(told["brokers"]) == 1
    assert not [one for one in told["brokers"] if try_ask(one["address"], Command(RequestCode.TANDEM_PEER_INFO))]

    process, told = start(tmp_path)
    with process:
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
