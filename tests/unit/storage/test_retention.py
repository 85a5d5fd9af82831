"""Which log files may go."""

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
    """Files of 100 bytes, oldest first, by how many hours ago they were written last."""
    return [LogSegment(at * 100, at * 100 + 100, NOW_MS - age * HOUR_MS) for at, age in enumerate(ages_h)]


def usage(percent: int) -> DiskUsage:
    return DiskUsage(100, 100 - percent)


class Case(NamedTuple):
    """One row of the table: four files of which two have expired, at a time when they may go, unless told."""

    name: str
    deleted: int
    """How many of the oldest go."""
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
    Case("the hour of deleteWhen: what has expired goes", 2),
    Case("another hour: nothing goes", 0, hour=5),
    Case("another hour, an operator asks", 2, hour=5, asked=True),
    Case("another hour, the disk is at the used ratio", 0, hour=5, percent=75),
    Case("another hour, the disk is above the used ratio", 2, hour=5, percent=76),
    Case("nothing has expired, whatever the hour", 0, ages_h=(71, 70, 0)),
    Case("nothing has expired, above the used ratio", 0, ages_h=(71, 70, 0), percent=80),
    Case("a young file keeps the older ones behind it", 1, ages_h=(100, 1, 100, 0)),
    Case("the last file never goes", 1, ages_h=(100, 100)),
    Case("the last file never goes, however full the disk", 0, ages_h=(100,), percent=99, is_full=True),
    Case("no file", 0, ages_h=()),
    Case("at the force ratio nothing is forced", 0, ages_h=(1, 1, 0), percent=85),
    Case("above the force ratio the oldest goes, whatever its age", 1, ages_h=(1, 1, 0), percent=86),
    Case("above the force ratio one goes at a time", 1, percent=86),
    Case("switched off, nothing is forced", 0, ages_h=(1, 1, 0), percent=95, force_enable=False, is_full=True),
    Case("switched off, what has expired goes", 2, percent=95, force_enable=False, is_full=True),
    Case("at the full ratio messages are taken", 1, percent=90),
    Case("above the full ratio no message is taken", 1, percent=91, is_full=True),
    Case("needed from within the first file", 0, needed=(("slave 1", 99),), kept_for="slave 1"),
    Case("needed from the second file on", 1, needed=(("slave 1", 100),), kept_for="slave 1"),
    Case("needed behind what has expired", 2, needed=(("slave 1", 200),)),
    Case(
        "all who need it are named",
        0,
        needed=(("slave 1", 5), ("slave 2", 6), ("slave 3", 300)),
        kept_for="slave 1, slave 2",
    ),
    Case("a delay needs the second file", 1, needed=(("delayed messages", 120),), kept_for="delayed messages"),
    Case("nobody is named for what stays anyway", 0, needed=(("slave 1", 0),), hour=5),
    Case("an operator who asks takes nothing that is needed", 0, needed=BOTH, hour=5, asked=True, kept_for="slave 1"),
    Case("above the used ratio what is needed stays", 0, needed=BOTH, percent=80, kept_for="slave 1"),
    Case("forced although needed", 1, needed=BOTH, percent=86, forced="slave 1"),
    Case(
        "forced although two need it", 1, needed=(("slave 2", 0), ("slave 1", 0)), percent=86, forced="slave 1, slave 2"
    ),
    Case("forced, and nobody needed it", 1, needed=(("slave 1", 100),), percent=86),
    Case(
        "needed, and forcing is switched off",
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


def test_files_go_a_few_at_a_time() -> None:
    files = segments(*[100] * 30)
    found = decide(CONFIG, files, usage(10), wall_ms=NOW_MS, hour=4, needed={})
    assert found.delete == files[:FILES_PER_ROUND]


@pytest.mark.parametrize(("text", "hours"), [("04", {4}), ("04;16", {4, 16}), (" 0 ; 23 ;", {0, 23}), ("", set())])
def test_hours(text: str, hours: set[int]) -> None:
    assert parse_hours(text) == hours


@pytest.mark.parametrize("text", ["24", "-1", "4;x"])
def test_hours_that_are_none(text: str) -> None:
    with pytest.raises(ValueError):  # int's own words, or ours
        parse_hours(text)
