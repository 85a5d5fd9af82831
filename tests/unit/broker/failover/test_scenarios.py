"""The scenarios of failover, told with real brokers: every script in `scripts` says what members and clients see.

`pytest tests/unit/broker/failover/test_scenarios.py --rewrite` writes the transcripts anew; the diff is then read.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scripts.transcript import check
from tests.spec import spec
from tests.unit.broker.failover.story import Story

SCRIPTS = Path(__file__).parent / "scripts"
Tell = Callable[[str], None]


@pytest.fixture
def tell(rewrites: bool, tmp_path: Path) -> Tell:
    return lambda name: check(SCRIPTS / f"{name}.txt", Story(tmp_path).run, rewrites=rewrites)


# Reading from the slave.


@spec("F10", "F14", "F20", "F22", "F23", "F24", "F25", "F26")
def test_master_dies_and_gets_reading_back_with_the_offsets(tell: Tell) -> None:
    tell("hand_back")


@spec("F25", "F26", "M07")
def test_hand_back_that_is_given_up_lets_the_slave_read_on(tell: Tell) -> None:
    tell("hand_back_given_up")


@spec("F27")
def test_slave_that_comes_late_locks_no_master_out(tell: Tell) -> None:
    tell("scenario_1")


@spec("F28")
def test_master_without_a_slave_never_locks_itself_out(tell: Tell) -> None:
    tell("scenario_2")


@spec("F29")
def test_master_whose_slave_was_never_connected_goes_on(tell: Tell) -> None:
    tell("scenario_3")


@spec("F30", "F33")
def test_master_whose_slave_is_gone_goes_on_or_waits_for_an_operator(tell: Tell) -> None:
    tell("scenario_4")


@spec("F21", "F33")
def test_reader_dies_and_the_record_remembers_who_has_the_offsets(tell: Tell) -> None:
    tell("reader_dies")


@spec("F16", "F24", "F09")
def test_lonely_master_refuses_everything_before_its_slave_reads(tell: Tell) -> None:
    tell("lonely_master")


@spec("F15", "F18")
def test_master_that_lost_the_registry_and_has_its_slave_changes_nothing(tell: Tell) -> None:
    tell("master_loses_registry")


@spec("F18")
def test_slave_without_registry_never_reads(tell: Tell) -> None:
    tell("slave_without_registry")


@spec("F17")
def test_slave_reads_only_if_all_holds_in_every_look(tell: Tell) -> None:
    tell("conditions_flap")


@spec("F13", "F19")
def test_reading_that_is_forbidden_is_not_taken_over(tell: Tell) -> None:
    tell("reading_forbidden")


# Elections.


@spec("R11", "F10")
def test_member_in_sync_is_elected_and_the_old_master_follows(tell: Tell) -> None:
    tell("elected")


@spec("R11", "F04")
def test_old_master_cuts_what_was_never_acknowledged(tell: Tell) -> None:
    tell("elected_returns")


@spec("R11", "F16")
def test_lonely_elected_master_refuses_everything_before_another_is_elected(tell: Tell) -> None:
    tell("elected_lonely")


@spec("V17", "V18", "V19")
def test_operator_switches_the_master(tell: Tell) -> None:
    tell("switched")


@spec("R11")
def test_operator_forces_a_member_not_in_sync_and_is_told_the_price(tell: Tell) -> None:
    tell("forced")


def test_every_script_is_told() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [script.stem for script in SCRIPTS.glob("*.txt") if f'tell("{script.stem}")' not in source] == []
