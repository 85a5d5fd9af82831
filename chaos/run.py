"""`make chaos`: real brokers on a real registry under kills, stops, cut connections and failing devices, then checked.

    python -m chaos.run                             200 runs of 20 seconds, on all registries in turn
    python -m chaos.run --runs 1 --seed 7 --keep    one of them again, its logs kept
    python -m chaos.run --registry etcd3            on three servers of etcd, which are killed too

Each run draws mode, members, registry, static topic and faults from its seed, and writes a JSON report. Exit code 3 if
there was a violation, 130 if it was interrupted. Checks: `chaos.history`, `logical_history`, `permissions`, `stores`,
`resources`; the rules are those of docs/internals/simulation.md, "What is checked", and docs/internals/chaos.md says
what they mean here.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console

from chaos import assignments, beside, filters, grpc_clients, pops, static_topics, timers, transactions
from chaos.beyond import of_safety
from chaos.brokers import Broker
from chaos.clients import CONSUMERS, DELAYS, DRAIN_SECONDS, TOPIC, Clients
from chaos.faults import KINDS, Faults
from chaos.logical_history import LogicalHistory
from chaos.machines import SHARDS, Machine
from chaos.recorder import Recorder
from chaos.registries import RegistryServers
from chaos.requests import TOPIC as STATIC_TOPIC
from chaos.resources import leaks
from chaos.rights import rights
from chaos.stores import check, has_log, records
from chaos.world import World
from judge.history import HistoryError
from judge.verdict import judge
from tandemq.coordination.registry.records import Mode
from tandemq.errors import TandemError
from tandemq.model.topic import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, retry_topic
from tandemq.run.ports import Setting
from tests.interop.ensembles import ZOOKEEPER_TICK_MS, Ensemble
from tests.interop.etcd import Etcd
from tests.interop.java import java_executable
from tests.interop.zookeeper import ZooKeeper

EXIT_VIOLATION = 3
EXIT_INTERRUPTED = 130
SLAVE_READS = 1 / 3
"""Share of the runs in which slaves deliver messages that they have and the consumer has not."""
SHARDED = 1 / 4
"""Share of the runs in which members are machines with two shards, see `chaos.machines`."""
HISTORY = "history.jsonl"
"""Name of the history among the stores and logs of a run."""
BEYOND_DRAIN_SECONDS = 15.0
"""How long a run waits for messages that may be lost."""
EARLY_MS = 2.0
"""Tolerance for delayed and timed messages: brokers count whole milliseconds."""
STATIC_TOPICS = 1 / 3
"""Share of the runs with a static topic over the group and a broker beside it."""
REGISTRIES = ("namesrv", "zookeeper", "zookeeper3", "etcd", "etcd3")
"""The name server's, one server, or three that agree."""
_VIOLATIONS_SHOWN = 50
_BY_CLOCKS = re.compile(r"judge: \d+ (early|recalled-read|pop-overlap),")
"""Anomalies found by the judge that a wrong clock explains."""


