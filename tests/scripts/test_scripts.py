"""Every script in this directory tells the story it tells."""

from pathlib import Path

import pytest

from tests.scripts.runner import replay

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_transcript_is_as_written(script: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = script.read_text(encoding="utf-8")
    found = replay(text, tmp_path)
    if request.config.getoption("--rewrite", default=False):
        script.write_text(found, encoding="utf-8")
    else:
        assert found == text


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 4
