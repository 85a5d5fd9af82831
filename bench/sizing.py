"""Memory, descriptors and disk of a broker by topics, queues, connections and messages: python -m bench.sizing.

A broker process on an empty store; a row is what the broker uses when that much has been added to the row above. Memory
is the private resident memory: mapped pages of files, which the kernel takes back when it needs them, do not count.

Source: docs/guides/sizing.md.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from tandemq.config.samples import ON_ANY_DISK
from tandemq.load.wire.probe import create_topic
from tandemq.load.wire.sockets import connect
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.real.descriptors import raise_limit
from tandemq.run.children import Child
from tandemq.run.ports import LOOPBACK

QUEUES = 4
BODY_BYTES = 1_000
_LOAD_S = 600
_PROGRAM_FILES = 256


@dataclass(frozen=True, slots=True)
class Row:
    """What the broker uses after a step."""

    step: str
    memory_bytes: int
    name_server_bytes: int
    files: int
    disk_bytes: int


def _private_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


class _Broker:
    """A name server and a broker as processes."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._store = directory / "store"
        names = directory / "names"
        of_names = ["namesrv", "--port", "0", "--set", f"bindAddress={LOOPBACK}", "--set", f"kvConfigPath={names}"]
        self._names = Child("namesrv", directory, lambda: of_names)
        settings = {
            "bindAddress": LOOPBACK,
            "listenPort": 0,
            "storePathRootDir": self._store,
            **ON_ANY_DISK,
        }
        options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        self._broker = Child("broker", directory, lambda: ["broker", "-n", self._names.address, *options])
        for child in (self._names, self._broker):
            stack.callback(child.stop)
            child.start()

    @property
    def address(self) -> str:
        """Address for clients."""
        return self._broker.address

    def produce(self, topics: int, count: int) -> None:
        """Send messages of one length to all queues of that many topics in turn."""
        options = ["--topics", topics, "--queues", QUEUES, "--body", BODY_BYTES, "--count", count, "--warmup", 0]
        command = [sys.executable, "-m", "tandemq", "bench", "produce", self.address, "--topic", "filled"]
        subprocess.run(  # our own program
            [*command, *map(str, options)], check=True, stdout=subprocess.DEVNULL, timeout=_LOAD_S
        )

    def row(self, step: str) -> Row:
        """Return what the processes use now."""
        with connect(self.address, _LOAD_S) as broker:  # answered after everything before it
            broker.request(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
        files = [path.stat().st_blocks << 9 for path in self._store.rglob("*") if path.is_file()]
        pid = self._broker.pid
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return Row(step, _private_bytes(pid), _private_bytes(self._names.pid), descriptors, sum(files))


def measure(directory: Path, topics: int, connections: int, messages: int) -> Iterator[Row]:
    """Yield a row for each step.

    Args:
        directory: where the store is made.
        topics: topics that are created; a tenth of them first.
        connections: connections that are opened and stay idle.
        messages: messages of BODY_BYTES, to one topic.
    """
    raise_limit(connections + _PROGRAM_FILES)
    with ExitStack() as stack:
        broker = _Broker(directory, stack)
        yield broker.row("at rest")
        with connect(broker.address, _LOAD_S) as operator:
            for first, end in ((0, topics // 10), (topics // 10, topics)):
                for number in range(first, end):
                    create_topic(operator, f"topic-{number}", QUEUES)
                yield broker.row(f"{end:,} topics of {QUEUES} queues")
        broker.produce(1, messages)
        yield broker.row(f"{messages:,} messages of {BODY_BYTES:,} bytes")
        filled = topics // 10
        broker.produce(filled, filled * QUEUES * 2)
        yield broker.row(f"messages in {filled * QUEUES:,} more queues")
        opened = [stack.enter_context(connect(broker.address, _LOAD_S)) for _ in range(connections)]
        for connection in opened:
            connection.request(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
        yield broker.row(f"{connections:,} connections")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(prog="python -m bench.sizing", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--topics", type=int, default=10_000, help="topics to create (10,000)")
    parser.add_argument("--connections", type=int, default=1_000, help="connections to open (1,000)")
    parser.add_argument("--messages", type=int, default=200_000, help="messages to send to one topic (200,000)")
    parser.add_argument("--json", action="store_true", help="print a JSON object per row")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        for row in measure(Path(directory), args.topics, args.connections, args.messages):
            memory = f"{row.memory_bytes / 1e6:7.1f} MB  name server {row.name_server_bytes / 1e6:7.1f} MB"
            text = f"{row.step:40} {memory}  {row.files:6,} files  {row.disk_bytes / 1e6:9.2f} MB on disk"
            print(json.dumps(asdict(row)) if args.json else text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
