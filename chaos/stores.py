"""Stores of a group whose brokers have stopped: I8 replicas are identical, I9 I10 each store matches its log.

Checked with an operator's tools: `tandemq log verify --derived` and `tandemq log dump`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.history import Place, Stored
from tandemq.errors import LocalError

EXIT_FAULTS = 3
_SECONDS = 600.0
_PIECE_BYTES = 1 << 20
_SHOWN = 3
_KEY_MISSING = "a key of the record is missing"
_ERROR_CHARS = 500


@dataclass(frozen=True, slots=True)
class Extent:
    """The log of a store, `[start, end)`, in files of `size` bytes."""

    store: Path
    start: int
    end: int
    size: int

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of one file."""
        start = offset - (offset - self.start) % self.size
        with (self.store / "commitlog" / f"{start:020}").open("rb") as file:
            file.seek(offset - start)
            return file.read(min(size, start + self.size - offset))


def check(stores: Sequence[Path], *, may_lack_keys: bool = False) -> tuple[list[str], dict[str, Any]]:
    """Verify each store and compare all with the first; return violations, and figures for the report.

    `may_lack_keys`: whether the index may lack keys of records whose damage was repaired after a start.

    Raises:
        LocalError: a store cannot be read.
    """
    found: list[str] = []
    extents: list[Extent] = []
    figures: dict[str, Any] = {}
    for store in stores:
        output = _tool("verify", store, "--derived")
        figures[store.name] = {key: output[key] for key in ("records", "bytes", "queueEntries", "indexEntries")}
        found += faults_of(store.name, without_lacking_keys(output) if may_lack_keys else output)
        extents.append(extent_of(store, output))
    for other in extents[1:]:
        found += differences(extents[0], other)
    return found, figures


def without_lacking_keys(output: dict[str, Any]) -> dict[str, Any]:
    """Return such an output without keys that the index lacks, if it lists all faults."""
    kept = [finding for finding in output["derived"] if finding["reason"] != _KEY_MISSING]
    lacking = len(output["derived"]) - len(kept)
    return output | {"derived": kept, "derivedFaults": output["derivedFaults"] - lacking}


def faults_of(name: str, output: dict[str, Any]) -> list[str]:
    """Return the faults in the output of `tandemq log verify --derived --json`."""
    damages = [(d["start"], d["reason"]) for report in output["reports"] for d in report["damages"]]
    found = []
    if damages:
        found.append(f"I10: the log of {name} holds {len(damages)} damages, first {damages[:_SHOWN]}")
    if output["records"] and not output["indexEntries"]:
        found.append(f"I9: the index of {name} holds nothing that could be checked: {output['notes']}")
    if output["derivedFaults"] or output["notYetEntered"]:
        first = [(finding["where"], finding["log_offset"], finding["reason"]) for finding in output["derived"][:_SHOWN]]
        found.append(
            f"I9: queues and index of {name}: {output['derivedFaults']} faults, {output['notYetEntered']} records not"
            f" entered after a clean stop, first {first}"
        )
    return found


def extent_of(store: Path, output: dict[str, Any]) -> Extent:
    """Return the extent of a log from the same output."""
    reports = output["reports"]
    end = max(report["start"] + report["bytes"] for report in reports)
    return Extent(store, reports[0]["start"], end, Path(reports[0]["file"]).stat().st_size)


def differences(one: Extent, other: Extent) -> list[str]:
    """Return violations of I8: the common range must have the same bytes, and both logs the same end."""
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


def has_log(store: Path) -> bool:
    """Return whether a store has log files; without messages it has none."""
    return any((store / "commitlog").glob("[0-9]*"))


def records(store: Path, topic: str) -> Iterator[Stored]:
    """Yield the records of a topic in the log, in order."""
    for line in _run("dump", store, "--topic", topic, "--count", "0").splitlines():
        row = json.loads(line)
        body = row["body"] if "body" in row else bytes.fromhex(row["bodyHex"]).decode(errors="replace")
        place, keys = Place(row["queue"], row["offset"]), " ".join(row["keys"])
        yield Stored(place, body, row["tag"], keys, row["id"], row["logOffset"], row["properties"])


def _tool(verb: str, store: Path, *options: str) -> dict[str, Any]:
    output: dict[str, Any] = json.loads(_run(verb, store, *options))
    return output


def _run(verb: str, store: Path, *options: str) -> bytes:
    command = [sys.executable, "-m", "tandemq", "log", verb, str(store), *options, "--json"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_SECONDS)  # noqa: S603  # our own program
    except subprocess.TimeoutExpired as error:
        raise LocalError(f"tandemq log {verb} {store} did not end within {_SECONDS:g} s") from error
    if done.returncode not in (0, EXIT_FAULTS):
        output = done.stderr.decode(errors="replace")[-_ERROR_CHARS:].strip()
        raise LocalError(f"tandemq log {verb} {store} ended with {done.returncode}: {output}")
    return done.stdout
