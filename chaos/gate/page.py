"""The page of the gate, and its table in the README."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from chaos.gate.parts import PARTS
from chaos.gate.pieces import FaultCount, Piece

PAGE = "docs/internals/release-gate.md"
README = "README.md"
SECTION = "### Under faults\n"
"""Heading of the section of the README that is written here, up to the next one."""
_TITLES = {part.name: part.title for part in PARTS}
_WHERE = {"simulation": "simulated", "processes": "real", "clients": "clients"}
_IN_README = ("simulation", "processes", "clients", "versions", "planted")
_README_TEXT = (
    "The last [release gate](docs/internals/release-gate.md). The judge of real processes knows only what clients saw."
)
_HEAD = """# Release gate

What `make release-gate` has shown for this version; written by `python -m chaos.gate report`. A release needs a night
of it without a violation that is not explained here. Faults and rules: [simulation](simulation.md),
[chaos](chaos.md), [histories](histories.md).
"""


def write_pages(pieces: Sequence[Piece], root: Path) -> list[str]:
    """Write the page, and a section of the README; return their names.

    Raises:
        ValueError: the README has no such section.
    """
    readme = root / README
    head, found, rest = readme.read_text(encoding="utf-8").partition(SECTION)
    if not found:
        raise ValueError(f"{README} lacks the section {SECTION.strip()}")
    text = "\n".join((SECTION, _README_TEXT, "", table_of_parts(pieces, _IN_README), "", rest[rest.index("## ") :]))
    (root / PAGE).write_text(page_of(pieces), encoding="utf-8")
    readme.write_text(head + text, encoding="utf-8")
    return [PAGE, README]


def page_of(pieces: Sequence[Piece]) -> str:
    """Return the page."""
    sections = [_HEAD, f"## Parts\n\n{table_of_parts(pieces)}\n\n{_when(pieces)}\n"]
    sections.append(f"## Times\n\n{_table_of_figures(pieces)}\n")
    sections.append(f"## Faults\n\n{_FAULTS_TEXT}\n\n{_table_of_faults(pieces)}\n")
    sections.append(f"## Violations\n\n{_table_of_violations(pieces)}\n")
    return "\n".join(sections)


_FAULTS_TEXT = """*In use* are the features that clients used in runs with this fault, with their number of runs.
A run with a violation counts for all of its faults."""


def table_of_parts(pieces: Sequence[Piece], names: Iterable[str] = tuple(_TITLES)) -> str:
    """Return a row for each of these parts that has run."""
    rows = []
    for name in names:
        title, of_part = _TITLES[name], [piece for piece in pieces if piece.part == name]
        if of_part:
            times = sum(count.times for piece in of_part for count in piece.faults.values())
            violations = [one for piece in of_part for one in piece.violations]
            named = sum(bool(one.note) for one in violations)
            found = f"{len(violations)}" + f", {named} explained" * bool(violations)
            hours = sum(piece.seconds for piece in of_part) / 3600
            runs = sum(piece.runs for piece in of_part)
            rows.append((title, f"{runs:,}", f"{times:,}" if times else "", f"{hours:.1f}", found))
    return _table(("What", "Runs", "Faults", "Hours", "Violations"), rows)


def _when(pieces: Sequence[Piece]) -> str:
    commits = list(dict.fromkeys(piece.commit for piece in pieces))
    first, last = min(piece.begun for piece in pieces), max(piece.begun for piece in pieces)
    seconds = sum(piece.seconds for piece in pieces)
    return (
        f"{len(pieces)} pieces, begun between {first} and {last}, {seconds / 3600:.1f} hours in all, "
        f"of the commits {', '.join(commits)}."
    )


def _table_of_figures(pieces: Sequence[Piece]) -> str:
    rows = [
        (_TITLES[piece.part], name, f"{value:.2f}" if value % 1 else f"{value:.0f}")
        for piece in pieces
        if piece.part not in _WHERE
        for name, value in piece.figures.items()
    ]
    return _table(("What", "Figure", "s, or number"), rows)


def _table_of_faults(pieces: Iterable[Piece]) -> str:
    sums: dict[tuple[str, str], FaultCount] = {}
    for piece in pieces:
        for fault, count in piece.faults.items():
            sums.setdefault((_WHERE.get(piece.part, piece.part), fault), FaultCount()).add(count)
    rows = [
        (fault, where, f"{count.runs:,}", f"{count.times:,}", _features(count), str(count.violations))
        for (where, fault), count in sorted(sums.items(), key=lambda item: (item[0][1], item[0][0]))
    ]
    return _table(("Fault", "Clusters", "Runs", "Times", "In use", "Runs with a violation"), rows)


def _features(count: FaultCount) -> str:
    return ", ".join(f"{name} {runs:,}" for name, runs in sorted(count.features.items()))


def _table_of_violations(pieces: Iterable[Piece]) -> str:
    rows = [
        (f"`{one.run}` at {piece.commit}", " ".join(one.text.split()), one.note or "**open**")
        for piece in pieces
        for one in piece.violations
    ]
    return _table(("Run", "Found", "What became of it"), rows) if rows else "None."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
