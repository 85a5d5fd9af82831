"""Which test proves which row of docs/internals/requirements.md.

A test says so itself:

    @spec("H16", "T04")
    def test_master_closes_slave_silent_for_20s() -> None: ...

`python -m tests.spec` (make spec) reads the list and the tests' source, runs nothing, and lists for each row the tests
that carry it. A row that no test can show names a page under docs/ instead. It fails if a row in scope has neither, if
a test names a row that does not exist, or if a page is missing.

Owner: the test suite. Does not know: whether the tests pass; `make test` and `make interop` tell that.
Source: docs/internals/requirements.md.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "docs" / "internals" / "requirements.md"

ROW_ID = re.compile(r"[RMHTWFVGPOSLCKXAQ]\d\d")
_LINK = re.compile(r"\]\(([^)#]+\.md)(?:#[^)]*)?\)")

Test = TypeVar("Test", bound=Callable[..., Any])


def spec(*rows: str) -> Callable[[Test], Test]:
    """Mark a test (or a class of tests) as proof of rows of the requirements, for instance `@spec("H16", "T04")`."""
    import pytest  # here, because the listing below must work without it

    assert rows, "name at least one row"
    for row in rows:
        assert ROW_ID.fullmatch(row), f"{row!r} is no row id; they look like H16"

    def mark(test: Test) -> Test:
        marked: Test = pytest.mark.spec(*rows)(test)
        return marked

    return mark


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the list: its id, whether it is due now, what it asks, and the page that shows it, if a page does."""

    id: str
    due: bool
    text: str
    page: str | None


def read_rows(path: Path = REQUIREMENTS) -> list[Row]:
    """Read the rows `* id: text`; the text begins with `Page:` or `Later:` where no test is due."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        row_id, _, text = line.removeprefix("* ").partition(": ")
        if not line.startswith("* ") or not ROW_ID.fullmatch(row_id.strip(":")):
            continue
        if not text.strip():
            raise ValueError(f"{path.name}:{number}: {row_id} says nothing")
        page = None
        if text.startswith("Page:"):
            link = _LINK.search(text)
            if link is None:
                raise ValueError(f"{path.name}:{number}: {row_id} is shown by a page, so its text links to one")
            page = link.group(1)
        rows.append(Row(row_id, not text.startswith("Later:"), text, page))
    return rows


def find_marks(root: Path = ROOT / "tests") -> Iterator[tuple[str, str]]:
    """Yield (row id, `path::test`) for every `@spec(...)` in the test files, read from their source."""
    for path in sorted(root.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        yield from _marks_in(tree.body, str(path.relative_to(root.parent)))


def _marks_in(body: list[ast.stmt], where: str) -> Iterator[tuple[str, str]]:
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        name = f"{where}::{node.name}"
        for decorator in node.decorator_list:
            for row_id in _rows_of(decorator, name):
                yield row_id, name
        if isinstance(node, ast.ClassDef):
            yield from _marks_in(node.body, name)


def _rows_of(decorator: ast.expr, name: str) -> list[str]:
    if not (isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name) and decorator.func.id == "spec"):
        return []
    rows = []
    for argument in decorator.args:
        if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
            raise ValueError(f"{name}: rows are written out as strings, so that they can be read without running")
        rows.append(argument.value)
    return rows


def problems(rows: list[Row], marks: dict[str, list[str]], docs: Path = REQUIREMENTS.parent) -> list[str]:
    """Say what is wrong, one sentence each: uncovered rows in scope, unknown or doubled ids, missing pages."""
    found = []
    known = [row.id for row in rows]
    found += [f"{row_id} stands twice in the list" for row_id in sorted({i for i in known if known.count(i) > 1})]
    found += [
        f"{tests[0]} names {row_id}, which is not in the list"
        for row_id, tests in sorted(marks.items())
        if row_id not in known
    ]
    for row in rows:
        if row.page is not None:
            if not (docs / row.page).is_file():
                found.append(f"{row.id} points to {row.page}, which does not exist")
        elif row.due and row.id not in marks:
            found.append(f"{row.id} has no test: {row.text}")
    return found


def main() -> int:
    """Print the rows with their tests; 0 when every row in scope is shown, else 1."""
    rows = read_rows()
    marks: dict[str, list[str]] = {}
    for row_id, test in find_marks():
        marks.setdefault(row_id, []).append(test)

    for row in rows:
        print(f"{row.id}  {row.text}")
        for test in marks.get(row.id, []):
            print(f"       {test}")
        if row.page is not None:
            print(f"       {row.page}")
        elif row.id not in marks:
            print("       (no test)" if row.due else "       (later)")

    missing = problems(rows, marks)
    due = [row for row in rows if row.due]
    shown = sum(1 for row in due if row.page is not None or row.id in marks)
    print(f"\n{len(rows)} rows: {len(due)} in scope, {shown} of them shown; {len(rows) - len(due)} later")
    for problem in missing:
        print(f"missing: {problem}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
