"""Faults of brokers and proxies under unmodified clients, and a history of the clients that is judged.

    python -m chaos.kills --brokers 5.3.3 --role SYNC_MASTER                 TandemQ's clients, brokers of Java
    python -m chaos.kills --role elect --clients go --seed 7                 RocketMQ's Go client, TandemQ's brokers
    python -m chaos.kills --role elect --clients node --faults kill,switch   only these faults

Clients: `chaos.other_clients`. Faults: `chaos.kill_groups`; each chosen kind is injected once, in an order that the
seed draws, then again. Brokers have ASYNC_FLUSH; kill -9 leaves what they have written. Each run leaves a JSON report,
as `chaos.run` does, one with violations its history, stores and logs too. Needs Java 17 and Maven, or what builds the
client. Exit code 3: there was a violation; 2: the run itself failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console

from chaos import other_clients
from chaos.brokers import GROUP
from chaos.kill_groups import ELECT, KINDS, OURS, Group, group_of, kinds_of
from chaos.other_clients import ORDERED, ORDERED_READERS, QUEUES, TOPIC
from chaos.own_clients import OwnClients
from chaos.pops import INVISIBLE_S
from chaos.reading import Held, read_to_end
from chaos.recorder import Recorder, content_hash
from chaos.run import HISTORY
from judge.verdict import judge
from judge.writing import HistoryWriter
from tandemq import Admin
from tandemq.errors import TandemError
from tandemq.model.group import ExponentialRetryPolicy, GroupRetryPolicy, SubscriptionGroupConfig
from tests.interop.grpc_clients import LANGUAGES
from tests.interop.java import SERVER_VERSIONS, PeerError, wait_until
from tests.interop.peers import NEWEST_VERSION

EXIT_FAILED, EXIT_VIOLATION = 2, 3
GAPS = {"go": 15.0, "cpp": 15.0}
"""Seconds between faults by client: these ask for new routes every 30 s only, and others at once."""
_GAP_S, _JAVA_GAP_S = 3.0, 10.0
"""Of other clients; of Java's brokers, whose slaves need so long to connect again."""
_READ_S = 60.0
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does."""

    brokers: str = OURS
    """"ours", or a version of RocketMQ."""
    role: str = "SYNC_MASTER"
    """SYNC_MASTER, ASYNC_MASTER or elect."""
    clients: str = OURS
    """"ours", or one of `other_clients.NAMES`."""
    seed: int = 1
    faults: tuple[str, ...] = ()
    """Kinds of faults; empty: all that the brokers can have, and the clients notice."""
    seconds: float = 60.0
    """How long faults begin."""
    down_s: float = 4.0
    """Longest duration of a fault."""
    gap_s: float = -1.0
    """Time before each fault; negative: as clients and brokers need it."""

    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of faults."""
        of_clients = kinds_of(self.role)
        if self.clients not in LANGUAGES:
            of_clients = tuple(kind for kind in of_clients if kind != "kill-proxy")
        return self.faults or of_clients


