"""`make bench-failover`: time without reads and writes when a master dies, is switched, or returns.

    python -m bench.modes                               50 kills per mode and registry, then the cost: an hour
    python -m bench.modes --rounds 5 --registry namesrv --session 500
    python -m bench.modes --only cost                   or kills, or switch: rounds without a kill, elect alone

Each round: kill -9 of the active master of a running pair under load, then its return, then a switch.

    read      kill → the longest time in which a consumer with a backlog got nothing
    write     kill → the longest time in which a producer with default retries stored nothing; failed sends   (elect)
    back      the master listens again → it may be read again (slave-consume), or all is in sync again; in slave-consume
              a slow consumer reads over it: duplicates, committed offsets that move back
    switch    the longest time in which the producer stored nothing, over a planned switch there and back      (elect)
    cost      SYNC_MASTER 16×32, 128 B: elect ÷ static, median of interleaved pairs of two runs each, per registry

Exit code 1 if an acknowledged message was not read in the end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.background import in_background
from bench.failover import seconds_without_delivery
from bench.loads import LoadFailed, run_load
from bench.offset_handover import SlowReads
from tandemq.client.blocking import BlockingProducer
from tandemq.client.connection import BlockingConnection
from tandemq.coordination.registry.records import Mode
from tandemq.errors import TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import Message
from tandemq.run.children import BrokerChild, Child, ChildCluster
from tests.interop.etcd import Etcd
from tests.interop.java import JavaJars
from tests.interop.zookeeper import VERSION, ZooKeeper

_RESULTS = Path(__file__).parent / "results" / "failover.json"
_GROUP = "broker-a"
_SESSION_MS = 2_000
_REGISTRIES = ("namesrv", "zookeeper", "etcd")
_BACKLOG = 200_000
_RETURN_SECONDS = 60.0
_LOOK_SECONDS = 0.01
_SHOWN_LINES = 20
"""Lines shown of each log after a failure."""
_COST_SECONDS = 2.5


@dataclass(slots=True)
class Writes:
    """A producer that sends one message after the other, and records the times of stored ones and the failures."""

    name_servers: str
    moments: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send while the body runs."""
        with in_background(self._send):
            yield

    def _send(self, is_over: threading.Event) -> None:
        with BlockingProducer(self.name_servers, group="bench_failover") as producer:
            while not is_over.wait(0.002):
                try:
                    producer.send(Message("FailoverWrites", b"one more"))
                    self.moments.append(time.monotonic())
                except TandemError as error:
                    self.failed.append(str(error))

    def gap_since(self, moment: float) -> float:
        """Return the longest time without a stored message from a moment on."""
        moments = [moment, *(at for at in self.moments if at > moment)]
        return max((later - earlier for earlier, later in zip(moments, moments[1:], strict=False)), default=0.0)


class Pair:
    """A running pair for `bench.failover`; `master` is the active member."""

    def __init__(self, cluster: ChildCluster) -> None:
        self.cluster = cluster
        self.name_server: Child = cluster.name_server

    @property
    def master(self) -> BrokerChild:
        """Return the active member."""
        found = self.cluster.master_of(_GROUP)
        assert found is not None, "the group has no active member"
        return found


@contextmanager
def running_pair(mode: Mode, registry: str, **settings: str | int) -> Iterator[Pair]:
    """Run a pair in a directory of its own; `registry`: "namesrv", or the address of another one."""
    with _directory() as directory:
        if registry != "namesrv":
            settings["registryAddr"] = registry
        with ChildCluster(directory, groups=1, slaves=1, mode=mode, settings=settings) as cluster:
            yield Pair(cluster)


@contextmanager
def _directory() -> Iterator[Path]:
    """Make a directory for a cluster; after a failure it is kept, and the ends of its logs are printed."""
    directory, is_kept = Path(tempfile.mkdtemp(prefix="tandemq-failover-")), False
    try:
        yield directory
    except (LoadFailed, TandemError, AssertionError):
        is_kept = True
        for path in sorted(directory.glob("*.log")):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]
            print(f"\nthe end of {path}:", *lines, sep="\n", file=sys.stderr)
        print(f"\nbench: logs and stores are kept in {directory}", file=sys.stderr)
        raise
    finally:
        if not is_kept:
            shutil.rmtree(directory)


