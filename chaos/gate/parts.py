"""Parts of the gate: a command each, and how to read what it wrote.

A part whose `share` is 0 runs once, and first; the others share the time that is left, piece by piece.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from chaos.gate.pieces import Piece, Violation
from chaos.other_clients import NAMES

SEEDS, RUNS = 100, 6
"""Seeds and runs of one piece."""
FIXED_SEEDS = SEEDS - SEEDS // 4 - SEEDS // 8
"""Seeds of a piece with fixed roles; the others have a registry, or faults of storage, and numbers of their own."""
SEED_BEGIN = 300_000
"""First seed of the first night; later ones go on where the last one ended."""
AT_ONCE = ((), ("--at-once", "2"), ("--at-once", "3"), ("--beyond",))
"""Faults at once of the pieces with real processes, in turn."""
CLIENT_SECONDS = 60
FAST_SESSION_MS = 500
FAILOVER_ROUNDS = 20
STEADY_MINUTES = 60
OF_REQUESTS = {
    "END_TRANSACTION": "transactions",
    "RECALL_MESSAGE": "timers",
    "POP_MESSAGE": "POP",
    "UPDATE_AND_CREATE_STATIC_TOPIC": "static topics",
    "AUTH_CREATE_USER": "access control",
    "TANDEM_SET_QUOTAS": "limits",
}
"""Feature of a seed by a request that only it sends."""
_TOLD = 300
_COUNTS = re.compile(r"(\d+) (passed|failed|errors?)\b")


class Part(NamedTuple):
    """One part. `command` gets the first seed and the directory for what is written; `read` fills the piece.

    `step`: the next piece begins so many seeds later.
    """

    name: str
    title: str
    share: float
    command: Callable[[int, Path], list[str]]
    read: Callable[[Piece, Path, subprocess.CompletedProcess[str]], None]
    step: int = 0


def _python(*words: object) -> list[str]:
    return [sys.executable, *map(str, words)]


def _jobs() -> int:
    return len(os.sched_getaffinity(0))


def _pytest(*words: str) -> list[str]:
    return _python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=0", *words)


# Simulation.


def _simulate(first: int, directory: Path) -> list[str]:
    results = directory / "seeds.jsonl"
    return _python(
        "-m", "lab.sim", "--first", first, "--seeds", SEEDS, "--jobs", _jobs(), "--json", "--results", results
    )


def read_seeds(piece: Piece, directory: Path, _done: subprocess.CompletedProcess[str]) -> None:
    """Count the seeds of a simulation."""
    for line in (directory / "seeds.jsonl").read_text(encoding="utf-8").splitlines():
        seed = json.loads(line)
        features = [feature for request, feature in OF_REQUESTS.items() if seed["requests"].get(request)]
        piece.add_run(seed["faults"], features, is_bad=bool(seed["rule"]))
        if seed["rule"]:
            text = f"{seed['rule']} {seed['text']}"
            piece.violations.append(Violation(f"python -m lab.sim --seed {seed['seed']}", text[:_TOLD]))


# Real processes.


def _chaos(first: int, directory: Path) -> list[str]:
    return _python("-m", "chaos.run", "--seed", first, "--runs", RUNS, "--reports", directory, *_chaos_words(first))


def _chaos_words(first: int) -> tuple[str, ...]:
    """Return how many faults there are at once in the runs of a piece."""
    return AT_ONCE[first // RUNS % len(AT_ONCE)]


def read_runs(piece: Piece, directory: Path, _done: subprocess.CompletedProcess[str]) -> None:
    """Count the runs with real processes."""
    for report in _reports(directory):
        words = ("python -m chaos.run --runs 1 --seed", str(report["seed"]), *_chaos_words(piece.first))
        _add_report(piece, report, _features(report), " ".join(words))


def _features(report: dict[str, Any]) -> list[str]:
    found = ["transactions", "timers", "POP", "gRPC", "SQL"]
    found += ["static topics"] * ("static" in report) + ["shards"] * (report.get("shard") is not None)
    return found + ["slave reads"] * bool(report.get("slaveReads"))


def _reports(directory: Path) -> Iterable[dict[str, Any]]:
    for path in sorted(directory.glob("*.json")):
        yield json.loads(path.read_text(encoding="utf-8"))


def _add_report(piece: Piece, report: dict[str, Any], features: Iterable[str], command: str) -> None:
    faults = Counter(str(fault["fault"]) for fault in report.get("faults", ()))
    piece.add_run(faults, features, is_bad=bool(report["violations"]))
    piece.figures["SEND_OK"] = piece.figures.get("SEND_OK", 0) + report.get("acknowledged", 0)
    for text in report["violations"][:1]:
        piece.violations.append(Violation(command, text[:_TOLD]))


# Clients of others.


def _clients(first: int, directory: Path) -> list[str]:
    return _python(*_client_words(first), "--seconds", CLIENT_SECONDS, "--reports", directory)


def _client_words(seed: int) -> list[str]:
    return ["-m", "chaos.kills", "--role", "elect", "--clients", NAMES[seed % len(NAMES)], "--seed", str(seed)]


def read_clients(piece: Piece, directory: Path, done: subprocess.CompletedProcess[str]) -> None:
    """Count a run with a client of RocketMQ."""
    reports = list(_reports(directory))
    client = NAMES[piece.first % len(NAMES)]
    command = " ".join(["python", *_client_words(piece.first)])
    for report in reports:
        _add_report(piece, report, [f"client {client}"], command)
    if not reports:
        piece.runs += 1
        piece.violations.append(Violation(command, f"the run failed: {done.stderr[-_TOLD:]}"))


# Versions, planted faults.


def read_tests(piece: Piece, _directory: Path, done: subprocess.CompletedProcess[str]) -> None:
    """Count tests, by the last line; others may have numbers of what failed."""
    last = done.stdout.rstrip().rpartition("\n")[2]
    counts = {word.rstrip("s"): int(number) for number, word in _COUNTS.findall(last)}
    piece.runs = sum(counts.values())
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - (.*))?$", done.stdout, re.MULTILINE)
    piece.violations += [Violation(f"python -m pytest '{test}'", text[:_TOLD]) for test, text in failed]
    if done.returncode and not failed:
        piece.violations.append(Violation(" ".join(done.args), f"exit code {done.returncode}: {done.stdout[-_TOLD:]}"))


# Times.


def _failover(registry: str) -> Callable[[int, Path], list[str]]:
    def command(_first: int, directory: Path) -> list[str]:
        words = ["-m", "bench.modes", "--only", "kills", "--mode", "elect", "--registry", registry]
        return _python(
            *words, "--session", FAST_SESSION_MS, "--rounds", FAILOVER_ROUNDS, "--results", directory / "modes.json"
        )

    return command


def read_failover(piece: Piece, directory: Path, done: subprocess.CompletedProcess[str]) -> None:
    """Note the times without reads and writes."""
    rows = [
        row for found in json.loads((directory / "modes.json").read_text(encoding="utf-8")).values() for row in found
    ]
    piece.runs = len(rows)
    for what in ("read", "write"):
        values = sorted(row[what] for row in rows)
        if values:
            piece.figures |= {f"{what}, p50": values[len(values) // 2], f"{what}, slowest": values[-1]}
    failed = sum(row["failed"] for row in rows)
    if done.returncode or failed:
        text = f"{failed} sends failed; exit code {done.returncode}: {done.stdout[-_TOLD:]}"
        piece.violations.append(Violation(" ".join(done.args), text))


def _steady(_first: int, _directory: Path) -> list[str]:
    return _python("-m", "bench.steady", "--minutes", STEADY_MINUTES, "--json")


def read_steady(piece: Piece, _directory: Path, done: subprocess.CompletedProcess[str]) -> None:
    """Note failovers without a kill."""
    groups = json.loads(done.stdout or "[]")
    piece.runs = len(groups)
    for group in groups:
        piece.figures[f"failovers, session of {group['session_ms']} ms"] = group["failovers"]
        piece.figures[f"longest gap, session of {group['session_ms']} ms"] = round(group["gap"], 2)
    if done.returncode:
        text = f"exit code {done.returncode}: {done.stdout}{done.stderr[-_TOLD:]}"
        piece.violations.append(Violation(" ".join(done.args), text[:_TOLD]))


PLANTED = ("tests/mutations", "tests/judge", "tests/chaos")
PARTS = (
    Part("planted", "planted faults, each found by its rule", 0, lambda *_: _pytest(*PLANTED), read_tests),
    Part("versions", "upgrade and downgrade, mixed members", 0, lambda *_: _pytest("tests/versions"), read_tests),
    Part("failover", "kills of a master, name server's registry", 0, _failover("namesrv"), read_failover),
    Part("failover-zookeeper", "kills of a master, ZooKeeper", 0, _failover("zookeeper"), read_failover),
    Part("steady", "no kill, 80 % of all cores busy", 0, _steady, read_steady),
    Part("simulation", "simulated clusters", 0.4, _simulate, read_seeds, FIXED_SEEDS),
    Part("processes", "real processes", 0.4, _chaos, read_runs, RUNS),
    Part("clients", "clients of RocketMQ", 0.2, _clients, read_clients, 1),
)
