"""Retention: which log files are deleted."""

from typing import NamedTuple

import pytest

from tandemq.boundary import DiskUsage
from tandemq.storage.retention import FILES_PER_ROUND, Decision, LogSegment, RetentionConfig, decide, parse_hours

HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS
CONFIG = RetentionConfig(
    72 * HOUR_MS, frozenset({4}), used_ratio=0.75, force_ratio=0.85, full_ratio=0.90, force_enable=True
)


def segments(*ages_h: int) -> list[LogSegment]:
    """Return files of 100 bytes, oldest first, last modified this many hours ago."""
    return [LogSegment(at * 100, at * 100 + 100, NOW_MS - age * HOUR_MS) for at, age in enumerate(ages_h)]


def usage(percent: int) -> DiskUsage:
    return DiskUsage(100, 100 - percent)


class Case(NamedTuple):
    """One case. By default four files, two of them expired, at an hour at which they may be deleted."""

    name: str
    deleted: int
    """Number of files deleted, the oldest ones."""
    kept_for: str = ""
    forced: str = ""
    is_full: bool = False
    ages_h: tuple[int, ...] = (100, 72, 71, 0)
    hour: int = 4
    percent: int = 10
    needed: tuple[tuple[str, int], ...] = ()
    asked: bool = False
    force_enable: bool = True


BOTH = (("slave 1", 50), ("delayed messages", 120))
CASES = [
    Case("the hour of deleteWhen: expired files are deleted", 2),
    Case("another hour: nothing is deleted", 0, hour=5),
    Case("another hour, requested by an operator", 2, hour=5, asked=True),
    Case("another hour, the disk is at the used ratio", 0, hour=5, percent=75),
    Case("another hour, the disk is above the used ratio", 2, hour=5, percent=76),
    Case("no file has expired, any hour", 0, ages_h=(71, 70, 0)),
    Case("no file has expired, above the used ratio", 0, ages_h=(71, 70, 0), percent=80),
    Case("a file that has not expired keeps the files after it", 1, ages_h=(100, 1, 100, 0)),
    Case("the last file is never deleted", 1, ages_h=(100, 100)),
    Case("the last file is not deleted on a full disk either", 0, ages_h=(100,), percent=99, is_full=True),
    Case("no file", 0, ages_h=()),
    Case("at the force ratio nothing is forced", 0, ages_h=(1, 1, 0), percent=85),
    Case("above the force ratio the oldest file is deleted at any age", 1, ages_h=(1, 1, 0), percent=86),
    Case("above the force ratio one file is deleted at a time", 1, percent=86),
    Case("force disabled, nothing is forced", 0, ages_h=(1, 1, 0), percent=95, force_enable=False, is_full=True),
    Case("force disabled, expired files are deleted", 2, percent=95, force_enable=False, is_full=True),
    Case("at the full ratio messages are accepted", 1, percent=90),
    Case("above the full ratio no message is accepted", 1, percent=91, is_full=True),
    Case("needed from within the first file", 0, needed=(("slave 1", 99),), kept_for="slave 1"),
    Case("needed from the second file on", 1, needed=(("slave 1", 100),), kept_for="slave 1"),
    Case("needed after the expired files", 2, needed=(("slave 1", 200),)),
    Case(
        "all users of a file are named",
        0,
        needed=(("slave 1", 5), ("slave 2", 6), ("slave 3", 300)),
        kept_for="slave 1, slave 2",
    ),
    Case("delayed messages need the second file", 1, needed=(("delayed messages", 120),), kept_for="delayed messages"),
    Case("no user is named for a file that stays anyway", 0, needed=(("slave 1", 0),), hour=5),
    Case(
        "a needed file stays in spite of an operator's request", 0, needed=BOTH, hour=5, asked=True, kept_for="slave 1"
    ),
    Case("above the used ratio a needed file stays", 0, needed=BOTH, percent=80, kept_for="slave 1"),
    Case("forced although needed", 1, needed=BOTH, percent=86, forced="slave 1"),
    Case(
        "forced although two need it", 1, needed=(("slave 2", 0), ("slave 1", 0)), percent=86, forced="slave 1, slave 2"
    ),
    Case("forced, and not needed", 1, needed=(("slave 1", 100),), percent=86),
    Case(
        "needed, and force is disabled",
        0,
        needed=BOTH,
        percent=95,
        force_enable=False,
        is_full=True,
        kept_for="slave 1",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_decision(case: Case) -> None:
    config = RetentionConfig(
        CONFIG.reserved_ms,
        CONFIG.delete_hours,
        CONFIG.used_ratio,
        CONFIG.force_ratio,
        CONFIG.full_ratio,
        case.force_enable,
    )
    files = segments(*case.ages_h)
    found = decide(
        config, files, usage(case.percent), wall_ms=NOW_MS, hour=case.hour, needed=dict(case.needed), asked=case.asked
    )
    assert found == Decision(files[: case.deleted], case.kept_for, case.forced, case.is_full)


def test_number_of_deleted_files_per_round_is_limited() -> None:
    files = segments(*[100] * 30)
    found = decide(CONFIG, files, usage(10), wall_ms=NOW_MS, hour=4, needed={})
    assert found.delete == files[:FILES_PER_ROUND]


@pytest.mark.parametrize(("text", "hours"), [("04", {4}), ("04;16", {4, 16}), (" 0 ; 23 ;", {0, 23}), ("", set())])
def test_hours(text: str, hours: set[int]) -> None:
    assert parse_hours(text) == hours


@pytest.mark.parametrize("text", ["24", "-1", "4;x"])
def test_invalid_hours_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # the message is int's or parse_hours'
        parse_hours(text)
