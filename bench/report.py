"""The table on the terminal and latest.json."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.cells import JAVA, NATS, OURS, SERVER_NAMES, Cell
from bench.setting import Figure

_RATES = ("msg/s", "MB/s")
_SHOWN = 8
_NEAR = 0.7
"""Share of the generator's own limit above which a figure may be the generator's."""
_BUSY = 0.85
_RECEIVED = 0.95


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: the median of each server's rounds, and whether the target is met."""

    cell: str
    title: str
    unit: str
    target: str
    values: dict[str, float]
    ratio: float | None  # Ours to the better Java.
    met: bool | None  # None: not enough was measured to tell.
    advantage: float | None  # The ratio, for times its inverse: above 1 ours is better.


def rows(cells: Iterable[Cell], figures: Sequence[Figure]) -> list[Row]:
    """Return one row per cell with at least one measurement."""
    return [_row(cell, values) for cell in cells if (values := _medians(cell, figures))]


def _medians(cell: Cell, figures: Sequence[Figure]) -> dict[str, float]:
    by_server: dict[str, list[float]] = {}
    for figure in figures:
        if figure.cell == cell.name:
            by_server.setdefault(figure.server, []).append(figure.value)
    return {server: statistics.median(values) for server, values in by_server.items()}


def _row(cell: Cell, values: dict[str, float]) -> Row:
    ours = values.get(OURS)
    java = [values[server] for server in JAVA if server in values]
    better = (max if cell.more_is_better else min)(java) if java else None
    ratio = ours / better if ours is not None and better else None
    advantage = ratio if cell.more_is_better else 1 / ratio if ratio else None
    return Row(cell.name, cell.title, cell.unit, cell.target, values, ratio, _met(cell, ours, ratio), advantage)


def _met(cell: Cell, ours: float | None, ratio: float | None) -> bool | None:
    """Return whether every part of the target is met; None if a part could not be judged."""
    parts = [(ratio, cell.ratio)] if cell.ratio is not None else []
    parts += [(ours, cell.bound)] if cell.bound is not None else []
    if not parts or any(value is None for value, _ in parts):
        return None
    sign = 1 if cell.more_is_better else -1
    return all(value is not None and target is not None and sign * value >= sign * target for value, target in parts)


@dataclass(frozen=True, slots=True)
class SyncCost:
    """Cost of waiting for a slave: the rate of a SYNC_MASTER pair by that of one asynchronous master, by server."""

    shape: str  # Connections × window.
    ratios: dict[str, float]


def sync_costs(lines: Sequence[Row]) -> list[SyncCost]:
    """Return the cost of each shape, as far as both rates were measured in this run."""
    by_cell = {row.cell: row.values for row in lines}
    found = []
    for shape in ("1x1", "64x1", "16x32"):
        pair, single = by_cell.get(f"pair/varied/{shape}", {}), by_cell.get(f"send/json/varied/4q/{shape}", {})
        ratios = {server: rate / single[server] for server, rate in pair.items() if single.get(server)}
        if ratios:
            found.append(SyncCost(shape, ratios))
    return found


def sync_cost_line(cost: SyncCost) -> str:
    """Return a line for below the table."""
    ratios = [f"{SERVER_NAMES[server]} {ratio:.2f}" for server, ratio in cost.ratios.items()]
    return f"SYNC_MASTER pair ÷ one ASYNC_MASTER, varied, {cost.shape}: {', '.join(ratios)}"


def nats_lines(lines: Sequence[Row], figures: Sequence[Figure]) -> list[str]:
    """Return lines for below the table: our rates by those of NATS JetStream, and what limited the latter."""
    found = []
    for row in lines:
        if row.values.get(NATS) and OURS in row.values:
            ratio = row.values[OURS] / row.values[NATS]
            text = f"TandemQ ÷ NATS JetStream (one replica, file storage; bodies only), {row.title}: {ratio:.2f}"
            shares = [figure.detail for figure in figures if (figure.cell, figure.server) == (row.cell, NATS)]
            server, generator = (max(detail[name] for detail in shares) for name in ("server_cpu", "cpu_share"))
            found.append(f"{text}; its server used {server:.2f} of a core, its generator {generator:.2f}")
    return found


def extremes(lines: Sequence[Row], count: int) -> tuple[list[Row], list[Row]]:
    """Return the rows in which ours is worst and best beside Java, worst and best first; no row is in both."""
    compared = sorted((row for row in lines if row.advantage is not None), key=lambda row: row.advantage or 0.0)
    best = compared[count:][-count:]
    return compared[:count], best[::-1]


def rates(lines: Sequence[Row]) -> list[Row]:
    """Return the rows that are rates."""
    return [row for row in lines if row.unit in _RATES]


