"""tools/newcomers.py: what runs, what cannot, and what the table says of each."""

import json
import sys
from pathlib import Path

import pytest

from tests.spec import ROOT
from tools import newcomers
from tools.newcomers import NEWCOMERS, Newcomer

CODE = "import sys; print(sys.argv[1]); sys.exit(int(sys.argv[2]))"


def newcomer(name: str, code: int, *programs: str) -> Newcomer:
    return Newcomer(name, "README.md", (sys.executable, "-c", CODE, f"output of {name}", str(code)), programs)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three newcomers, and a directory for what runs leave."""
    found = (newcomer("good", 0), newcomer("bad", 3), newcomer("absent", 0, "no-such-program"))
    monkeypatch.setattr(newcomers, "NEWCOMERS", found)
    monkeypatch.setattr(newcomers, "ROOT", tmp_path)
    monkeypatch.setattr(newcomers, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(newcomers, "OUTCOME", tmp_path / "outcome" / "newcomers.json")
    return tmp_path


def test_table_has_results_and_what_cannot_run(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert newcomers.main(["--json"]) == 1
    good, bad, absent = json.loads(capsys.readouterr().out)
    assert (good["result"], good["page"]) == ("works", "README.md")
    assert bad["result"] == "FAILED: exit status 3; logs/bad.log"
    assert (table / "logs" / "bad.log").read_text() == "output of bad\n"
    assert (absent["result"], absent["seconds"]) == ("cannot run here: not installed: no-such-program", None)
    outcome = json.loads((table / "outcome" / "newcomers.json").read_text())
    assert (outcome["passed"], outcome["failed"]) == (1, 1)
    assert newcomers.main(["good", "absent"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].split() == ["newcomer", "page", "seconds", "result"]
    assert len(text.splitlines()) == 3


def test_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        newcomers.main(["nobody"])
    assert ended.value.code == 2
    assert "unknown: nobody" in capsys.readouterr().err


def test_time_for_making_a_root_is_not_counted() -> None:
    printed = "     0 s  a root of Debian is made\n    31 s  sh -c make setup\nworks\n   131 s  exit status 0\n"
    clean = next(found for found in NEWCOMERS if found.is_in_clean_root)
    assert newcomers.own_seconds(clean, printed, 140.0) == 100
    assert newcomers.own_seconds(clean, "", 140.0) == 140


def test_pages_and_tests_exist() -> None:
    for found in NEWCOMERS:
        assert (ROOT / found.page).is_file(), found.page
        for word in " ".join(found.command).split():
            if word.startswith(("tests/", "tools/")):
                assert (ROOT / word).exists(), word