def run(
    seed: int,
    seconds: float,
    directory: Path,
    registry: Registry,
    history_path: Path,
    *,
    shards: bool | None = None,
    only: Sequence[str] = (),
    at_once: int = 1,
    is_beyond: bool = False,
) -> dict[str, Any]:
    """Run one seed; return its report.

    Args:
        seed: draws all else.
        seconds: of faults.
        directory: of stores and logs.
        registry: of the brokers' group.
        history_path: file for the history, which the judge then reads.
        shards: whether members have shards; None: the seed decides.
        only: kinds of faults of brokers to draw from; empty: all, and those of proxies and the broker beside.
        at_once: how many faults there are at the same time at most.
        is_beyond: whether there are losses that the group is not made for; only rules of safety are checked then.
    """
    random = Random(seed)
    mode = random.choice((Mode.ELECT, Mode.ELECT, Mode.SLAVE_CONSUME, Mode.STATIC))
    members = random.choice((2, 3))
    random.choice("ab")  # decided on the registry once; all further choices of a seed stay what they were
    flush = {"flushDiskType": random.choice(("ASYNC_FLUSH", "SYNC_FLUSH"))}
    settings: dict[str, Setting] = {**flush, "messageDelayLevel": DELAYS}
    settings |= transactions.SETTINGS | timers.SETTINGS | filters.SETTINGS | grpc_clients.SETTINGS
    reads_from_slaves = Random(f"{seed}-slave-reads").random() < SLAVE_READS
    if reads_from_slaves:
        settings |= {"slaveReadEnable": "true", "accessMessageInMemoryMaxRatio": "0"}
    static = Random(f"{seed}-static-topic")
    neighbour = static_topics.NEIGHBOUR_SETTINGS if static.random() < STATIC_TOPICS else None
    shard, of_shards = _draw_shard(seed, shards)
    if shard is not None:
        neighbour = None
        settings |= of_shards
    report: dict[str, Any] = {
        "seed": seed,
        "mode": mode.value,
        "members": members,
        "registry": registry.kind,
        **flush,
        "slaveReads": reads_from_slaves,
        "shard": shard,
        "atOnce": at_once,
        "beyond": is_beyond,
    }
    begun = time.monotonic()
    clients_log = logging.FileHandler(directory / "clients.log", encoding="utf-8")
    clients_log.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[clients_log], force=True)
    with (
        World(
            directory,
            mode=mode,
            members=members,
            registry=registry.address,
            servers=registry.servers,
            settings=settings,
            neighbour=neighbour,
            shard=shard,
        ) as world,
        history_path.open("w", encoding="utf-8") as file,
    ):
        recorder = Recorder(file, TOPIC, world.group, run=f"seed {seed}", system="TandemQ", promises=promises_of(mode))
        clients = Clients(world, static, recorder)
        clients.start()
        faults = Faults(world, random, only, at_once=at_once, is_beyond=is_beyond)
        faults.run(seconds)
        violations = world.wait_whole()
        is_whole = not violations
        violations += faults.violations
        violations += clients.finish(BEYOND_DRAIN_SECONDS if is_beyond else DRAIN_SECONDS)
        if is_whole:
            lagging = world.wait_whole()
            is_whole = not lagging
            violations += lagging
        grown = [growth for child in world.children if (growth := child.growth()) is not None]
        violations += leaks(grown)
        violations += world.stop_all()
        stores: dict[str, Any] = {}
        if is_whole:
            may_lack_keys = any(fault["fault"] == "damage-log" for fault in faults.done)
            violations += check_stores(world.brokers, clients, stores, recorder, may_lack_keys=may_lack_keys)
            recorder.settled()
    history = clients.history
    violations += rights(world.brokers)
    violations += judged(history_path)
    if is_whole and clients.static is not None and world.neighbour is not None:
        violations += _check_static(world.brokers[0], world.neighbour, clients.static.history, stores)
    report |= {"faults": faults.done, "seconds": round(time.monotonic() - begun, 1)}
    report |= history.report() | {"transactions": clients.transacting.transactions.report()}
    report |= {"grpc": clients.grpc.report(), "grpc_transactions": clients.grpc_transacting.report()}
    report |= {"pops": clients.popped.report(), "filter": clients.filtered.report()}
    report |= {"entries": clients.shown.report(), "timers": clients.timers.report()}
    if clients.beside is not None:
        report["beside"] = clients.beside.history.report()
        violations += [f"{text} (the other shard)" for text in clients.beside.history.violations]
    if clients.static is not None:
        report["static"] = clients.static.history.report()
        violations += clients.static.history.violations
    report |= {"resources": [growth.report() for growth in grown], "stores": stores}
    found = _by_clocks(history.violations + violations, faults.done)
    report["violations"] = _told(of_safety(found) if is_beyond else found)
    return report


def promises_of(mode: Mode) -> dict[str, Any]:
    """Return what the clients of a run may rely on; brokers are killed, and lose no bytes."""
    is_elected = mode is Mode.ELECT
    return {
        "order": "realtime",
        "repeated_delays": True,
        "early_ms": EARLY_MS,
        "recall_ms": EARLY_MS,
        "offsets": "monotonic" if is_elected else "any",
        "pops": "final" if is_elected else "any",
        "pop_slack_ms": EARLY_MS,
        "shared_ms": assignments.SHARED_MS,
    }


def judged(path: Path) -> list[str]:
    """Return the anomalies that the judge finds in a history."""
    try:
        with path.open(encoding="utf-8") as file:
            verdict = judge(file)
    except HistoryError as error:
        return [f"judge: the history cannot be read: {error}"]
    return [f"judge: {text}" for text in verdict.summary()]


def _by_clocks(violations: list[str], faults: list[dict[str, Any]]) -> list[str]:
    """Return the violations without deliveries before their time, if the clock of a broker was wrong."""
    if not any(fault["fault"] == "clock" for fault in faults):
        return violations
    return [text for text in violations if not (text.endswith("before its time") or _BY_CLOCKS.match(text))]


def _draw_shard(seed: int, shards: bool | None) -> tuple[int | None, dict[str, Setting]]:
    """Return the shard that the clients use, and settings of the members; None without shards."""
    random = Random(f"{seed}-shards")
    has_shards, shard, is_together = random.random() < SHARDED, random.randrange(SHARDS), random.random() < 0.5
    if not (has_shards if shards is None else shards):
        return None, {}
    # A topic of clients is made on its own shard, not on the first one that a client finds.
    return shard, {"autoCreateTopicEnable": "false", "shardRolesTogether": str(is_together).lower()}


