"""The list of rows and tests: what it reads, and what it complains about."""

from pathlib import Path

import pytest

from tests.spec import Row, find_marks, problems, read_rows, spec

ROWS = """
# Requirements

* H01: one
* H02: Page: [page](page.md#two)
* H03: Later: three
"""


def write(path: Path, text: str) -> Path:
    """Write a file, with the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_rows_are_read_with_scope_and_page(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path / "requirements.md", ROWS))
    assert rows == [
        Row("H01", True, "one", None),
        Row("H02", True, "Page: [page](page.md#two)", "page.md"),
        Row("H03", False, "Later: three", None),
    ]


@pytest.mark.parametrize("row", ["* H04:", "* H04: ", "* H04: Page: no link"])
def test_malformed_row_is_an_error(tmp_path: Path, row: str) -> None:
    with pytest.raises(ValueError, match=r"requirements\.md:7"):
        read_rows(write(tmp_path / "requirements.md", ROWS + row))


def test_marks_are_found_on_functions_methods_and_classes_without_running(tmp_path: Path) -> None:
    source = """
raise SystemExit("never run")
@spec("H01", "H02")
def test_f(): ...
@spec("H03")
class TestC:
    @spec("H01")
    async def test_g(self): ...
"""
    write(tmp_path / "tests" / "deep" / "test_x.py", source)
    assert sorted(find_marks(tmp_path / "tests")) == [
        ("H01", "tests/deep/test_x.py::TestC::test_g"),
        ("H01", "tests/deep/test_x.py::test_f"),
        ("H02", "tests/deep/test_x.py::test_f"),
        ("H03", "tests/deep/test_x.py::TestC"),
    ]


def test_computed_row_id_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "tests" / "test_x.py", "@spec(ROW)\ndef test_f(): ...\n")
    with pytest.raises(ValueError, match="written out"):
        list(find_marks(tmp_path / "tests"))


def test_uncovered_row_unknown_id_double_id_and_missing_page_are_problems(tmp_path: Path) -> None:
    rows = [Row("H01", True, "one", None), Row("H01", True, "one", None), Row("H02", True, "two", "page.md")]
    found = problems(rows, {"H99": ["tests/test_x.py::test_f"]}, docs=tmp_path)
    assert len(found) == 5
    for piece in ("H01 stands twice", "names H99", "H01 has no test", "H02 points to page.md, which does not exist"):
        assert any(piece in problem for problem in found)


def test_covered_rows_pages_and_later_rows_are_no_problem(tmp_path: Path) -> None:
    write(tmp_path / "page.md", "# Two")
    rows = read_rows(write(tmp_path / "requirements.md", ROWS))
    assert problems(rows, {"H01": ["tests/test_x.py::test_f"]}, docs=tmp_path) == []


def test_row_id_of_another_shape_is_refused() -> None:
    with pytest.raises(AssertionError, match="no row id"):
        spec("H1")


def test_scope_of_this_release_is_what_was_agreed() -> None:
    rows = read_rows()
    later = {row.id for row in rows if not row.due}
    assert later == {"G08"}
    assert {row.id for row in rows if row.page} == {"M08", "V15", "V21", "W15", "F32", "G07"}
    counts = {letter: sum(row.id[0] == letter for row in rows) for letter in "RMHTWFVG"}
    assert counts == {"R": 14, "M": 9, "H": 25, "T": 21, "W": 15, "F": 38, "V": 21, "G": 15}
