"""`python -m judge`: exit codes, output, and what it imports."""

import ast
import io
import json
import sys
from pathlib import Path

import pytest

import judge
from judge.__main__ import main
from judge.anomalies import RULES
from tests.judge.healthy import Lines, healthy
from tests.judge.planted import duplicate, lost


def _written(path: Path, lines: Lines) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def test_healthy_history_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([_written(tmp_path / "h.jsonl", healthy())]) == 0
    assert "no anomaly was found" in capsys.readouterr().out


def test_anomalies_are_printed_with_their_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _written(tmp_path / "h.jsonl", lost())
    assert main([path]) == 3
    shown = capsys.readouterr().out
    assert "lost: 1" in shown
    assert '"id": "b-2"' in shown
    assert main([path, "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["counts"] == {"lost": 1}
    assert found["anomalies"][0]["rule"] == "lost"
    assert len(found["anomalies"][0]["lines"]) == 3


def test_allowed_rule_does_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _written(tmp_path / "h.jsonl", duplicate())
    assert main([path, "--allow", "lost"]) == 3
    assert main([path, "--allow", "duplicate"]) == 0
    assert "duplicate: 1 (allowed)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1: no JSON"),
        ("[]", "line 1: expected an object"),
        ('{"format": "other"}', "line 1: no header"),
        ('{"promises": {"kept": 1}}', "line 1: promises: kept is 1"),
        ('{"promises": {"speed": 1}}', "line 1: promises: unknown 'speed'"),
        ("{}\nnot JSON", "line 2: no JSON"),
        ('{}\n{"f": "fly", "type": "ok"}', "line 2: unknown operation"),
        ('{}\n\n{"t": 1, "p": "a", "f": "settled", "type": "fail"}', "line 3: unknown operation"),
        ('{}\n{"t": 1, "p": "a", "f": "send", "type": "invoke", "op": 1, "id": "x"}', "topic is missing"),
        ('{}\n{"t": 1, "p": "a", "f": "send", "type": "ok", "op": "x"}', "op is 'x'; expected number"),
        (
            '{}\n{"t": 1, "p": "a", "f": "poll", "type": "ok", "group": "g", "q": "T/a/0", "messages": [[1]]}',
            "messages is [[1]]",
        ),
        ('{}\n{"t": 1, "p": "a", "f": "send", "type": "ok", "op": 1, "q": "T"}', "expected topic/broker/number"),
        ('{}\n{"t": 1, "p": "a", "f": "send", "type": "ok", "op": 1}', "no send with number 1 of a has begun"),
        (
            "{}" + 2 * '\n{"t": 1, "p": "a", "f": "recall", "type": "invoke", "op": 1, "id": "x"}',
            "line 3: operation 1 of a has begun already",
        ),
        (
            '{}\n{"t": 1, "p": "a", "f": "end", "type": "invoke", "op": 1, "id": "x", "outcome": "?"}',
            "expected commit or rollback",
        ),
    ],
)
def test_unreadable_history_ends_with_2_and_the_line(
    text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text.startswith(("{}", '{"promises"')):
        head, _, rest = text.partition("\n")
        header = {"format": "message-history", "version": 1, **json.loads(head)}
        text = json.dumps(header) + "\n" + rest
    path = tmp_path / "h.jsonl"
    path.write_text(text, encoding="utf-8")
    assert main([str(path)]) == 2
    assert complaint in capsys.readouterr().err


def test_file_that_is_not_there_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-file"]) == 2
    assert "no-such-file" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2


def test_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rules"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(RULES)


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in duplicate())
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["-"]) == 3
    assert "duplicate: 1" in capsys.readouterr().out


def test_judge_imports_the_standard_library_alone() -> None:
    imported: set[str] = set()
    for path in Path(judge.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0
                imported.add((node.module or "").partition(".")[0])
            elif isinstance(node, ast.Import):
                imported.update(alias.name.partition(".")[0] for alias in node.names)
    assert imported - {"judge"} <= sys.stdlib_module_names
    assert "importlib" not in imported
