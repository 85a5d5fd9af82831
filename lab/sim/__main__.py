"""`python -m lab.sim`: run clusters on a simulated network, disk and clock, one run per seed."""

import json
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import count, islice
from typing import IO

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from lab.sim.result import Result
from lab.sim.runner import RunSummary, run_many, run_one
from lab.sim.world.plan import GROUP_SEEDS, STORAGE_GROUP_SEEDS, STORAGE_SEEDS
from tandemq.model.codes import RequestCode, ResponseCode

EXIT_FAULTS = 3
EXIT_INTERRUPTED = 130
SEEDS_DEFAULT = 300
FAILURES_SHOWN = 20
REPORT_EVERY_S = 30.0
"""Interval of progress lines where the output is not a terminal."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seed", type=int, help="Run this seed only, and show its full log.")
@click.option(
    "--seeds", "count_wanted", type=click.IntRange(1), help=f"Number of seeds to run; default: {SEEDS_DEFAULT}."
)
@click.option("--first", type=int, default=1, show_default=True, help="First seed.")
@click.option("--jobs", "-j", type=click.IntRange(1), default=2, show_default=True, help="Number of worker processes.")
@click.option("--forever", is_flag=True, help="Run until a seed fails or the command is interrupted.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option(
    "--results",
    type=click.File("w", encoding="utf-8", lazy=False),
    help="Write the result of each seed to this file, a line of JSON each.",
)
@click.option(
    "--history",
    type=click.File("w", encoding="utf-8", lazy=False),
    help="With --seed: write its history for python -m judge to this file.",
)
def main(
    seed: int | None,
    count_wanted: int | None,
    first: int,
    jobs: int,
    forever: bool,
    as_json: bool,
    results: IO[str] | None,
    history: IO[str] | None,
) -> None:
    """Run clusters on a simulated network, disk and clock, inject faults, and check invariants.

    Exit code 0: no invariant was violated. 3: one was; the seed is printed, and `--seed N` repeats the run.
    With `--forever`, an interrupt prints the summary of the runs so far; else it ends with 130.
    """
    if history is not None and seed is None:
        raise click.UsageError("--history is of one seed: add --seed N")
    if results is not None and seed is not None:
        raise click.UsageError("--results is of many seeds; --seed N --json prints the result of one")
    total = None if forever else count_wanted or SEEDS_DEFAULT
    try:
        if seed is not None:
            _one(seed, history, as_json=as_json)
        else:
            _many(_noted(islice(_both_kinds(first), total), jobs, results), total, as_json=as_json)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None


def _both_kinds(first: int) -> Iterator[int]:
    """Yield seeds without end. Every fourth one runs groups with a registry, every eighth one has faults of storage; if
    the first one is of a kind, all are."""
    for number in count():
        eighth, kind = divmod(number, 8)
        if first >= GROUP_SEEDS:
            yield first + number
        elif number % 4 == 3:
            yield GROUP_SEEDS + first + number // 4
        elif kind == 5:
            yield (STORAGE_GROUP_SEEDS if eighth % 2 else STORAGE_SEEDS) + first + eighth
        else:
            yield first + number - number // 4 - eighth - (kind > 5)


def _one(seed: int, history: IO[str] | None, *, as_json: bool) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    began = time.monotonic()
    result = run_one(seed, history)
    if as_json:
        click.echo(json.dumps(asdict(result), indent=2))
    else:
        summary = RunSummary(real_s=time.monotonic() - began)
        summary.add(result)
        _show(summary)
    if result.rule:
        raise click.exceptions.Exit(EXIT_FAULTS)


def _noted(seeds: Iterable[int], jobs: int, file: IO[str] | None) -> Iterator[Result]:
    """Yield the results of the seeds; each was written to the file before."""
    for result in run_many(seeds, jobs):
        if file is not None:
            requests = {_request(code): number for code, number in sorted(result.requests.items())}
            print(json.dumps(asdict(result) | {"requests": requests}), file=file, flush=True)
        yield result


def _many(results: Iterable[Result], total: int | None, *, as_json: bool) -> None:
    summary = RunSummary()
    console = Console(stderr=True)
    began = time.monotonic()
    report_at = 0.0
    columns = TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, disable=as_json or not console.is_terminal) as progress:
        task = progress.add_task("", total=total)
        try:
            for result in results:
                summary.add(result)
                progress.advance(task)
                if not as_json and not console.is_terminal and time.monotonic() >= report_at:
                    report_at = time.monotonic() + REPORT_EVERY_S
                    console.print(f"{summary.seeds} seeds", highlight=False)
                if result.rule:
                    console.print(f"seed {result.seed}: {result.rule} {result.text[:400]}", markup=False)
                    if total is None:
                        break
        except KeyboardInterrupt:
            if total is not None:
                raise
    summary.real_s = time.monotonic() - began
    if as_json:
        click.echo(json.dumps(_as_json(summary), indent=2))
    else:
        _show(summary)
    if summary.failed:
        raise click.exceptions.Exit(EXIT_FAULTS)


def _as_json(summary: RunSummary) -> dict[str, object]:
    return {
        "seeds": summary.seeds,
        "digest": summary.digest,
        "sends": summary.sends,
        "deliveries": summary.given,
        "turns": summary.turns,
        "virtualSeconds": round(summary.virtual_s),
        "realSeconds": round(summary.real_s, 1),
        "delayedTwice": summary.duplicates,
        "levels": dict(sorted(summary.levels.items())),
        "faults": dict(sorted(summary.faults.items())),
        "requests": {_request(code): count for code, count in sorted(summary.requests.items())},
        "statuses": {_status(code): count for code, count in sorted(summary.statuses.items())},
        "failed": [{"seed": it.seed, "rule": it.rule, "text": it.text, "digest": it.digest} for it in summary.failed],
    }


def _request(code: int) -> str:
    return RequestCode(code).name if code in RequestCode._value2member_map_ else str(code)


def _status(code: int) -> str:
    return ResponseCode(code).name if code in ResponseCode._value2member_map_ else str(code)


def _show(summary: RunSummary) -> None:
    console = Console()
    console.print(
        f"{summary.seeds} seeds, {summary.virtual_s:,.0f} virtual seconds in {summary.real_s:,.0f} s, "
        f"{summary.sends:,} sends, "
        f"{summary.given:,} deliveries, {summary.turns:,} turns, digest {summary.digest}"
    )
    console.print(_counts("fault", dict(sorted(summary.faults.items()))))
    console.print(_counts("request", {_request(code): number for code, number in sorted(summary.requests.items())}))
    console.print(_counts("status", {_status(code): number for code, number in sorted(summary.statuses.items())}))
    console.print(_counts("level", dict(sorted(summary.levels.items()))))
    for result in summary.failed[:FAILURES_SHOWN]:
        console.print(_failure(result), markup=False)
    console.print("no invariant was violated" if not summary.failed else f"{len(summary.failed)} seeds failed")


def _failure(result: Result) -> str:
    return f"seed {result.seed}: {result.rule} {result.text}"


def _counts(what: str, numbers: dict[str, int]) -> Table:
    table = Table(what, "times", box=None, pad_edge=False)
    for name, number in numbers.items():
        table.add_row(name, f"{number:,}")
    return table


if __name__ == "__main__":
    main()
