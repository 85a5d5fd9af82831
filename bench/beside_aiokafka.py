"""Our Python client on TandemQ beside aiokafka on Kafka: messages per second, and CPU time of the client's process.

    python -m bench.beside_aiokafka                  about three minutes
    python -m bench.beside_aiokafka --rounds 1 --share 0.2

Kafka and ours take turns, each with one broker and topics of four queues; a client is a process of its own. aiokafka
comes from requirements-kafka-clients.lock into an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.cells import OURS
from bench.servers import BrokerGroup
from bench.spark.kafka import KAFKA, KafkaBroker
from tandemq.load.wire.probe import create_topic
from tandemq.load.wire.sockets import connect
from tests.interop.java import REPOSITORY, JavaJars

QUEUES = 4
LOCK = REPOSITORY / "requirements-kafka-clients.lock"


class Cell(NamedTuple):
    """One way to use both clients."""

    title: str
    kind: str
    ours: str
    body: int
    in_flight: int
    messages: int


CELLS = (
    Cell("send 1 KiB, 1 in flight", "send", "send", 1024, 1, 10_000),
    Cell("send 1 KiB, 64 in flight", "send", "send", 1024, 64, 100_000),
    Cell("send 128 B, batched by itself", "linger", "linger", 128, 8, 400_000),
    Cell("send 1 KiB, batched by itself", "linger", "linger", 1024, 8, 200_000),
    Cell("consume 1 KiB, one by one", "iterate", "iterate", 1024, 1, 200_000),
    Cell("consume 128 B, one by one", "iterate", "iterate", 128, 1, 200_000),
)


class Figure(NamedTuple):
    """What one run measured."""

    rate: float
    cpu_us: float


def _environment() -> Path:
    """Return the Python that has aiokafka; made if missing."""
    directory = REPOSITORY / "build" / "aiokafka"
    python, stamp = directory / "bin" / "python", directory / "installed"
    wanted = LOCK.read_text(encoding="utf-8")
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        venv.create(directory, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", LOCK], check=True)
        stamp.write_text(wanted, encoding="utf-8")
    return python


class _Stand:
    """Both brokers, and the topics in them."""

    def __init__(self, group: BrokerGroup, kafka: KafkaBroker, share: float) -> None:
        self._group, self._kafka, self._share = group, kafka, share
        self._python = _environment()
        self._groups = 0
        for body in {cell.body for cell in CELLS}:
            with connect(group.master.address) as broker:
                create_topic(broker, f"clients-{body}", QUEUES)
            kafka.create_topic(f"clients-{body}", QUEUES)

    def measure(self, cell: Cell, *, is_ours: bool) -> Figure:
        """Run a client to its end. Consumers read what the cells before them sent."""
        self._groups += 1
        count = max(1_000, int(cell.messages * self._share))
        words = [
            str(count),
            "--body",
            str(cell.body),
            "--in-flight",
            str(cell.in_flight),
            "--group",
            f"g{self._groups}",
        ]
        topic = f"clients-{cell.body}"
        if is_ours:
            command = [sys.executable, "-m", "bench.client_load", cell.ours, self._group.name_server.address, topic]
        else:
            script = str(REPOSITORY / "bench" / "aiokafka_load.py")
            command = [str(self._python), script, cell.kind, self._kafka.address, topic]
        done = subprocess.run([*command, *words], stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        return Figure(found["messages_per_s"], found["cpu_us"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.beside_aiokafka",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each cell, of which the median counts")
    parser.add_argument("--share", type=float, default=1.0, help="of the messages of each cell")
    args = parser.parse_args()
    JavaJars.resolve("kafka", KAFKA)
    table = Table("", "TandemQ msg/s", "aiokafka msg/s", "ratio", "TandemQ CPU µs", "aiokafka CPU µs", "ratio")
    with (
        tempfile.TemporaryDirectory(prefix="tandemq-bench-") as name,
        BrokerGroup(OURS, Path(name) / "ours") as group,
        KafkaBroker(Path(name) / "kafka") as kafka,
    ):
        group.start_master()
        kafka.format()
        kafka.start()
        stand = _Stand(group, kafka, args.share)
        for cell in CELLS:
            ours, theirs = [], []
            for _ in range(args.rounds):
                ours.append(stand.measure(cell, is_ours=True))
                theirs.append(stand.measure(cell, is_ours=False))
            rate, cpu = (statistics.median(values) for values in zip(*ours, strict=True))
            other_rate, other_cpu = (statistics.median(values) for values in zip(*theirs, strict=True))
            row = f"{rate:,.0f}", f"{other_rate:,.0f}", f"{rate / other_rate:.2f}"
            table.add_row(cell.title, *row, f"{cpu:.1f}", f"{other_cpu:.1f}", f"{other_cpu / cpu:.2f}")
            print(cell.title, row, file=sys.stderr)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
