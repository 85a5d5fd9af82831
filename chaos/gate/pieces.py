"""Pieces of the gate: each is what one run of a part found, and a line of the results.

Source: docs/internals/chaos.md, "The release gate".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self


@dataclass(slots=True)
class FaultCount:
    """How often a fault was injected. `features`: feature to the number of those runs in which it was in use."""

    runs: int = 0
    times: int = 0
    violations: int = 0
    features: dict[str, int] = field(default_factory=dict)

    def add(self, other: FaultCount) -> None:
        """Add the counts of other runs."""
        self.runs += other.runs
        self.times += other.times
        self.violations += other.violations
        for name, count in other.features.items():
            self.features[name] = self.features.get(name, 0) + count


@dataclass(slots=True)
class Violation:
    """What was found. `run`: the command that repeats the run; `note`: what became of it."""

    run: str
    text: str
    note: str = ""


@dataclass(slots=True)
class Piece:
    """What one run of a part found.

    Attributes:
        part: name of the part.
        begun: calendar time in UTC, ISO 8601.
        commit: of the tree.
        seconds: how long it took.
        first: its first seed.
        runs: number of seeds, tests or rounds.
        faults: by name.
        figures: further facts by name: counts, seconds.
    """

    part: str
    begun: str
    commit: str
    seconds: float = 0.0
    first: int = 0
    runs: int = 0
    faults: dict[str, FaultCount] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    def add_run(self, faults: Mapping[str, int], features: Iterable[str], *, is_bad: bool) -> None:
        """Count one run with its faults."""
        self.runs += 1
        in_use = dict.fromkeys(features, 1)
        for name, times in faults.items():
            self.faults.setdefault(name, FaultCount()).add(FaultCount(1, times, int(is_bad), in_use))

    def to_json(self) -> str:
        """Return the piece as a line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Return the piece of a line."""
        found: dict[str, Any] = json.loads(line)
        found["faults"] = {name: FaultCount(**counts) for name, counts in found["faults"].items()}
        found["violations"] = [Violation(**one) for one in found["violations"]]
        return cls(**found)


def read_pieces(path: Path) -> list[Piece]:
    """Return the pieces of a file; none if it does not exist."""
    if not path.exists():
        return []
    return [Piece.from_json(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_pieces(path: Path, pieces: Iterable[Piece]) -> None:
    """Replace the pieces of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{piece.to_json()}\n" for piece in pieces), encoding="utf-8")


def append_piece(path: Path, piece: Piece) -> None:
    """Add a piece to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{piece.to_json()}\n")
