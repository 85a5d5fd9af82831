"""Every script in this directory has the results that it states."""

from pathlib import Path

import pytest

from tests.scripts.runner import Script
from tests.scripts.transcript import check

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_transcript_is_as_written(script: Path, tmp_path: Path, rewrites: bool) -> None:
    check(script, Script(tmp_path).run, rewrites=rewrites)


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 4
