"""Output of commands: tables for people, JSON for programs.

On a terminal tables fit its width (`table_layout`), unless --wide is given; elsewhere they have their full width.
Texts in it may be those of any client, so nothing that controls a terminal is printed.
"""

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from tandemq.cli.support.cells import cell_text, permission_text, plain, time_text
from tandemq.cli.support.inherited import InheritedOption
from tandemq.cli.support.table_layout import COLUMNS_MIN, Rows, fitted, wrapped

__all__ = [
    "Rows",
    "body_field",
    "echo_wrapped",
    "json_flag",
    "json_option",
    "permission_text",
    "plain",
    "show_facts",
    "show_json",
    "show_rows",
    "table_options",
    "time_text",
]
_F = TypeVar("_F", bound=Callable[..., Any])
_WIDE = "tandemq.wide"
_CONTROLS = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}
"""Control characters that JSON leaves as they are, and the separators that end a line for some programs."""


def json_flag(text: str) -> Callable[[_F], _F]:
    """Return a decorator that adds --json, which the command gets as `as_json`; `text`: its help."""
    return click.option("--json", "as_json", is_flag=True, cls=InheritedOption, help=text)


json_option = json_flag("Print JSON.")


def table_options(command: _F) -> _F:
    """Add --json, which the command gets as `as_json`, and --wide, which `show_rows` reads."""
    wide = click.option(
        "--wide",
        is_flag=True,
        expose_value=False,
        callback=_remember_wide,
        help="Show all columns, also if they do not fit the terminal.",
    )
    return json_option(wide(command))


def _remember_wide(context: click.Context, _parameter: click.Parameter, is_wide: bool) -> None:
    context.meta[_WIDE] = is_wide


def terminal_columns() -> int | None:
    """Return the width of the terminal; None if standard output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _columns() -> int | None:
    """Return the width that tables must fit; None: any."""
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(_WIDE):
        return None
    return terminal_columns()


def show_json(value: Any) -> None:
    """Print one JSON document on one line."""
    click.echo(json.dumps(value, ensure_ascii=False).translate(_CONTROLS))


def show_rows(rows: Rows, *, as_json: bool, empty: str = "nothing", less: Sequence[str] = ()) -> None:
    """Print rows with equal keys as a table or as a JSON list.

    Args:
        rows: values by column.
        as_json: as a JSON list.
        empty: text if there are no rows.
        less: columns that a narrow terminal need not show, the least important one first.
    """
    if as_json:
        show_json([dict(row) for row in rows])
        return
    if not rows:
        click.echo(empty)
        return
    columns = _columns()
    table = fitted(rows, columns, less)
    for line in table.lines:
        click.echo(line)
    if table.left_out:
        echo_wrapped(f"not shown at {columns} columns: {', '.join(table.left_out)}; --wide shows them")


def show_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the properties of one object, one line each, or as a JSON object. No word is broken."""
    if as_json:
        show_json(dict(facts))
        return
    width = max(map(len, facts), default=0)
    columns = _columns()
    for name, value in facts.items():
        text = cell_text(value)
        room = len(text) if columns is None else max(columns, COLUMNS_MIN) - width - 2
        first, *more = [text] if len(text) <= room else wrapped(text, room, breaks_words=False)
        click.echo(f"{name:<{width}}  {first}")
        for line in more:
            click.echo(f"{'':<{width}}  {line}")


def echo_wrapped(text: str, *, indent: str = "") -> None:
    """Print a text, on a terminal wrapped between words; further lines are indented."""
    columns = _columns()
    if columns is None or len(text) <= columns:
        click.echo(text)
        return
    width = max(columns, COLUMNS_MIN)
    click.echo("\n".join(wrapped(text, width, indent=indent, breaks_words=False)))


def body_field(body: bytes) -> dict[str, str]:
    """Return the body of a message as a field of an object for `--json`; in hexadecimal digits if it is not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"bodyHex": body.hex()}