def kill_round(pair: Pair, mode: Mode) -> dict[str, Any]:
    """Kill the master under load, wait for its return; return the figures."""
    writes = Writes(pair.cluster.name_servers)
    master = pair.master
    found: dict[str, Any] = {}
    if mode is Mode.ELECT:
        with writes.running():
            _wait(lambda: len(writes.moments) > 20)
            begun = time.monotonic()
            master.kill()
            _wait(lambda: bool(writes.moments) and writes.moments[-1] > begun + 0.5 and _is_served(pair))
        found |= {"write": writes.gap_since(begun), "failed": len(writes.failed)}
        _return(pair, master)
        master = pair.master
    if mode is not Mode.SLAVE_CONSUME:
        return found | _read_round(pair, master)
    reads = SlowReads(pair.cluster.name_servers, master.address, [broker.address for broker in pair.cluster.brokers])
    with reads.running():
        found = _read_round(pair, master, reads)
    return found | {"twice": reads.twice, "offsets_back": reads.back}


def _read_round(pair: Pair, master: BrokerChild, reads: SlowReads | None = None) -> dict[str, float]:
    """Kill the master under a consumer with a backlog, and start it again."""
    topic = f"Failover{time.monotonic_ns()}"
    read = seconds_without_delivery(pair, topic=topic, backlog=_BACKLOG).seconds
    if reads is not None:
        reads.returns()
    return {"read": read, "back": _return(pair, master)}


def _return(pair: Pair, master: BrokerChild) -> float:
    """Start a master again; return the seconds from listening until the group is as before."""
    master.start()
    begun = time.monotonic()

    def is_back() -> bool:
        standing = master.failover_status()
        return bool(standing.get("mayRead")) if pair.cluster.mode is Mode.SLAVE_CONSUME else pair.cluster.in_sync()

    _wait(is_back)
    seconds = time.monotonic() - begun
    pair.cluster.wait_until(pair.cluster.in_sync, _RETURN_SECONDS)
    return seconds


def _is_served(pair: Pair) -> bool:
    return pair.cluster.master_of(_GROUP) is not None


def switch_round(pair: Pair) -> dict[str, Any]:
    """Switch to the other member under writes."""
    writes = Writes(pair.cluster.name_servers)
    master = pair.master
    target = next(broker for broker in pair.cluster.brokers if broker is not master)
    with writes.running():
        _wait(lambda: len(writes.moments) > 20)
        begun = time.monotonic()
        with BlockingConnection(master.address) as opened:
            answer = opened.request(Command(RequestCode.TANDEM_SWITCH, fields={"target": str(target.broker_id)}))
        if answer.code != ResponseCode.SUCCESS:
            raise LoadFailed(f"the switch was refused: {answer.remark}")
        asked = time.monotonic() - begun
        _wait(lambda: writes.moments[-1] > begun + 1.0)
    pair.cluster.wait_until(pair.cluster.in_sync, _RETURN_SECONDS)
    return {"switch": writes.gap_since(begun), "command": asked, "failed": len(writes.failed)}


def cost(pairs: int, registry: str, console: Console) -> dict[str, Any]:
    """Compare the rates of a static and an elect cluster that both run, in interleaved pairs of two runs each.

    The order within a pair is one, the other, the other, the one, so that neither the order matters, nor that a machine
    gets slower as its disk has more to write.
    """
    ratios = []
    with running_pair(Mode.STATIC, "namesrv") as fixed, running_pair(Mode.ELECT, registry) as elected:
        for number in range(pairs):
            first, second = (fixed, elected) if number % 2 else (elected, fixed)
            speeds = {id(fixed): 0.0, id(elected): 0.0}
            for pair in (first, second, second, first):
                done = run_load(
                    "produce",
                    pair.master.address,
                    topic="Cost",
                    body=128,
                    connections=16,
                    window=32,
                    seconds=_COST_SECONDS,
                    warmup=1.0,
                )
                speeds[id(pair)] += float(done["messages_per_s"]) / 2
            static, elect = speeds[id(fixed)], speeds[id(elected)]
            ratios.append(elect / static)
            console.print(
                f"{registry.partition(':')[0]} cost: static {static:,.0f} msg/s, elect {elect:,.0f} msg/s "
                f"({ratios[-1]:.3f})"
            )
    return {"ratios": ratios, "median": statistics.median(ratios)}


def _wait(condition: Any, seconds: float = _RETURN_SECONDS) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise LoadFailed(f"what was waited for did not come within {seconds:g} s")
        time.sleep(_LOOK_SECONDS)