def check_stores(
    brokers: Sequence[Broker],
    clients: Clients,
    figures: dict[str, Any],
    recorder: Recorder,
    *,
    may_lack_keys: bool = False,
) -> list[str]:
    """Check the stores of brokers that were in sync and have stopped; return their violations."""
    history = clients.history
    try:
        found, verified = check([broker.judged_store for broker in brokers], may_lack_keys=may_lack_keys)
        machines = [broker for broker in brokers if isinstance(broker, Machine)]
        if machines:
            others, _ = check([machine.shard_path(SHARDS - 1 - machine.shard) for machine in machines])
            found += [f"{text} (the other shard)" for text in others]
            if clients.beside is not None:
                other = machines[0].shard_path(SHARDS - 1 - machines[0].shard)
                clients.beside.history.check_log(f"{machines[0].name}, other shard", records(other, beside.TOPIC))
        first, store = brokers[0], brokers[0].judged_store
        timed = [record for record in records(store, TIMER_TOPIC) if not pops.is_of_pop(record)]
        delayed, retried = [records(store, topic) for topic in (SCHEDULE_TOPIC, retry_topic(CONSUMERS))]
        waiting = (record for record in timed if not timers.is_request(record))
        history.check_aside(first.name, delayed, retried, waiting)
        messages, *told = [list(records(store, topic)) for topic in (TOPIC, HALF_TOPIC, OP_HALF_TOPIC)]
        history.check_log(first.name, messages)
        recorder.stored(first.name, ((*record.place, record.body, record.tag) for record in messages))
        for known in clients.all_transactions():
            found += known.check_log(first.name, messages, *told)
        found += clients.filtered.check_log(first.name, messages)
        found += clients.shown.check_log(first.name, messages)
        found += timers.check_log(first.name, messages, timed, clients.timers)
    except TandemError as error:
        return [f"I10: the stores cannot be checked: {error}"]
    figures.update(verified)
    return found


def _check_static(member: Broker, neighbour: Broker, history: LogicalHistory, figures: dict[str, Any]) -> list[str]:
    """Check the static topic in the logs of the group and of the broker beside it; return the latter's violations."""
    try:
        found, verified = check([neighbour.store] if has_log(neighbour.store) else [])
        for broker in (member, neighbour):
            has_messages = has_log(broker.store)
            history.check_log(broker.broker_name, records(broker.store, STATIC_TOPIC) if has_messages else ())
    except TandemError as error:
        return [f"I10: the stores cannot be checked: {error}"]
    figures.update(verified)
    return found


def _told(violations: list[str]) -> list[str]:
    more = len(violations) - _VIOLATIONS_SHOWN
    return violations if more <= 0 else [*violations[:_VIOLATIONS_SHOWN], f"… and {more} more"]


@dataclass(frozen=True, slots=True)
class Registry:
    """The registry of one run. `address`: "" for the name server's; `servers`: None for it."""

    kind: str
    address: str = ""
    servers: RegistryServers | None = None


def _kind_of(seed: int) -> str:
    """Return the registry of a seed, among those whose servers this machine has."""
    java = all(map(shutil.which, (java_executable(), os.environ.get("MAVEN", "mvn"))))
    found = [kind for kind in REGISTRIES if java or not kind.startswith("zookeeper")]
    found = [kind for kind in found if shutil.which("etcd") or not kind.startswith("etcd")]
    return Random(f"{seed}-registry").choice(found)


@contextmanager
def _registry(kind: str, directory: Path) -> Iterator[Registry]:
    if kind == "namesrv":
        yield Registry(kind)
    elif kind.endswith("3"):
        with Ensemble(kind.removesuffix("3"), directory) as ensemble:
            yield Registry(kind, ensemble.address, RegistryServers.of_ensemble(ensemble))
    else:
        alone = ZooKeeper(directory, tick_ms=ZOOKEEPER_TICK_MS) if kind == "zookeeper" else Etcd(directory)
        with alone:
            alone.start()
            yield Registry(kind, f"{kind}://{alone.address}", RegistryServers.of_server(alone))


