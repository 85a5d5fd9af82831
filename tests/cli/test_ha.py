"""Replication is shown; twins are compared while they run, and a twin that differs is found to the byte."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemq import Message
from tandemq.cli import ha
from tandemq.client.blocking import BlockingProducer
from tandemq.run.local import LocalCluster
from tests.cli.conftest import Run

Ask = Callable[..., Any]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[LocalCluster]:
    """A pair of its own, with some messages, to be damaged."""
    with LocalCluster(tmp_path, slaves=1) as running:
        with BlockingProducer(running.name_servers, group="g") as producer:
            producer.send_batch([Message("T", bytes(5_000)) for _ in range(500)])
        running.wait_in_sync()
        yield running


def rows_of(run: Run, pair: LocalCluster, command: str, code: int = 0) -> Any:
    return json.loads(run("ha", command, "--json", "-n", pair.name_servers, code=code).stdout)


def test_status_shows_roles_lag_and_ages(run: Run, pair: LocalCluster) -> None:
    master, slave = rows_of(run, pair, "status")
    assert (master["role"], master["slavesInSync"], master["lagBytes"]) == ("SYNC_MASTER", 1, None)
    assert (slave["role"], slave["state"], slave["lagBytes"]) == ("SLAVE", "copies", 0)
    assert slave["logEnd"] == master["logEnd"] > 500 * 5_000
    assert 0 <= slave["lastReadS"] < 20
    assert 0 <= slave["lastWriteS"] < 20
    (link,) = master["slaves"]
    assert (link["slave"], link["behindBytes"], link["inSync"]) == (1, 0, True)
    assert link["ackedOffset"] == master["logEnd"]
    assert 0 <= link["lastReadS"] < 20
    assert 0 <= link["lastWriteS"] < 20
    text = run("ha", "status", "-n", pair.name_servers).stdout
    assert "As the masters see their slaves" in text
    assert link["address"] in text


def test_status_of_a_slave_without_its_master(run: Run, pair: LocalCluster) -> None:
    pair.broker().kill()
    slave_node = pair.broker(broker_id=1).node
    pair.wait_until(lambda: slave_node.replication.slave is not None and slave_node.replication.slave.session is None)
    rows = {row["id"]: row for row in rows_of(run, pair, "status")}
    assert rows[1]["state"] == "has no link to its master"
    assert rows[1]["lagBytes"] is None


def test_equal_twins_are_equal(run: Run, pair: LocalCluster) -> None:
    [found] = rows_of(run, pair, "verify")
    assert (found["equal"], found["differsAt"]) == (True, None)
    assert found["bytes"] == pair.broker().node.store.log.written_end


@pytest.mark.parametrize("at", [0, 1, 1_234_567, 2_500_000])
def test_twin_that_differs_is_found_to_the_byte(run: Run, pair: LocalCluster, at: int) -> None:
    path = pair.broker(broker_id=1).store / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    [found] = rows_of(run, pair, "verify", code=3)
    assert (found["equal"], found["differsAt"]) == (False, at)


def test_comparison_can_begin_behind_a_difference(run: Run, pair: LocalCluster) -> None:
    path = pair.broker(broker_id=1).store / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:
        file.write(b"X")
    found = ha.compare(pair.address, pair.broker(broker_id=1).address, 1)
    assert (found.start, found.differs_at) == (1, None)


def test_group_without_a_slave_is_neither_equal_nor_different(run: Run, tandemq_broker: LocalCluster) -> None:
    [found] = rows_of(run, tandemq_broker, "verify")
    assert found["equal"] is None
