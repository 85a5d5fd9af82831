"""Directories of failover benchmarks: kept after a failure, removed otherwise."""

import shutil
import tempfile
from pathlib import Path

import pytest

from bench.modes import running_pair
from tandemq.coordination.registry.records import Mode
from tandemq.errors import ConfigError


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the place where directories are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.system
def test_logs_of_a_cluster_that_fails_to_start_are_kept_and_their_ends_shown(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(ConfigError, match="messageDelayLevel"),
        running_pair(Mode.STATIC, "namesrv", messageDelayLevel="never"),
    ):
        pass
    (directory,) = place.iterdir()
    printed = capsys.readouterr().err
    assert f"logs and stores are kept in {directory}" in printed
    assert f"the end of {directory / 'broker-a-0.log'}:" in printed
    assert printed.count("messageDelayLevel") >= 1
    shutil.rmtree(directory)


@pytest.mark.system
def test_directory_is_removed_after_success(place: Path) -> None:
    with running_pair(Mode.STATIC, "namesrv") as pair:
        assert pair.master.is_running
    assert list(place.iterdir()) == []