def run(plan: Plan, directory: Path, history: Path) -> dict[str, Any]:
    """Run once, write the history and judge it; return the report.

    Args:
        plan: what to do.
        directory: of stores, homes and logs.
        history: file for the history.

    Raises:
        PeerError, TimeoutError, TandemError: the run itself failed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with group_of(plan.brokers, plan.role, directory) as group, history.open("w", encoding="utf-8") as file:
        has_types = plan.clients in LANGUAGES
        wait_until(lambda: _try_prepare(group.address, has_types=has_types), what="topics and groups", within_s=30)
        if plan.clients == OURS:
            figures, violations = _run_own(plan, group, file)
        else:
            figures, violations = _run_others(plan, group, file, directory / "clients")
        violations += group.end()
    with history.open(encoding="utf-8") as file:
        verdict = judge(file)
    report: dict[str, Any] = {
        **_planned(plan),
        "faults": group.faults,
        "fault_counts": dict(Counter(fault["fault"] for fault in group.faults)),
        "seconds": round(time.monotonic() - begun, 1),
        **figures,
        "anomalies": dict(verdict.counts),
        "not_judged": verdict.not_judged,
    }
    report["violations"] = [f"judge: {text}" for text in verdict.summary()] + violations
    return report


def _planned(plan: Plan) -> dict[str, Any]:
    """Return what the report says of the plan, under the names of `chaos.run`."""
    return {
        "seed": plan.seed,
        "mode": plan.role,
        "members": 2,
        "registry": "namesrv" if plan.role == ELECT else "none",
        "flushDiskType": "ASYNC_FLUSH",
        "brokers": plan.brokers,
        "clients": plan.clients,
    }


def _names(plan: Plan) -> tuple[str, str]:
    system = f"{'TandemQ' if plan.brokers == OURS else f'RocketMQ {plan.brokers}'} {plan.role}"
    return f"seed {plan.seed}, clients {plan.clients}", system


def _inject(plan: Plan, group: Group) -> None:
    gap_s = plan.gap_s
    if gap_s < 0:
        gap_s = max(GAPS.get(plan.clients, _GAP_S), _GAP_S if plan.brokers == OURS else _JAVA_GAP_S)
    group.inject(plan.kinds(), Random(plan.seed), plan.seconds, plan.down_s, gap_s)


def _run_own(plan: Plan, group: Group, file: Any) -> tuple[dict[str, Any], list[str]]:
    """Run TandemQ's clients; return their figures and violations."""
    name, system = _names(plan)
    promises = {"pop_slack_ms": INVISIBLE_S * 1_000}  # a new master may hand them out at once: docs/reference/pop.md
    recorder = Recorder(file, TOPIC, GROUP, run=name, system=system, promises=promises)
    clients = OwnClients(group, recorder)
    _inject(plan, group)
    clients.finish()
    for queue in _held(group, TOPIC):
        messages = [[offset, body, content_hash(body, body.partition("-")[0])] for offset, body in queue.messages]
        fields: dict[str, Any] = {"from": 0, "next": queue.end, "messages": messages, "complete": True}
        recorder.writer.note("broker", "read", q=recorder.queue(queue.queue_id), node="broker", **fields)
    recorder.settled()
    return clients.report(), []


def _run_others(plan: Plan, group: Group, file: Any, directory: Path) -> tuple[dict[str, Any], list[str]]:
    """Run clients in another language; return their figures and violations."""
    name, system = _names(plan)
    with ExitStack() as stack:
        clients = other_clients.start(
            plan.clients,
            group.address,
            group.endpoints,
            directory,
            stack,
            loses_proxies="kill-proxy" in plan.kinds(),
        )
        clients.wait_started()
        _inject(plan, group)
        clients.stop_sending()
        clients.drain()
        clients.close()
    held = _held(group, TOPIC, ORDERED)
    clients.observed.place(held)
    writer = HistoryWriter(file, lambda: time.time() * 1_000, run=name, system=system)
    clients.observed.write(writer, held)
    violations = clients.observed.violations(held, clients.groups, has_acks=group.elects)
    return clients.observed.report(), violations


def _held(group: Group, *topics: str) -> list[Held]:
    """Return what the queues of topics hold in the end."""
    return asyncio.run(read_to_end(group.address, topics, group="killed-again", within_s=_READ_S))


def _try_prepare(address: str, *, has_types: bool) -> bool:
    """Create the topics, and the group that consumes in order; return whether that succeeded.

    `has_types`: whether topics have the type of their messages.
    """

    async def prepare() -> None:
        async with Admin(address) as admin:
            for topic, kind in ((TOPIC, "MIXED"), (ORDERED, "FIFO")):  # gRPC clients send no others
                of_type = {"+message.type": kind} if has_types else {}
                await admin.create_topic(topic, queues=QUEUES, broker_name=GROUP, attributes=of_type)
            policy = GroupRetryPolicy("EXPONENTIAL", ExponentialRetryPolicy(1_000, 10_000, 2))
            in_order = SubscriptionGroupConfig(ORDERED_READERS, consume_message_orderly=True, group_retry_policy=policy)
            await admin.create_group(in_order)

    try:
        asyncio.run(prepare())
    except TandemError:
        return False
    return True


