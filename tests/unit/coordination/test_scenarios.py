"""Failover scenarios with real members: the scripts beside this file contain commands and expected events.

`pytest tests/unit/coordination/test_scenarios.py --rewrite` updates the transcripts; then review the diff.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scripts.transcript import check
from tests.spec import spec
from tests.unit.coordination.script import Script

SCRIPTS = Path(__file__).parent / "scripts"
RunScript = Callable[[str], None]


@pytest.fixture
def run_script(rewrites: bool) -> RunScript:
    return lambda name: check(SCRIPTS / f"{name}.txt", Script().run, rewrites=rewrites)


@spec("F14", "F20", "F22", "F25")
def test_master_dies_and_takes_reading_back(run_script: RunScript) -> None:
    run_script("master_dies")


@spec("F15", "F18")
def test_master_without_registry_serves_while_its_slave_grants_a_lease(run_script: RunScript) -> None:
    run_script("master_loses_registry")


@spec("F16", "F24", "F09")
def test_isolated_master_gives_up_all_permissions(run_script: RunScript) -> None:
    run_script("lonely_master")


@spec("F17")
def test_conditions_must_hold_in_every_check(run_script: RunScript) -> None:
    run_script("conditions_flap")


@spec("F18")
def test_slave_without_registry_never_takes_over(run_script: RunScript) -> None:
    run_script("slave_without_registry")


@spec("F13", "F19")
def test_reading_is_not_taken_over_without_permission(run_script: RunScript) -> None:
    run_script("reading_forbidden")


@spec("F21", "F30")
def test_dead_reader_stays_in_the_record(run_script: RunScript) -> None:
    run_script("reader_dies")


@spec("F27", "F29")
def test_slave_that_never_connected_does_not_block_the_master(run_script: RunScript) -> None:
    run_script("scenario_1")


@spec("F28")
def test_group_of_one_is_never_isolated(run_script: RunScript) -> None:
    run_script("scenario_2")


@spec("F30")
def test_slave_gone_before_or_after_it_took_over(run_script: RunScript) -> None:
    run_script("scenario_4")


@spec("R11")
def test_member_in_sync_is_elected(run_script: RunScript) -> None:
    run_script("elected")


@spec("V17", "V18", "V19")
def test_operator_switches_the_master(run_script: RunScript) -> None:
    run_script("switched")


def test_operator_forces_a_member_not_in_sync(run_script: RunScript) -> None:
    run_script("forced")


def test_force_of_the_shorter_log_warns_of_the_longer_one(run_script: RunScript) -> None:
    run_script("forced_the_shorter")


def test_every_script_is_used() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [script.stem for script in SCRIPTS.glob("*.txt") if f'run_script("{script.stem}")' not in source] == []
