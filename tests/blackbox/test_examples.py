"""The programs in examples/: each is started, does its work, and ends by a signal with status 0 and no traceback."""

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tandemq import Message
from tandemq.client.blocking import BlockingProducer
from tandemq.run.local import LocalCluster

pytestmark = pytest.mark.system
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class Example:
    """A program of examples/ that runs."""

    def __init__(self, name: str, cluster: LocalCluster, *arguments: str, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", EXAMPLES / name, cluster.name_servers, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=directory,
        )

    def until(self, pattern: str, *, in_errors: bool = False) -> re.Match[str]:
        """Return the first line that has a pattern."""
        stream = self._process.stderr if in_errors else self._process.stdout
        assert stream is not None
        for line in stream:
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"{pattern!r} never came: {self._process.communicate()[1]}")

    def end(self, number: signal.Signals | None, status: int = 0) -> list[str]:
        """Have it end with a status, and return its last lines."""
        if number is not None:
            self._process.send_signal(number)
        out, errors = self._process.communicate(timeout=120)
        assert (self._process.returncode, "Traceback" in errors) == (status, False), errors
        return out.splitlines()


def send(cluster: LocalCluster, *messages: Message, by_key: str | None = None) -> None:
    with BlockingProducer(cluster.name_servers, group="p") as producer:
        for message in messages:
            producer.send(message, by_key=by_key)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("name", "last"), [("consume.py", "offsets committed"), ("pop.py", "acknowledged")])
def test_consumer_handles_an_order_and_ends(
    name: str, last: str, number: signal.Signals, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    send(tandemq_broker, Message("Orders", b"42", tags="paid"))
    example = Example(name, tandemq_broker, directory=tmp_path)
    example.until("b?'?42'? tags=paid")
    (line,) = example.end(number)
    assert line.startswith(last)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [("produce.py", "order 9: SEND_OK"), ("blocking.py", "received: '42 paid'"), ("transactions.py", "order 3: ROLL")],
)
def test_program_that_ends_by_itself(name: str, pattern: str, tandemq_broker: LocalCluster, tmp_path: Path) -> None:
    example = Example(name, tandemq_broker, directory=tmp_path)
    example.until(pattern)
    example.end(None)


def post(port: int, body: bytes) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/orders", data=body, method="POST")
    with urllib.request.urlopen(request, timeout=60) as response:
        return str(response.read().decode())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM)])
def test_web_service_bills_an_order_and_ends(
    number: signal.Signals, status: int, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    """Its server, uvicorn, raises SIGTERM again when the application has shut down."""
    example = Example("web.py", tandemq_broker, "0", directory=tmp_path)
    port = int(example.until(r"running on http://127.0.0.1:(\d+)", in_errors=True)[1])
    assert "SEND_OK" in post(port, b"42")
    example.until("billed: 42")
    assert example.end(number, status)[-1] == "closed"


def test_site_stores_an_order_and_ends(tandemq_broker: LocalCluster, tmp_path: Path) -> None:
    example = Example("site.py", tandemq_broker, "0", directory=tmp_path)
    port = int(example.until(r"port (\d+)")[1])
    assert len(post(port, b"42")) == 32
    assert example.end(signal.SIGTERM) == ["closed"]


def test_worker_calls_a_task_and_ends(tandemq_broker: LocalCluster, tmp_path: Path) -> None:
    sender = Example("worker.py", tandemq_broker, "add", "1", "2", directory=tmp_path)
    assert len(sender.end(None)) == 1
    worker = Example("worker.py", tandemq_broker, directory=tmp_path)
    worker.until(r"1 \+ 2 = 3")
    assert worker.end(signal.SIGTERM) == ["closed"]


def test_stream_adds_up_in_order_and_ends(tandemq_broker: LocalCluster, tmp_path: Path) -> None:
    send(tandemq_broker, *[Message("Amounts", b"%d" % n, keys=["ada"]) for n in range(1, 5)], by_key="ada")
    example = Example("stream.py", tandemq_broker, directory=tmp_path)
    for total in (1, 3, 6, 10):
        assert int(example.until(r"ada: (\d+)")[1]) == total
    assert example.end(signal.SIGINT) == ["closed"]
