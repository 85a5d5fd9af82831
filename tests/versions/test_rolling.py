"""Groups are upgraded from the last release and downgraded again, under load, while their members are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemq.coordination.registry.records import Mode
from tests.interop.ensembles import ZOOKEEPER_TICK_MS
from tests.interop.zookeeper import ZooKeeper
from tests.versions.rolling import Outcome, roll
from tests.versions.world import TREE, Version

pytestmark = pytest.mark.timeout(1_500)
SENT_MIN = 50


def check(outcome: Outcome) -> None:
    assert outcome.violations == [], outcome.steps
    assert outcome.failed == [], outcome.errors
    assert outcome.lasting["sent"] > SENT_MIN
    assert outcome.lasting["ended"] == []
    assert outcome.lasting["missing"] == {"push": [], "pop": []}


def test_group_that_elects_is_upgraded_without_a_failed_send(tmp_path: Path, old: Version) -> None:
    outcome = roll(tmp_path, Mode.ELECT, [old, TREE], kills=False)
    check(outcome)
    assert outcome.lasting["errors"] == []


@pytest.mark.slow
@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_fixed_roles_are_upgraded_and_downgraded(tmp_path: Path, old: Version, role: str) -> None:
    check(roll(tmp_path, Mode.STATIC, [old, TREE, old], settings={"brokerRole": role}))


@pytest.mark.slow
def test_group_whose_slave_serves_reads_is_upgraded_and_downgraded(tmp_path: Path, old: Version) -> None:
    check(roll(tmp_path, Mode.SLAVE_CONSUME, [old, TREE, old]))


@pytest.mark.slow
def test_group_of_three_that_elects_is_upgraded_and_downgraded(tmp_path: Path, old: Version) -> None:
    check(roll(tmp_path, Mode.ELECT, [old, TREE, old], members=3))


@pytest.mark.slow
def test_group_on_zookeeper_is_upgraded_and_downgraded(tmp_path: Path, old: Version) -> None:
    with ZooKeeper(tmp_path / "zookeeper", tick_ms=ZOOKEEPER_TICK_MS) as zookeeper:
        zookeeper.start()
        address = f"zookeeper://{zookeeper.address}"
        check(roll(tmp_path, Mode.ELECT, [old, TREE, old], registry=address))
