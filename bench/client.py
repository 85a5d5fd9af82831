"""Our client beside a broker: CPU time per message in the client's process, and messages per second.

    python -m bench.client                       all cells, about three minutes
    python -m bench.client send/1k/plain         those whose names begin like this
    python -m bench.client --profile send/1k/plain/4q/64
    python -m bench.client --share 0.2 --engine python
    python -m bench.client --beside ../other linger    the client of another checkout in turns with ours

A cell is a process of its own (`bench.client_load`); name server and broker are started once. Other load on the machine
disturbs the CPU time little, and the rate much. Names of cells are KIND/BODY/FORM/QUEUES/IN-FLIGHT: FORM is plain or
varied (with a tag, a key and a property), IN-FLIGHT the sends in flight, or the handlers of a push consumer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.cells import OURS
from bench.servers import BrokerGroup, cpu_seconds
from tandemq.load.wire.probe import create_topic
from tandemq.load.wire.sockets import connect

_BODIES = {"128": 128, "1k": 1 << 10, "3k": 3 << 10, "8k": 8 << 10, "64k": 64 << 10}
_QUEUES = (1, 4, 64)


@dataclass(frozen=True, slots=True)
class _Cell:
    """One run of the client."""

    kind: str
    body: str
    form: str
    queues: int
    in_flight: int
    count: int

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.body}/{self.form}/{self.queues}q/{self.in_flight}"

    @property
    def topic(self) -> str:
        return f"client-{self.body}-{self.form}-{self.queues}q"

    @property
    def is_consumer(self) -> bool:
        return self.kind in ("consume", "iterate", "poll", "consume-blocking")


_CELLS = (
    _Cell("send", "1k", "plain", 4, 1, 20_000),
    _Cell("send", "1k", "plain", 4, 64, 100_000),
    _Cell("send", "1k", "plain", 4, 512, 100_000),
    _Cell("send", "1k", "plain", 1, 64, 100_000),
    _Cell("send", "1k", "plain", 64, 64, 100_000),
    _Cell("send", "1k", "varied", 4, 1, 20_000),
    _Cell("send", "1k", "varied", 4, 64, 100_000),
    _Cell("send", "1k", "varied", 4, 512, 100_000),
    _Cell("send", "1k", "varied", 64, 64, 100_000),
    _Cell("send", "128", "varied", 4, 64, 100_000),
    _Cell("send", "3k", "varied", 4, 64, 60_000),
    _Cell("send", "8k", "varied", 4, 64, 20_000),
    _Cell("send", "64k", "varied", 4, 64, 2_000),
    _Cell("linger", "128", "plain", 4, 8, 400_000),
    _Cell("linger", "128", "varied", 4, 8, 400_000),
    _Cell("linger", "1k", "varied", 4, 8, 100_000),
    _Cell("linger-send", "128", "plain", 4, 2048, 200_000),
    _Cell("oneway", "1k", "varied", 4, 1, 100_000),
    _Cell("batch", "1k", "varied", 4, 4, 100_000),
    _Cell("send-blocking", "1k", "varied", 4, 1, 10_000),
    _Cell("send-blocking", "1k", "varied", 4, 8, 20_000),
    _Cell("consume", "1k", "plain", 4, 64, 200_000),
    _Cell("iterate", "1k", "plain", 4, 1, 200_000),
    _Cell("consume", "1k", "varied", 1, 64, 100_000),
    _Cell("consume", "1k", "varied", 4, 64, 200_000),
    _Cell("consume", "1k", "varied", 64, 64, 100_000),
    _Cell("iterate", "1k", "varied", 4, 1, 200_000),
    _Cell("poll", "1k", "varied", 4, 1, 200_000),
    _Cell("consume-blocking", "1k", "varied", 4, 1, 20_000),
    _Cell("iterate", "128", "varied", 4, 1, 100_000),
    _Cell("iterate", "64k", "varied", 4, 1, 2_000),
)


class _Stand:
    """A broker, and the messages stored in it so far, by topic."""

    def __init__(self, group: BrokerGroup, args: argparse.Namespace) -> None:
        self._group = group
        self._args = args
        self._stored: dict[str, int] = {}
        self._groups = 0
        group.start_master()

    def run(self, cell: _Cell) -> str:
        """Run a cell and return its line."""
        count = max(1_000, int(cell.count * self._args.share))
        self._create(cell)
        if cell.is_consumer and self._stored[cell.topic] < count:
            missing = count - self._stored[cell.topic]
            self._load(
                _Cell("oneway" if cell.body == "64k" else "batch", cell.body, cell.form, cell.queues, 4, 0), missing
            )
        results, others = [], []
        for _ in range(self._args.runs):
            if self._args.beside is not None:
                others.append(self._measured(cell, count, self._args.beside))
            results.append(self._measured(cell, count))
        client, broker, rate = min(results)
        line = f"{cell.name:32} {client:7.2f} {broker:7.2f} {rate / 1000:8.1f}"
        if others:
            other, _, other_rate = min(others)
            line += f" {other:9.2f} {other_rate / 1000:8.1f} {other / client:7.2f}"
        return line

    def _measured(self, cell: _Cell, count: int, tree: Path | None = None) -> tuple[float, float, float]:
        """Return the CPU time per message of client and broker, microseconds, and the rate of the client.

        Args:
            tree: another checkout, whose client is measured.
        """
        before = cpu_seconds(self._group.master.pid)
        result = self._load(cell, count, tree)
        return result["cpu_us"], (cpu_seconds(self._group.master.pid) - before) / count * 1e6, result["messages_per_s"]

    def _create(self, cell: _Cell) -> None:
        if cell.topic not in self._stored:
            with connect(self._group.master.address) as broker:
                create_topic(broker, cell.topic, cell.queues)
            self._stored[cell.topic] = 0

    def _load(self, cell: _Cell, count: int, tree: Path | None = None) -> dict[str, float]:
        self._groups += 1
        command = [sys.executable, "-m", "bench.client_load", cell.kind, self._group.name_server.address, cell.topic]
        command += [str(count), "--body", str(_BODIES[cell.body]), "--form", cell.form]
        command += ["--in-flight", str(cell.in_flight), "--group", f"bench-{self._groups}"]
        command += ["--profile"] if self._args.profile and cell.count else []
        environment = {**os.environ, **({"TANDEMQ_ENGINE": self._args.engine} if self._args.engine else {})}
        if tree is not None:
            environment["PYTHONPATH"] = os.pathsep.join((str(tree.resolve() / "src"), str(Path.cwd())))
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        if not cell.is_consumer:
            self._stored[cell.topic] += count
        result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return result


def _chosen(only: list[str]) -> Iterator[_Cell]:
    for cell in _CELLS:
        if not only or any(cell.name.startswith(prefix) for prefix in only):
            yield cell


def main() -> None:
    """Measure the chosen cells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", metavar="CELL", help="what their names begin with; all by default")
    parser.add_argument("--share", type=float, default=1.0, help="of the messages of each cell")
    parser.add_argument("--runs", type=int, default=1, help="of each cell; the one with the least CPU time counts")
    parser.add_argument("--engine", choices=("python", "compiled"), help="of the client; by default the broker's")
    parser.add_argument("--beside", type=Path, metavar="TREE", help="checkout of another commit to measure in turns")
    parser.add_argument("--profile", action="store_true", help="print profiles as well")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        BrokerGroup(OURS, Path(directory) / "group", {"messageDelayLevel": "1s 2h"}) as group,
    ):
        stand = _Stand(group, args)
        beside = ("    beside thousand   ratio", "        µs    per s") if args.beside is not None else ("", "")
        print(f"{'':32} {'client':>7} {'broker':>7} thousand{beside[0]}")
        print(f"{'':32} {'µs':>7} {'µs':>7}    per s{beside[1]}", flush=True)
        for cell in _chosen(args.cells):
            print(stand.run(cell), flush=True)


if __name__ == "__main__":
    main()