def measure(mode: Mode, registry: str, args: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Run all rounds of a mode on a registry; with `--only switch` no master is killed."""
    found, rounds = [], args.rounds
    with running_pair(mode, registry, registrySessionTimeout=args.session) as pair:
        for number in range(rounds):
            figures: dict[str, Any] = kill_round(pair, mode) if args.only != "switch" else {}
            if mode is Mode.ELECT:
                figures |= {f"{key}_s" if key == "failed" else key: value for key, value in switch_round(pair).items()}
            found.append(figures)
            text = "  ".join(f"{key} {value:.2f}" for key, value in figures.items())
            console.print(f"{registry.partition(':')[0]} {mode.value} {number + 1}/{rounds}: {text}")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure and report; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.modes", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=50, help="kills per mode and registry")
    parser.add_argument("--pairs", type=int, default=9, help="interleaved pairs for the cost")
    parser.add_argument("--registry", choices=_REGISTRIES, action="append", help="default: namesrv and zookeeper")
    parser.add_argument("--session", type=int, default=_SESSION_MS, help="registrySessionTimeout in ms; etcd: seconds")
    parser.add_argument("--mode", choices=("static", "slave-consume", "elect"), action="append", help="default: all")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="where the JSON goes")
    parser.add_argument("--only", choices=("kills", "switch", "cost"))
    args = parser.parse_args(arguments)
    console = Console(width=120, highlight=False)
    results: dict[str, Any] = {}
    try:
        for registry in args.registry or ("namesrv", "zookeeper"):
            with _address(registry, args.session) as address:
                for mode in _modes(args, registry):
                    results[f"{mode}, {registry}"] = measure(Mode(mode), address, args, console)
                if args.only in (None, "cost"):
                    results[f"cost, {registry}"] = cost(args.pairs, address, console)
    except (LoadFailed, TandemError, AssertionError) as error:
        console.print(f"bench: {error}", style="red")
        return 1
    finally:
        args.results.parent.mkdir(exist_ok=True)
        args.results.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    console.print(_table(results))
    return 0


def _modes(args: argparse.Namespace, registry: str) -> list[str]:
    """Return the modes to measure on a registry; static pairs have none."""
    if args.only == "cost":
        return []
    if args.only == "switch":
        return ["elect"]
    chosen = args.mode or ["static", "slave-consume", "elect"]
    return [mode for mode in chosen if mode != "static" or registry == "namesrv"]


@contextmanager
def _address(registry: str, session_ms: int) -> Iterator[str]:
    """Run a registry of one server that grants such sessions; "namesrv" is part of the cluster."""
    if registry == "namesrv":
        yield registry
        return
    with tempfile.TemporaryDirectory(prefix=f"tandemq-{registry}-") as directory:
        server: ZooKeeper | Etcd
        if registry == "etcd":
            server = Etcd(Path(directory))
        else:
            JavaJars.resolve("zookeeper", VERSION)
            server = ZooKeeper(Path(directory), tick_ms=session_ms // 4)
        with server:
            server.start()
            yield f"{registry}://{server.address}"


def _table(results: dict[str, Any]) -> Table:
    shown = Table("mode, registry", "what", "p50", "slowest", "runs", "besides", title="seconds")
    for name, figures in results.items():
        if name.startswith("cost"):
            shown.add_row(
                f"elect ÷ static, {name.partition(', ')[2]}",
                "send 16×32, SYNC_MASTER",
                f"{figures['median']:.3f}",
                "",
                str(len(figures["ratios"])),
                "",
            )
            continue
        for what in ("read", "write", "back", "switch"):
            values = [row[what] for row in figures if what in row]
            if values:
                middle, slowest = f"{statistics.median(values):.2f}", f"{max(values):.2f}"
                shown.add_row(name, what, middle, slowest, str(len(values)), _besides(what, figures))
    return shown


def _besides(what: str, rows: list[dict[str, Any]]) -> str:
    counted = {
        "write": {"failed": "sends failed"},
        "switch": {"failed_s": "sends failed"},
        "back": {"twice": "duplicates", "offsets_back": "offsets moved back"},
    }.get(what, {})
    return ", ".join(f"{sum(row[key] for row in rows)} {text}" for key, text in counted.items() if key in rows[0])


if __name__ == "__main__":
    sys.exit(main())
