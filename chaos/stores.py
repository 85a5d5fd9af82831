"""The stores of a group whose brokers have stopped: I8 twins are the same bytes, I9 I10 each is what its log gives.

Asked of the tools an operator has: `tandemq log verify --derived` and `tandemq log dump`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.history import Stored
from tandemq.errors import LocalError

EXIT_FAULTS = 3
_SECONDS = 600.0
_PIECE_BYTES = 1 << 20
_SHOWN = 3
_TOLD_CHARS = 500


@dataclass(frozen=True, slots=True)
class Extent:
    """The log of a store, `[start, end)`, in files of `size` bytes."""

    store: Path
    start: int
    end: int
    size: int

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of one file."""
        start = offset - (offset - self.start) % self.size
        with (self.store / "commitlog" / f"{start:020}").open("rb") as file:
            file.seek(offset - start)
            return file.read(min(size, start + self.size - offset))


def check(stores: Sequence[Path]) -> tuple[list[str], dict[str, Any]]:
    """Verify each, compare all with the first; violations, and figures for the report.

    Raises:
        LocalError: a store cannot be read.
    """
    found: list[str] = []
    extents: list[Extent] = []
    figures: dict[str, Any] = {}
    for store in stores:
        told = _tool("verify", store, "--derived")
        figures[store.name] = {key: told[key] for key in ("records", "bytes", "queueEntries", "indexEntries")}
        found += faults_of(store.name, told)
        extents.append(extent_of(store, told))
    for twin in extents[1:]:
        found += differences(extents[0], twin)
    return found, figures


def faults_of(name: str, told: dict[str, Any]) -> list[str]:
    """What `tandemq log verify --derived --json` says is wrong."""
    damages = [(d["start"], d["reason"]) for report in told["reports"] for d in report["damages"]]
    found = []
    if damages:
        found.append(f"I10: the log of {name} holds {len(damages)} damages, first {damages[:_SHOWN]}")
    if told["records"] and not told["indexEntries"]:
        found.append(f"I9: the index of {name} holds nothing that could be checked: {told['notes']}")
    if told["derivedFaults"] or told["notYetEntered"]:
        first = [(finding["where"], finding["log_offset"], finding["reason"]) for finding in told["derived"][:_SHOWN]]
        found.append(
            f"I9: queues and index of {name}: {told['derivedFaults']} faults, {told['notYetEntered']} records not"
            f" entered after a clean stop, first {first}"
        )
    return found


def extent_of(store: Path, told: dict[str, Any]) -> Extent:
    """Where a log begins and ends, by the same answer."""
    reports = told["reports"]
    end = max(report["start"] + report["bytes"] for report in reports)
    return Extent(store, reports[0]["start"], end, Path(reports[0]["file"]).stat().st_size)


def differences(one: Extent, other: Extent) -> list[str]:
    """Violations of I8: the range both hold must be the same bytes, and both must end at the same place."""
    names = f"{one.store.name} and {other.store.name}"
    found = []
    if one.end != other.end:
        found.append(f"I8: the logs of {names} were in sync and end at {one.end} and {other.end}")
    position, end = max(one.start, other.start), min(one.end, other.end)
    while position < end:
        size = min(_PIECE_BYTES, end - position)
        mine, theirs = one.read(position, size), other.read(position, size)
        length = min(len(mine), len(theirs))
        if mine[:length] != theirs[:length] or not length:
            at = next((i for i in range(length) if mine[i] != theirs[i]), length)
            return [*found, f"I8: the logs of {names} differ at log offset {position + at}"]
        position += length
    return found


def records(store: Path, topic: str) -> Iterator[Stored]:
    """What the log holds of a topic, in its order."""
    for line in _run("dump", store, "--topic", topic, "--count", "0").splitlines():
        row = json.loads(line)
        body = row["body"] if "body" in row else bytes.fromhex(row["bodyHex"]).decode(errors="replace")
        yield Stored((row["queue"], row["offset"]), body, row["tag"], " ".join(row["keys"]), row["id"])


def _tool(verb: str, store: Path, *options: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(_run(verb, store, *options))
    return told


def _run(verb: str, store: Path, *options: str) -> bytes:
    command = [sys.executable, "-m", "tandemq", "log", verb, str(store), *options, "--json"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=_SECONDS)  # noqa: S603  # our own program
    if done.returncode not in (0, EXIT_FAULTS):
        told = done.stderr.decode(errors="replace")[-_TOLD_CHARS:].strip()
        raise LocalError(f"tandemq log {verb} {store} ended with {done.returncode}: {told}")
    return done.stdout
