"""Scenarios of failover with brokers: every script in `scripts` records what members and clients see.

`pytest tests/unit/broker/failover/test_scenarios.py --rewrite` writes the transcripts again; review the diff.
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
def test_master_dies_and_takes_reads_back_with_the_offsets(tell: Tell) -> None:
    tell("hand_back")


@spec("F25", "F26", "M07")
def test_slave_continues_to_serve_reads_after_an_aborted_handover(tell: Tell) -> None:
    tell("hand_back_given_up")


@spec("F27")
def test_slave_that_starts_late_does_not_stop_the_master(tell: Tell) -> None:
    tell("scenario_1")


@spec("F28")
def test_master_without_a_slave_never_stops_serving(tell: Tell) -> None:
    tell("scenario_2")


@spec("F29")
def test_master_whose_slave_was_never_connected_continues(tell: Tell) -> None:
    tell("scenario_3")


@spec("F30", "F33")
def test_master_whose_slave_is_gone_continues_or_waits_for_an_operator(tell: Tell) -> None:
    tell("scenario_4")


@spec("F21", "F33")
def test_reading_slave_dies_and_the_record_names_the_member_with_the_offsets(tell: Tell) -> None:
    tell("reader_dies")


@spec("F16", "F24", "F09")
def test_isolated_master_refuses_all_requests_before_its_slave_serves_reads(tell: Tell) -> None:
    tell("lonely_master")


@spec("F15", "F18")
def test_master_without_the_registry_continues_while_its_slave_is_connected(tell: Tell) -> None:
    tell("master_loses_registry")


@spec("F18")
def test_slave_without_registry_never_serves_reads(tell: Tell) -> None:
    tell("slave_without_registry")


@spec("F17")
def test_slave_serves_reads_only_if_all_conditions_hold_in_every_poll(tell: Tell) -> None:
    tell("conditions_flap")


@spec("F13", "F19")
def test_forbidden_reading_is_not_taken_over(tell: Tell) -> None:
    tell("reading_forbidden")


# Elections.


@spec("R11", "F10")
def test_member_in_sync_is_elected_and_the_old_master_follows(tell: Tell) -> None:
    tell("elected")


@spec("R11", "F04")
def test_old_master_truncates_messages_that_were_never_acknowledged(tell: Tell) -> None:
    tell("elected_returns")


@spec("R11", "F16")
def test_isolated_elected_master_refuses_all_requests_before_another_is_elected(tell: Tell) -> None:
    tell("elected_lonely")


@spec("V17", "V18", "V19")
def test_operator_switches_the_master(tell: Tell) -> None:
    tell("switched")


@spec("R11")
def test_operator_forces_a_member_not_in_sync_and_sees_the_loss(tell: Tell) -> None:
    tell("forced")


def test_every_script_has_a_test() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [script.stem for script in SCRIPTS.glob("*.txt") if f'tell("{script.stem}")' not in source] == []