def summary(lines: Sequence[Row]) -> list[str]:
    """Return lines for below the table: the worst cells, the best ones, and the targets that were missed."""
    worst, best = extremes(lines, _SHOWN)
    found = []
    for title, shown in (("The worst cells beside RocketMQ:", worst), ("The best cells beside RocketMQ:", best)):
        found += [title, *map(_summary_line, shown)] if shown else []
    judged = [row for row in lines if row.met is not None]
    missed = [row for row in judged if not row.met]
    if judged:
        found.append(f"{len(missed)} of {len(judged)} targets missed{':' if missed else ''}")
        found += [f"{_summary_line(row)}, target {row.target}" for row in missed]
    return found


def _summary_line(row: Row) -> str:
    value = f"{_number(row.values[OURS])} {row.unit}"
    return f"  {row.title}: {value}" + (f", {row.ratio:.2f} of RocketMQ's" if row.ratio is not None else "")


def generator_notes(figures: Iterable[Figure], ceilings: dict[str, dict[str, float]]) -> list[str]:
    """Return a line for each figure that the generator may have limited, or that is not of all messages.

    `ceilings`: of `bench.generator`, by shape.
    """
    notes = []
    for figure in figures:
        limit = ceilings.get(figure.cell.rpartition("/")[2], {}).get("limit")
        # The limits are of requests in our protocol, one message each.
        is_send = figure.cell.startswith(("send/", "flush/", "pair/")) and "/batch/" not in figure.cell
        is_send &= figure.server != NATS
        if float(figure.detail.get("cpu_share", 0)) > _BUSY:
            notes.append(
                f"{figure.server}, {figure.cell}: the generator used {figure.detail['cpu_share']:.0%} of a core"
            )
        elif is_send and limit and figure.value > _NEAR * limit:
            notes.append(f"{figure.server}, {figure.cell}: {figure.value / limit:.0%} of the generator's limit")
        expected = figure.detail.get("expected", 0)
        if expected and figure.detail["reads"]["received"] < _RECEIVED * expected:
            share = figure.detail["reads"]["received"] / expected
            cell = figure.cell.rpartition("/")[0]
            notes.append(f"{figure.server}, {cell}: the groups had received {share:.0%} when the run ended")
    return list(dict.fromkeys(notes))


def write_markdown(path: Path, lines: Sequence[Row], servers: Sequence[str]) -> None:
    """Write tables for the documentation: the worst and the best cells, then all."""
    worst, best = extremes(lines, _SHOWN)
    parts = [("The worst cells", worst), ("The best cells", best)]
    parts += [("Missed targets", [row for row in lines if row.met is False]), ("All cells", list(lines))]
    parts = [(title, rows) for title, rows in parts if rows]
    text = "\n".join(line for title, rows in parts for line in ["", f"## {title}", "", *_markdown(rows, servers)])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"# Figures of the last run\n{text}\n", encoding="utf-8")


def _measured(servers: Sequence[str], lines: Sequence[Row]) -> list[str]:
    """Return the servers that get a column."""
    return [server for server in servers if any(server in row.values for row in lines)]


def _markdown(lines: Sequence[Row], servers: Sequence[str]) -> list[str]:
    servers = _measured(servers, lines)
    head = f"| | {' | '.join(SERVER_NAMES[server] for server in servers)} | ratio | target |"
    found = [head, "|---" * (len(servers) + 3) + "|"]
    for row in lines:
        values = " | ".join(_number(row.values.get(server)) for server in servers)
        ratio = f"{row.ratio:.2f}" if row.ratio is not None else "–"
        found.append(f"| {row.title}, {row.unit} | {values} | {ratio} | {row.target} |")
    return found


def table(lines: Sequence[Row], servers: Sequence[str]) -> Table:
    """Return the table as text."""
    result = Table(title="TandemQ beside Java RocketMQ", title_justify="left")
    result.add_column("cell")
    servers = _measured(servers, lines)
    for server in servers:
        result.add_column(SERVER_NAMES[server].removeprefix("RocketMQ ").removesuffix(" JetStream"), justify="right")
    for name in ("unit", "ratio", "target"):
        result.add_column(name, justify="left" if name == "unit" else "right")
    result.add_column("")
    for row in lines:
        result.add_row(
            row.title,
            *(_number(row.values.get(server)) for server in servers),
            row.unit,
            f"{row.ratio:.2f}" if row.ratio is not None else "–",
            row.target,
            {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[row.met],
        )
    return result


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def write_json(path: Path, lines: Sequence[Row], figures: Sequence[Figure], facts: dict[str, Any]) -> None:
    """Write all measurements, rows first."""
    content = {
        "facts": facts,
        "sync_cost": [dataclasses.asdict(cost) for cost in sync_costs(lines)],
        "rows": [dataclasses.asdict(row) for row in lines],
        "figures": [dataclasses.asdict(figure) for figure in figures],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """Return the facts about machine and versions that are needed to compare figures of two runs."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = next((line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")), "?")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
