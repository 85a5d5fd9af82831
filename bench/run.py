"""`make bench`: measure the chosen cells on the chosen servers, print the table, write results and plot.

    python -m bench.run                              the default cells, within 50 minutes
    python -m bench.run --only live --only pair      sessions, cells, or patterns of cells
    python -m bench.run --only 'send/*/varied/1024q/16x32'
    python -m bench.run --list                       the names of all cells, and how long the default ones take
    python -m bench.run --servers ours,4.9.7         without 5.3.3 and NATS JetStream
    python -m bench.run --quick                      a few seconds per cell: to try the benchmark, not for figures

Exit code 1 if a cell could not be measured. A missed target is a fact, not a failure: it shows in the table.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import estimate, nats
from bench.cells import CELLS, DEFAULT, JAVA, NATS, SERVER_NAMES, SERVERS, SESSIONS, Cell, Session, chosen
from bench.clients import EXAMPLE_VERSION
from bench.generator import ceilings
from bench.loads import LoadFailed
from bench.plot import write_svg
from bench.report import (
    Row,
    generator_notes,
    machine,
    nats_lines,
    rows,
    summary,
    sync_cost_line,
    sync_costs,
    table,
    write_json,
    write_markdown,
)
from bench.sessions import measure
from bench.setting import QUICK, Bench, Figure, Pace
from tandemq.load import LoadError
from tests.interop.java import REPOSITORY, JavaJars, PeerError

_RESULTS = REPOSITORY / "bench" / "results" / "latest.json"
_PLOT = REPOSITORY / "docs" / "bench.svg"
_STORES = REPOSITORY / "build" / "bench"
_FAILURES = (LoadFailed, LoadError, PeerError, TimeoutError, OSError)


def main(arguments: list[str] | None = None) -> int:
    """Measure and report; return the exit code."""
    args = _parser().parse_args(arguments)
    console = Console(width=max(120, Console().width))
    try:
        cells = chosen(args.only)
        servers = _servers(args.servers)
    except ValueError as error:
        console.print(f"bench: {error}", style="red", highlight=False)
        return 2
    if args.list:
        console.print("\n".join(cell.name for cell in (cells if args.only else CELLS)), highlight=False)
        _print_estimate(console, cells, servers, QUICK if args.quick else Pace(), args.rounds)
        return 0
    for version in JAVA:
        if version in servers:
            JavaJars.resolve("server", version)
    if any(cell.session == "java" for cell in cells):
        JavaJars.resolve("example", EXAMPLE_VERSION)
    missing = _nats_problem() if NATS in servers and any(cell.is_measured_on(NATS) for cell in cells) else ""
    if missing:
        servers.remove(NATS)
    started = time.perf_counter()
    runner = _Runner(cells, servers, QUICK if args.quick else Pace(), args.directory, console)
    runner.run(args.rounds)
    lines = rows(cells, runner.figures)
    console.print(table(lines, servers))
    for line in summary(lines):
        console.print(line, highlight=False, soft_wrap=True)
    for cost in sync_costs(lines):
        console.print(sync_cost_line(cost), highlight=False, soft_wrap=True)
    for line in nats_lines(lines, runner.figures):
        console.print(line, highlight=False, soft_wrap=True)
    if missing:
        console.print(f"NATS JetStream is not measured: {missing}", highlight=False, soft_wrap=True)
    minutes = (time.perf_counter() - started) / 60
    shares = [f.detail["cpu_share"] for f in runner.figures if "cpu_share" in f.detail]
    if shares:
        text = f"The generator used {min(shares):.0%} to {max(shares):.0%} of a core; alone, 16x32, it does "
        alone = runner.ceilings["16x32"]
        text += f"{alone['messages_per_s']:,.0f} msg/s with {alone['cpu_share']:.0%}, at most {alone['limit']:,.0f}."
        console.print(text, highlight=False, soft_wrap=True)
    for note in generator_notes(runner.figures, runner.ceilings):
        console.print(f"Judge with care: {note}", highlight=False, soft_wrap=True)
    console.print(f"{minutes:.1f} minutes; details in {args.results}", highlight=False)
    _write(args, lines, runner, minutes, missing)
    for problem in runner.problems:
        console.print(problem, style="red", highlight=False)
    return 1 if runner.problems else 0


def _print_estimate(console: Console, cells: list[Cell], servers: list[str], pace: Pace, rounds: int) -> None:
    total = rounds * estimate.seconds(cells, servers, pace)
    what = "the default cells" if len(cells) == len(DEFAULT) else f"{len(cells)} cells"
    text = f"{what} on {', '.join(servers)}: {estimate.minutes_text(total)}; minutes by session: "
    parts = estimate.by_session(cells, servers, pace)
    text += ", ".join(f"{session} {rounds * value / 60:.1f}" for session, value in parts.items())
    console.print(text, highlight=False, soft_wrap=True)


def _nats_problem() -> str:
    """Return why NATS JetStream is not to be had; nothing if it is."""
    try:
        nats.executable()
    except PeerError as error:
        return str(error)
    return ""


def _write(args: argparse.Namespace, lines: list[Row], runner: _Runner, minutes: float, missing: str) -> None:
    facts: dict[str, Any] = {
        **machine(),
        "when": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "quick": args.quick,
        "rounds": args.rounds,
        "minutes": round(minutes, 1),
        "seconds_by_session": runner.seconds,
        "nats": missing or (nats.version() if NATS in runner.servers else "not chosen"),
        "problems": runner.problems,
        "generator_alone": runner.ceilings,
        "generator_notes": generator_notes(runner.figures, runner.ceilings),
    }
    write_json(args.results, lines, runner.figures, facts)
    write_markdown(args.results.with_suffix(".md"), lines, runner.servers)
    # The picture in the README is of a whole run, at full length.
    if not args.quick and len(lines) == len(DEFAULT) and not runner.problems:
        write_svg(args.plot, lines)


class _Runner:
    """Runs the sessions; the servers take turns."""

    def __init__(self, cells: list[Cell], servers: list[str], pace: Pace, directory: Path, console: Console) -> None:
        self.cells = cells
        self.servers = servers
        self.pace = pace
        self.directory = directory
        self.console = console
        self.figures: list[Figure] = []
        self.problems: list[str] = []
        self.seconds: dict[str, float] = {}
        """Time that each session took, by its name and its server's."""
        self.ceilings = ceilings()

    def run(self, rounds: int) -> None:
        for number in range(rounds):
            # The order changes from round to round, so that no server is always first.
            turn = number % len(self.servers)
            for session in SESSIONS:
                for server in self.servers[turn:] + self.servers[:turn]:
                    self.measure(session, server)

    def measure(self, session: Session, server: str) -> None:
        """Run one session on one server; a failed session does not end the run."""
        cells = [c for c in self.cells if c.session == session and c.is_measured_on(server)]
        if not cells:
            return
        name = SERVER_NAMES[server]
        with self.console.status(f"{name}: starting") as status:

            def say(what: str) -> None:
                status.update(f"{name}: {what}")

            started = time.perf_counter()
            try:
                for figure in measure(session, Bench(server, cells, self.directory, self.pace, say)):
                    self.figures.append(figure)
                    self.report(name, figure)
            except _FAILURES as error:
                self.problems.append(f"{name}, {session}: {error}")
                self.console.print(self.problems[-1], style="red", highlight=False)
            passed = round(time.perf_counter() - started, 1)
            self.seconds[f"{session}/{server}"] = round(self.seconds.get(f"{session}/{server}", 0.0) + passed, 1)

    def report(self, name: str, figure: Figure) -> None:
        cell = next(cell for cell in CELLS if cell.name == figure.cell)
        detail = figure.detail
        more = f"  generator {detail['cpu_share']:.0%}" if "cpu_share" in detail else ""
        more += f", server {detail['server_cpu']:.0%} of a core" if "server_cpu" in detail else ""
        more += f", others {detail['others_cpu']:.0%}" if detail.get("others_cpu", 0) > 0.1 else ""
        if refused := detail.get("refused"):
            more += f", refused {refused}"
        line = f"{name:14} {cell.title:52} {figure.value:>11,.6g} {cell.unit}{more}"
        self.console.print(line, highlight=False, soft_wrap=True)


def _servers(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in SERVERS:
            raise ValueError(f"no server is called {name!r}; there are {', '.join(SERVERS)}")
    return names or list(SERVERS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="CELL", help="a session, cell, or pattern; repeatable"
    )
    parser.add_argument("--list", action="store_true", help="print the names of cells")
    parser.add_argument("--servers", default=",".join(SERVERS), help="comma list of ours, 4.9.7, 5.3.3, nats")
    parser.add_argument("--quick", action="store_true", help="short runs, small stores")
    parser.add_argument("--rounds", type=int, default=1, help="repeat everything; the table shows medians")
    parser.add_argument("--directory", type=Path, default=_STORES, help="where stores are put and deleted")
    parser.add_argument("--results", type=Path, default=_RESULTS)
    parser.add_argument("--plot", type=Path, default=_PLOT)
    return parser


if __name__ == "__main__":
    sys.exit(main())
