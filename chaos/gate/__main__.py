"""`python -m chaos.gate`: run the release gate, or write the page of its results.

    python -m chaos.gate run                              a night: everything once, then faults until 8 hours are over
    python -m chaos.gate run --only simulation --hours 1  a piece of it; the results are kept together
    python -m chaos.gate note 'python -m lab.sim --seed 7' 'mended: …'
    python -m chaos.gate report                           the page and the README's table

Results: chaos/gate/results.jsonl, a line per piece, kept with the page. Exit code of `run` and `report`: 3 if there is
a violation without a note, 130 if `run` was interrupted.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from chaos.gate.page import write_pages
from chaos.gate.parts import PARTS, SEED_BEGIN, Part
from chaos.gate.pieces import Piece, append_piece, read_pieces, write_pieces

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_name("results.jsonl")
EXIT_VIOLATION, EXIT_INTERRUPTED = 3, 130
_NAMES = [part.name for part in PARTS]


def run_gate(parts: Sequence[Part], seconds: float, results: Path, console: Console) -> None:
    """Run the parts that run once, then pieces of the others, one at least, until the time is over.

    Each piece is added to the results.
    """
    until = time.monotonic() + seconds
    for part in parts:
        if not part.share:
            _run_piece(part, results, console)
    shared = [part for part in parts if part.share]
    spent = {part.name: 0.0 for part in shared}
    while shared:
        part = min(shared, key=lambda part: spent[part.name] / part.share)
        spent[part.name] += _run_piece(part, results, console).seconds
        if time.monotonic() >= until:
            break


def _run_piece(part: Part, results: Path, console: Console) -> Piece:
    """Run a part once; what it wrote is kept if it found something."""
    first = max((one.first + part.step for one in read_pieces(results) if one.part == part.name), default=SEED_BEGIN)
    piece = Piece(part.name, datetime.now(UTC).isoformat(timespec="seconds"), _commit(), first=first)
    directory = Path(tempfile.mkdtemp(prefix=f"tandemq-gate-{part.name}-"))
    command = part.command(first, directory)
    console.print(f"{piece.begun} {part.name}: {' '.join(command[1:])}")
    begun = time.monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except KeyboardInterrupt:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    piece.seconds = round(time.monotonic() - begun, 1)
    part.read(piece, directory, done)
    append_piece(results, piece)
    for violation in piece.violations:
        console.print(f"    {violation.run}: {violation.text}", style="red")
    console.print(f"    {piece.runs} runs in {piece.seconds:.0f} s, {len(piece.violations)} violations")
    if piece.violations:
        (directory / "output.txt").write_text(f"{done.stdout}\n{done.stderr}", encoding="utf-8")
        console.print(f"    what it wrote is in {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return piece


def _commit() -> str:
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def note(results: Path, run: str, text: str) -> int:
    """Say what became of the violations of a run; return how many there are."""
    pieces = read_pieces(results)
    found = [violation for piece in pieces for violation in piece.violations if violation.run == run]
    for violation in found:
        violation.note = text
    write_pieces(results, pieces)
    return len(found)


def main(arguments: list[str] | None = None) -> int:
    """Run and report; return the exit code."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m chaos.gate", description=__doc__, formatter_class=form)
    parser.add_argument("--results", type=Path, default=RESULTS, help="default: chaos/gate/results.jsonl")
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="run parts of the gate")
    runs.add_argument("--hours", type=float, default=8.0, help="until then pieces of the longer parts begin")
    runs.add_argument("--only", metavar="PART", nargs="+", choices=_NAMES, default=_NAMES, help=", ".join(_NAMES))
    notes = commands.add_parser("note", help="say what became of a violation")
    notes.add_argument("run", help="the command that repeats it, as printed")
    notes.add_argument("text")
    commands.add_parser("report", help="write the page and the README's table")
    args = parser.parse_args(arguments)
    console = Console(width=140, highlight=False, markup=False)  # names of tests have brackets
    if args.command == "note":
        if not note(args.results, args.run, args.text):
            parser.error(f"{args.results} has no violation of the run {args.run!r}")
        return 0
    if args.command == "run":
        try:
            run_gate([part for part in PARTS if part.name in args.only], args.hours * 3_600, args.results, console)
        except KeyboardInterrupt:
            console.print("interrupted: the piece that was under way does not count")
            return EXIT_INTERRUPTED
    pieces = read_pieces(args.results)
    if not pieces:
        parser.error(f"{args.results} has no results: python -m chaos.gate run")
    if args.command == "report":
        console.print(f"written: {', '.join(write_pages(pieces, ROOT))}")
    open_violations = [one for piece in pieces for one in piece.violations if not one.note]
    for one in open_violations:
        console.print(f"not named: {one.run}: {one.text}", style="red")
    return EXIT_VIOLATION if open_violations else 0


if __name__ == "__main__":
    sys.exit(main())
