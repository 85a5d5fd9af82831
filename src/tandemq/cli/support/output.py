"""What commands print: a table for people, JSON for programs."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

Rows = Sequence[Mapping[str, Any]]


def show_json(value: Any) -> None:
    """One JSON document on a line."""
    click.echo(json.dumps(value, ensure_ascii=False))


def show_rows(rows: Rows, *, as_json: bool, empty: str = "nothing") -> None:
    """Rows of equal keys: a table, or a JSON list."""
    if as_json:
        show_json([dict(row) for row in rows])
        return
    if not rows:
        click.echo(empty)
        return
    heads = list(rows[0])
    cells = [[_text(row[head]) for head in heads] for row in rows]
    numeric = [all(isinstance(row[head], int | float) or row[head] is None for row in rows) for head in heads]
    widths = [max(len(head), *(len(line[at]) for line in cells)) for at, head in enumerate(heads)]
    click.echo(_line(heads, widths, numeric))
    click.echo("  ".join("-" * width for width in widths))
    for line in cells:
        click.echo(_line(line, widths, numeric))


def show_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """One thing with several properties: a line for each, or a JSON object."""
    if as_json:
        show_json(dict(facts))
        return
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {_text(value)}")


def time_text(wall_ms: int) -> str:
    """A calendar time in this machine's zone, "" for none."""
    return datetime.fromtimestamp(wall_ms / 1000).astimezone().isoformat(" ", "milliseconds") if wall_ms > 0 else ""


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if number else cell.ljust(width)
        for cell, width, number in zip(cells, widths, numeric, strict=True)
    ]
    return "  ".join(padded).rstrip()


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
