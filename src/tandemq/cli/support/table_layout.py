"""Layout of tables: columns that fit a terminal, without cutting a cell.

A table that is wider than the terminal gets narrower step by step, until it fits:

    1  columns without any value are left out
    2  cells of more than PROSE_CHARACTERS_MIN characters are wrapped between words
    3  less important columns are left out, and named in the result
    4  each row becomes a block of lines, `column  value`, with all of its values
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tandemq.cli.support.cells import cell_text

COLUMNS_MIN = 40
"""Terminals that are narrower are treated as if they had that many columns."""
PROSE_CHARACTERS_MIN = 29
"""Columns up to this width, such as times and addresses, are not wrapped."""
_GAP = "  "

Rows = Sequence[Mapping[str, Any]]


class FittedTable(NamedTuple):
    """Lines of a table, and the names of columns that it does not show."""

    lines: list[str]
    left_out: list[str]


class _Column(NamedTuple):
    head: str
    cells: list[str]
    is_numeric: bool

    @property
    def width(self) -> int:
        return max(len(self.head), *map(len, self.cells))

    @property
    def width_min(self) -> int:
        """The width with wrapped cells: no word is broken."""
        if self.is_numeric or self.width <= PROSE_CHARACTERS_MIN:
            return self.width
        words = (len(word) for cell in self.cells for word in cell.split())
        return max(len(self.head), PROSE_CHARACTERS_MIN, *words)


def fitted(rows: Rows, columns: int | None, less: Sequence[str] = ()) -> FittedTable:
    """Lay out rows with equal keys.

    Args:
        rows: at least one row.
        columns: width of the terminal; None: any width.
        less: less important columns, the least important one first.
    """
    found = [_column(head, rows) for head in rows[0]]
    if columns is None or _fits(found, columns):
        return FittedTable(list(_table(found, [column.width for column in found])), [])
    columns = max(columns, COLUMNS_MIN)
    shown = [column for column in found if any(column.cells)]
    left_out: list[str] = []
    for name in ("", *less):
        if any(column.head == name for column in shown):
            shown = [column for column in shown if column.head != name]
            left_out.append(name)
        if shown and sum(column.width_min for column in shown) + len(_GAP) * (len(shown) - 1) <= columns:
            return FittedTable(list(_table(shown, _wrapped_widths(shown, columns))), left_out)
    return FittedTable(list(_blocks(rows, columns)), [])


def wrapped(text: str, columns: int, *, indent: str = "", breaks_words: bool = True) -> list[str]:
    """Return the lines of a text that is wrapped between words, the further ones indented; at least one line."""
    found = textwrap.wrap(
        text,
        max(1, columns),
        subsequent_indent=indent,
        break_long_words=breaks_words,
        break_on_hyphens=False,
    )
    return found or [""]


def _column(head: str, rows: Rows) -> _Column:
    is_numeric = all(isinstance(row[head], int | float) or row[head] is None for row in rows)
    return _Column(head, [cell_text(row[head]) for row in rows], is_numeric)


def _fits(shown: Sequence[_Column], columns: int) -> bool:
    return sum(column.width for column in shown) + len(_GAP) * (len(shown) - 1) <= columns


def _wrapped_widths(shown: Sequence[_Column], columns: int) -> list[int]:
    """Return widths that fit: the widest columns give way, one character at a time."""
    widths = [column.width for column in shown]
    least = [column.width_min for column in shown]
    excess = sum(widths) + len(_GAP) * (len(shown) - 1) - columns
    for _ in range(excess):
        widest = max((i for i in range(len(widths)) if widths[i] > least[i]), key=lambda i: widths[i])
        widths[widest] -= 1
    return widths


def _table(shown: Sequence[_Column], widths: Sequence[int]) -> Iterator[str]:
    numeric = [column.is_numeric for column in shown]
    yield _line([column.head for column in shown], widths, numeric)
    yield _GAP.join("-" * width for width in widths)
    for cells in zip(*(column.cells for column in shown), strict=True):
        parts = [
            [cell] if len(cell) <= width else wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)
        ]
        for number in range(max(map(len, parts))):
            yield _line([part[number] if number < len(part) else "" for part in parts], widths, numeric)


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if number else cell.ljust(width)
        for cell, width, number in zip(cells, widths, numeric, strict=True)
    ]
    return _GAP.join(padded).rstrip()


def _blocks(rows: Rows, columns: int) -> Iterator[str]:
    """Yield each row as a block of lines, without its empty cells."""
    width = min(max(map(len, rows[0])), columns // 2)
    for number, row in enumerate(rows):
        if number:
            yield ""
        for head, value in row.items():
            text = cell_text(value)
            if text:
                first, *more = wrapped(text, columns - width - len(_GAP))
                yield f"{head[:width]:<{width}}{_GAP}{first}"
                yield from (f"{'':<{width}}{_GAP}{line}" for line in more)
