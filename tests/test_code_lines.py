import json
from pathlib import Path

import pytest

from tools import code_lines


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ("# a comment\n\n", 0),
        ('"""A module."""\n\nX = 1\n"""What X is."""\n', 1),
        ('def f() -> str:\n    """Return\n    text.\n    """\n    return "a"  # a comment\n', 2),
        ('TEXT = """one\n\nthree"""\n', 3),
        ("X = (\n    # first\n    1,\n)\n", 3),
        ("cdef int f(int x) except -1:\n    return x\n", 2),
    ],
)
def test_lines_of_code_are_counted_without_strings_that_say_what_something_is(
    tmp_path: Path, source: str, lines: int
) -> None:
    path = tmp_path / "file.py"
    path.write_text(source, encoding="utf-8")
    assert code_lines.code_lines(path) == lines


def test_command_prints_packages_and_their_sum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.py").write_text("x = 1\ny = 2\n", encoding="utf-8")
    (tmp_path / "two.pxi").write_text("cdef int x = 1\n", encoding="utf-8")
    assert code_lines.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == ["2", "one", "1", "two.pxi", "3", "in", "all"]
    assert code_lines.main(["--json", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == {"one": 2, "two.pxi": 1}
