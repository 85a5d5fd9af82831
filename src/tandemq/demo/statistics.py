"""Figures per tag: rows, values, and their mean. Sums are exact, so their order does not matter."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import msgspec

from tandemq.demo.rows import number_of


@dataclass(slots=True)
class Figures:
    """Figures of one tag."""

    rows: int = 0
    values: int = 0
    total: int | Fraction = 0

    @property
    def mean(self) -> float | None:
        """Return the mean of the values, None without any."""
        return float(Fraction(self.total) / self.values) if self.values else None


class TagStatistics:
    """Figures by tag, from message bodies or from the file."""

    def __init__(self, value_column: str) -> None:
        """`value_column`: the column to average."""
        # Only this column is decoded.
        kind: Any = msgspec.defstruct("Body", [("value", str)], rename={"value": value_column})
        self._decode = msgspec.json.Decoder(kind).decode
        self.by_tag: dict[str, Figures] = {}

    def add(self, tag: str, body: bytes) -> None:
        """Count one message."""
        self._count(tag, self._decode(body).value)

    def add_all(self, values: Iterable[tuple[str, str]]) -> "TagStatistics":
        """Count rows given as (tag, value); return self."""
        for tag, value in values:
            self._count(tag, value)
        return self

    def _count(self, tag: str, value: str) -> None:
        figures = self.by_tag.get(tag)
        if figures is None:
            figures = self.by_tag[tag] = Figures()
        figures.rows += 1
        number = number_of(value)
        if number is not None:
            figures.values += 1
            figures.total += int(number) if number.is_integer() else Fraction(number)

    @property
    def rows(self) -> int:
        """Return the number of all rows."""
        return sum(figures.rows for figures in self.by_tag.values())
