"""Output of commands: tables for people, JSON for programs.

Texts in it may be those of any client, so nothing that controls a terminal is printed.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

_CONTROLS = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}
"""Control characters that JSON leaves as they are, and the separators that end a line for some programs."""
_CELL_CHARACTERS_MAX = 1 << 20

Rows = Sequence[Mapping[str, Any]]


def show_json(value: Any) -> None:
    """Print one JSON document on one line."""
    click.echo(json.dumps(value, ensure_ascii=False).translate(_CONTROLS))


def show_rows(rows: Rows, *, as_json: bool, empty: str = "nothing") -> None:
    """Print rows with equal keys as a table or as a JSON list; `empty` is printed if there are none."""
    if as_json:
        show_json([dict(row) for row in rows])
        return
    if not rows:
        click.echo(empty)
        return
    heads = list(rows[0])
    cells = [[_text(row[head]) for head in heads] for row in rows]
    numeric = [all(isinstance(row[head], int | float) or row[head] is None for row in rows) for head in heads]
    widths = [max(len(head), *(len(line[column]) for line in cells)) for column, head in enumerate(heads)]
    click.echo(_line(heads, widths, numeric))
    click.echo("  ".join("-" * width for width in widths))
    for line in cells:
        click.echo(_line(line, widths, numeric))


def show_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the properties of one object, one line each, or as a JSON object."""
    if as_json:
        show_json(dict(facts))
        return
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {_text(value)}")


def body_field(body: bytes) -> dict[str, str]:
    """Return the body of a message as a field of an object for `--json`; in hexadecimal digits if it is not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"bodyHex": body.hex()}


def time_text(wall_ms: int) -> str:
    """Format a time, milliseconds since 1970, in this machine's time zone; "" for 0.

    A time that no calendar has, which clients may report, is returned as its number.
    """
    if wall_ms <= 0:
        return ""
    try:
        return datetime.fromtimestamp(wall_ms / 1000).astimezone().isoformat(" ", "milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(wall_ms)


def plain(text: str, characters: int = 1_000) -> str:
    """Return a text without characters that control a terminal, cut after `characters`."""
    return "".join(c if c.isprintable() else "·" for c in text[:characters])


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
    return f"{value:.1f}" if isinstance(value, float) else plain(str(value), _CELL_CHARACTERS_MAX)
