"""What runs by the clock: retention, and a disk that takes nothing."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tandemq.boundary import DiskUsage, Now
from tests.broker.harness import Harness

HOUR_MS = 3_600_000
LATER_MS = 100 * HOUR_MS
CALM: dict[str, Any] = {"delete_when": "23", "disk_used_ratio_max": 95, "disk_force_ratio": 1.0, "disk_full_ratio": 1.0}


def fill(broker: Harness) -> None:
    """Two log files and a beginning of the third, flushed."""
    for _ in range(300):
        broker.send("TopicA", bytes(200))
    broker.pass_time(1_000)
    assert broker.node.store.log.written_end > 2 * broker.config.segment_bytes


def clean(broker: Harness) -> None:
    """An operator has expired files deleted, a hundred hours later; what that finds to sync is synced."""
    changed_ms = broker.disk.modified_ms(broker.node.store.log.segment_path(broker.node.store.log.start))
    for _ in range(2):
        broker.node.upkeep.delete_expired()
        broker.node.schedule.at(0, lambda now: broker.node.upkeep.clean(Now(now.mono_ms, changed_ms + LATER_MS)))
        broker.turn()


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_open_delay_keeps_its_file_until_it_is_delivered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = Harness(tmp_path, **CALM)
    broker.send("TopicA", b"later", DELAY="4")
    fill(broker)
    clean(broker)
    clean(broker)
    assert broker.node.store.log.start == 0
    assert lines(caplog, logging.WARNING) == ["retention: an expired file stays, it is needed by delayed messages"]
    broker.pass_time(31_000)
    with caplog.at_level(logging.INFO):
        clean(broker)
    size = broker.config.segment_bytes
    gone = range(0, broker.node.store.log.start, size)
    said = [line for line in lines(caplog, logging.INFO) if "retention" in line]
    assert said == [f"retention: deleted log=[{start},{start + size})" for start in gone]
    assert len(said) > 1


def test_open_delay_goes_when_the_disk_limit_forces_it_which_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Harness(tmp_path, delete_when="23", disk_full_ratio=1.0)
    broker.send("TopicA", b"later", DELAY="18")
    fill(broker)
    monkeypatch.setattr(broker.disk, "usage", lambda: DiskUsage(100, 13))
    clean(broker)
    size = broker.config.segment_bytes
    assert broker.node.store.log.start > 0
    assert lines(caplog, logging.WARNING)[0] == (
        f"retention: deleted log=[0,{size}) although needed by delayed messages: the disk is too full"
    )
