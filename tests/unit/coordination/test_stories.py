"""The scenarios of failover, told with real members: every script beside this file says what happens.

`pytest tests/unit/coordination/test_stories.py --rewrite` writes the transcripts anew; the diff is then read.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scripts.transcript import check
from tests.spec import spec
from tests.unit.coordination.story import Story

SCRIPTS = Path(__file__).parent / "scripts"
Tell = Callable[[str], None]


@pytest.fixture
def tell(rewrites: bool) -> Tell:
    return lambda name: check(SCRIPTS / f"{name}.txt", Story().run, rewrites=rewrites)


@spec("F14", "F20", "F22", "F25")
def test_master_dies_and_gets_reading_back(tell: Tell) -> None:
    tell("master_dies")


@spec("F15", "F18")
def test_master_without_registry_goes_on_while_it_has_its_slave(tell: Tell) -> None:
    tell("master_loses_registry")


@spec("F16", "F24", "F09")
def test_lonely_master_gives_everything_up(tell: Tell) -> None:
    tell("lonely_master")


@spec("F17")
def test_conditions_must_hold_in_every_look(tell: Tell) -> None:
    tell("conditions_flap")


@spec("F18")
def test_slave_without_registry_never_takes_over(tell: Tell) -> None:
    tell("slave_without_registry")


@spec("F13", "F19")
def test_reading_that_is_forbidden_is_not_taken_over(tell: Tell) -> None:
    tell("reading_forbidden")


@spec("F21", "F30")
def test_reader_dies_and_the_record_remembers_it(tell: Tell) -> None:
    tell("reader_dies")


@spec("F27", "F29")
def test_slave_that_never_came_locks_nobody_out(tell: Tell) -> None:
    tell("scenario_1")


@spec("F28")
def test_group_of_one_is_never_lonely(tell: Tell) -> None:
    tell("scenario_2")


@spec("F30")
def test_slave_gone_before_or_after_it_took_over(tell: Tell) -> None:
    tell("scenario_4")


@spec("R11")
def test_member_in_sync_is_elected(tell: Tell) -> None:
    tell("elected")


@spec("V17", "V18", "V19")
def test_operator_switches_the_master(tell: Tell) -> None:
    tell("switched")


def test_operator_forces_a_member_not_in_sync(tell: Tell) -> None:
    tell("forced")


def test_operator_who_forces_the_shorter_log_is_told_of_the_longer(tell: Tell) -> None:
    tell("forced_the_shorter")


def test_every_script_is_told() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [script.stem for script in SCRIPTS.glob("*.txt") if f'tell("{script.stem}")' not in source] == []