def main(arguments: list[str] | None = None) -> int:
    """Run, judge, print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m chaos.kills", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--brokers", choices=[OURS, *SERVER_VERSIONS, NEWEST_VERSION], default=OURS)
    parser.add_argument("--role", choices=["ASYNC_MASTER", "SYNC_MASTER", ELECT], default="SYNC_MASTER")
    parser.add_argument("--clients", choices=[OURS, *other_clients.NAMES], default=OURS)
    parser.add_argument(
        "--faults", metavar="KIND", type=_kinds, default=(), help=f"kinds, with `,` between: {', '.join(KINDS)}"
    )
    parser.add_argument("--seed", type=int, default=1, help="draws the faults")
    parser.add_argument("--seconds", type=float, default=60.0, help="of faults")
    parser.add_argument("--down", type=float, default=4.0, help="longest duration of a fault, seconds")
    parser.add_argument("--gap", type=float, default=-1.0, help="seconds before each fault; default: by the clients")
    parser.add_argument("--reports", type=Path, default=Path("build/chaos"), help="where the JSON report goes")
    parser.add_argument("--history", type=Path, metavar="FILE", help="default: among the stores and logs")
    parser.add_argument("--keep", action="store_true", help="keep stores and logs")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    args = parser.parse_args(arguments)
    if args.role == ELECT and args.brokers != OURS:
        parser.error("--role elect is of TandemQ's brokers: add --brokers ours")
    if wrong := sorted(set(args.faults) - set(kinds_of(args.role))):
        parser.error(f"--role {args.role} has no faults {', '.join(wrong)}: choose of {', '.join(kinds_of(args.role))}")
    if "kill-proxy" in args.faults and args.clients not in LANGUAGES:
        parser.error(f"--clients {args.clients} does not use a gRPC proxy: leave out kill-proxy")
    plan = Plan(args.brokers, args.role, args.clients, args.seed, args.faults, args.seconds, args.down, args.gap)
    return _run_and_tell(plan, args)


def _kinds(text: str) -> tuple[str, ...]:
    found = tuple(word for word in text.split(",") if word)
    if wrong := sorted(set(found) - set(KINDS)):
        raise argparse.ArgumentTypeError(f"no faults {', '.join(wrong)}: choose of {', '.join(KINDS)}")
    return found


def _run_and_tell(plan: Plan, args: argparse.Namespace) -> int:
    """Run, write the report, print it; return the exit code."""
    console = Console(highlight=False, stderr=args.json)
    args.reports.mkdir(parents=True, exist_ok=True)
    stem = f"kills-{plan.clients}-{plan.brokers}-{plan.role}-{plan.seed}"
    directory = Path(tempfile.mkdtemp(prefix="tandemq-kills-"))
    history = args.history or directory / HISTORY
    history.parent.mkdir(parents=True, exist_ok=True)
    code = 0
    try:
        report = run(plan, directory, history)
    except (PeerError, TimeoutError, TandemError) as error:
        code = EXIT_FAILED
        report = {**_planned(plan), "violations": [f"I14: the run failed: {error}"]}
    (args.reports / f"{stem}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if args.json:
        sys.stdout.write(json.dumps(report) + "\n")
    shown = {key: report.get(key) for key in ("acknowledged", "failed", "delivered", "duplicates", "rewinds")}
    console.print(f"{stem}: {report.get('fault_counts')} {shown}", markup=False)
    for text in report["violations"]:
        console.print(f"     {text}", style="red", markup=False)
    if report["violations"] and history.exists():
        shutil.copyfile(history, args.reports / f"{stem}.history.jsonl")
    if report["violations"] or args.keep:
        console.print(f"its stores and logs are in {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return code or (EXIT_VIOLATION if report["violations"] else 0)


if __name__ == "__main__":
    sys.exit(main())
