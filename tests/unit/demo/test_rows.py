"""Input of the demo: the real departures, and users' own files."""

import importlib.util
import json
from pathlib import Path

import pytest

from tandemq.demo import rows
from tandemq.demo.rows import ColumnChoice
from tandemq.errors import LocalError

DEPARTURES = 336_776
CANCELLED = 8_255


def test_departures_are_complete_with_carrier_key_and_delay() -> None:
    source = rows.departures()
    values = list(source.values())
    assert len(values) == DEPARTURES
    assert sum(rows.number_of(value) is None for _, value in values) == CANCELLED
    assert {tag for tag, _ in values} == set(source.names)
    first = next(iter(source.read()))
    assert (first.tag, first.key) == ("UA", "UA-1545-2013-1-1")
    assert json.loads(first.body)["dep_delay"] == "2"


def test_missing_departures_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(LocalError, match="--input FILE"):
        rows.departures()


def test_columns_are_chosen_when_not_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("shop,colour,price\nx y,red,1.5\nz,,NA\n")
    source = rows.from_file(path, ColumnChoice())
    assert source.columns == ColumnChoice("shop", (), "price")
    assert [(row.tag, row.key) for row in source.read()] == [("x_y", "1"), ("z", "2")]
    assert list(source.values()) == [("x_y", "1.5"), ("z", "NA")]


def test_named_columns_make_tag_key_and_value(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1, "b": "two words", "c": null}\n\n{"a": 2, "b": "x", "c": 3}\n')
    source = rows.from_file(path, ColumnChoice("b", ("a", "b"), "c"))
    assert [(row.tag, row.key) for row in source.read()] == [("two_words", "1-two_words"), ("x", "2-x")]
    assert [rows.number_of(value) for _, value in source.values()] == [None, 3.0]


@pytest.mark.parametrize(
    ("name", "text", "columns", "error"),
    [
        ("a.csv", "", ColumnChoice(), "has no rows"),
        ("a.csv", "a,b\n", ColumnChoice(), "has no rows"),
        ("a.csv", "a,b\n1,2\n", ColumnChoice(tag="c"), "has no column 'c'"),
        ("a.csv", "a,b\nx,y\n", ColumnChoice(), "no column of the first row is a number"),
        ("a.jsonl", "{}\n[1]\n", ColumnChoice(), "no column of the first row"),
        ("a.jsonl", "{nonsense\n", ColumnChoice(), "line 1 is not JSON"),
        ("a.zip", "no archive", ColumnChoice(), "cannot be read"),
    ],
)
def test_unusable_file_is_an_error(tmp_path: Path, name: str, text: str, columns: ColumnChoice, error: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(LocalError, match=error):
        rows.from_file(path, columns)


def test_line_with_another_number_of_fields_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\nx,1\ny\n")
    with pytest.raises(LocalError, match="line 3 has 1 fields, the header row 2"):
        list(rows.from_file(path, ColumnChoice()).read())
    with pytest.raises(LocalError, match="cannot be read"):
        rows.from_file(tmp_path / "none.csv", ColumnChoice())


def test_value_that_is_not_a_number_is_an_error() -> None:
    with pytest.raises(LocalError, match="--value"):
        rows.number_of("soon")