def main(arguments: list[str] | None = None) -> int:
    """Run and report; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m chaos.run", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the others count up")
    parser.add_argument("--seconds", type=float, default=20.0, help="of faults, per run")
    parser.add_argument("--reports", type=Path, default=Path("build/chaos"), help="where the JSON reports go")
    parser.add_argument(
        "--shards",
        action=argparse.BooleanOptionalAction,
        help="members with shards, or none: not as the seed draws",
    )
    parser.add_argument("--registry", choices=REGISTRIES, help="not as the seed draws")
    parser.add_argument(
        "--history",
        type=Path,
        metavar="FILE",
        help="where the history for python -m judge goes, with --runs 1; that of a failed run is beside its report",
    )
    parser.add_argument(
        "--only", metavar="KIND", nargs="+", choices=KINDS, default=(), help=f"faults of brokers: {', '.join(KINDS)}"
    )
    parser.add_argument(
        "--at-once",
        type=int,
        default=0,
        metavar="N",
        help="inject up to N faults at the same time, and at least two; default: one after the other, with --beyond 3",
    )
    parser.add_argument(
        "--beyond",
        action="store_true",
        help="also lose logs, tables and disks of any members: more than a group is made for; only rules of safety are "
        "checked: nothing is wrong, invented or served twice",
    )
    parser.add_argument("--keep", action="store_true", help="keep stores and logs of every run, not of bad ones alone")
    args = parser.parse_args(arguments)
    if args.history is not None and args.runs != 1:
        parser.error("--history is of one run: add --runs 1")
    args.at_once = args.at_once or (3 if args.beyond else 1)
    if args.at_once < 1:
        parser.error(f"--at-once is {args.at_once}; at least one fault is injected")
    console = Console(width=140, highlight=False, markup=False)
    args.reports.mkdir(parents=True, exist_ok=True)
    bad = done = 0
    registries: Counter[str] = Counter()
    try:
        for seed in range(args.seed, args.seed + args.runs):
            report = _one(seed, args, console)
            done += 1
            bad += bool(report["violations"])
            registries[report.get("registry", "none")] += 1
    except KeyboardInterrupt:
        console.print("interrupted: the run that was under way does not count")
    used = ", ".join(f"{count} on {kind}" for kind, count in sorted(registries.items()))
    console.print(f"{done} runs ({used}), {bad} with violations; reports in {args.reports}")
    return EXIT_VIOLATION if bad else EXIT_INTERRUPTED if done < args.runs else 0


def _one(seed: int, args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run a seed, write its report and print it; after a violation stores and logs are kept, and the history beside the
    report."""
    directory = Path(tempfile.mkdtemp(prefix=f"tandemq-chaos-{seed}-"))
    try:
        with _registry(args.registry or _kind_of(seed), directory / "registry") as registry:
            try:
                history_path = args.history or directory / HISTORY
                report = run(
                    seed,
                    args.seconds,
                    directory,
                    registry,
                    history_path,
                    shards=args.shards,
                    only=args.only,
                    at_once=args.at_once,
                    is_beyond=args.beyond,
                )
            except TandemError as error:
                report = {"seed": seed, "mode": "", "violations": [f"I14: {error}"]}
    except KeyboardInterrupt:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    (args.reports / f"{seed}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    history = directory / HISTORY
    if report["violations"] and history.exists():
        shutil.copyfile(history, args.reports / f"{seed}.history.jsonl")
    if report["violations"] or args.keep:
        console.print(f"its stores and logs are in {directory}")
    else:
        shutil.rmtree(directory)
    _tell(console, report)
    return report


def _tell(console: Console, report: dict[str, Any]) -> None:
    shown = {key: report.get(key) for key in ("acknowledged", "delayed", "rejected", "duplicates", "failed")}
    shown |= {key: report.get("transactions", {}).get(key) for key in ("committed", "rolled_back", "checks")}
    shown |= {"popped": report.get("pops", {}).get("acknowledged"), "back": report.get("pops", {}).get("came_back")}
    shown |= {f"grpc {key}": report.get("grpc", {}).get(key) for key in ("sent", "acknowledged", "came_back")}
    shown |= {"filtered": report.get("filter", {}).get("delivered")}
    shown |= {"timed": report.get("timers", {}).get("deliveries"), "recalls": report.get("timers", {}).get("recalls")}
    if "beside" in report:
        shown |= {"beside": report["beside"]["acknowledged"], "beside failed": report["beside"]["failed"]}
    if "static" in report:
        shown |= {f"static {key}": report["static"][key] for key in ("moves", "acknowledged", "delivered")}
    gaps = f"gaps {report.get('longest_write_gap_s', 0):.1f} s, {report.get('longest_read_gap_s', 0):.1f} s"
    faults = " ".join(f"{fault['fault']}{fault['broker']}" for fault in report.get("faults", ()))
    head = f"{report['seed']:>4} {report['mode']} {report.get('members', '')} {report.get('registry', '')}"
    if report.get("shard") is not None:
        head += f" shard {report['shard']} of {SHARDS}"
    console.print(f"{head}: {shown} {gaps}; {faults}")
    for text in report["violations"]:
        console.print(f"     {text}", style="red")


if __name__ == "__main__":
    sys.exit(main())
