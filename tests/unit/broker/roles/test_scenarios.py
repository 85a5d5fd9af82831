"""Scenarios of failover with brokers: every script in `scripts` records what members and clients see.

`pytest tests/unit/broker/roles/test_scenarios.py --rewrite` writes the transcripts again; review the diff.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scripts.transcript import check
from tests.spec import spec
from tests.unit.broker.roles.script import Script

SCRIPTS = Path(__file__).parent / "scripts"
RunScript = Callable[[str], None]


@pytest.fixture
def run_script(rewrites: bool, tmp_path: Path) -> RunScript:
    return lambda name: check(SCRIPTS / f"{name}.txt", Script(tmp_path).run, rewrites=rewrites)


# Reading from the slave.


@spec("F10", "F14", "F20", "F22", "F23", "F24", "F25", "F26")
def test_master_dies_and_takes_reads_back_with_the_offsets(run_script: RunScript) -> None:
    run_script("offset_handover")


@spec("F25", "F26", "M07")
def test_slave_continues_to_serve_reads_after_an_aborted_handover(run_script: RunScript) -> None:
    run_script("offset_handover_aborted")


@spec("F42")
def test_master_returns_alone_after_the_reader_died(run_script: RunScript) -> None:
    run_script("reader_gone")


@spec("F27")
def test_slave_that_starts_late_does_not_stop_the_master(run_script: RunScript) -> None:
    run_script("scenario_1")


@spec("F28")
def test_master_without_a_slave_never_stops_serving(run_script: RunScript) -> None:
    run_script("scenario_2")


@spec("F29")
def test_master_whose_slave_was_never_connected_continues(run_script: RunScript) -> None:
    run_script("scenario_3")


@spec("F30", "F33")
def test_master_whose_slave_is_gone_continues_or_waits_for_an_operator(run_script: RunScript) -> None:
    run_script("scenario_4")


@spec("F21", "F33")
def test_reading_slave_dies_and_the_record_names_the_member_with_the_offsets(run_script: RunScript) -> None:
    run_script("reader_dies")


@spec("F16", "F24", "F09")
def test_isolated_master_refuses_all_requests_before_its_slave_serves_reads(run_script: RunScript) -> None:
    run_script("isolated_master")


@spec("F15", "F18")
def test_master_without_the_registry_continues_while_its_slave_is_connected(run_script: RunScript) -> None:
    run_script("master_loses_registry")


@spec("F18")
def test_slave_without_registry_never_serves_reads(run_script: RunScript) -> None:
    run_script("slave_without_registry")


@spec("F17")
def test_slave_serves_reads_only_if_all_conditions_hold_in_every_poll(run_script: RunScript) -> None:
    run_script("conditions_flap")


@spec("F13", "F19", "F40")
def test_forbidden_reading_is_not_taken_over(run_script: RunScript) -> None:
    run_script("reading_forbidden")


# Elections.


@spec("R11", "F10")
def test_member_in_sync_is_elected_and_the_old_master_follows(run_script: RunScript) -> None:
    run_script("elected")


@spec("R11", "F04")
def test_old_master_truncates_messages_that_were_never_acknowledged(run_script: RunScript) -> None:
    run_script("elected_returns")


@spec("R11", "F16")
def test_isolated_elected_master_refuses_all_requests_before_another_is_elected(run_script: RunScript) -> None:
    run_script("elected_isolated")


@spec("V17", "V18", "V19")
def test_operator_switches_the_master(run_script: RunScript) -> None:
    run_script("switched")


@spec("R11")
def test_operator_forces_a_member_not_in_sync_and_sees_the_loss(run_script: RunScript) -> None:
    run_script("forced")


def test_every_script_has_a_test() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [script.stem for script in SCRIPTS.glob("*.txt") if f'run_script("{script.stem}")' not in source] == []
