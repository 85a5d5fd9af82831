"""Metrics of transactions."""

from pathlib import Path
from random import Random

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.broker.features.transactions.families import TransactionFamilies
from tandemq.broker.features.transactions.service import Transactions
from tandemq.errors import DiskFull
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.topic import HALF_TOPIC
from tandemq.telemetry.families import Batch
from tests.spec import spec
from tests.unit.broker.features.transactions.producer import COMMIT, ROLLBACK, at_offset, checking, end, half, ready
from tests.unit.broker.harness import Harness


def families(broker: Harness) -> dict[str, Batch]:
    batches = TransactionFamilies(broker.node.features.find(Transactions)).collect(broker.now)
    return {batch.family.name: batch for batch in batches if batch is not None}


def values(broker: Harness) -> dict[str, dict[tuple[str, ...], float]]:
    return {name: dict(batch.values) for name, batch in families(broker).items()}


@spec("O01")
def test_open_committed_and_rolled_back_transactions_are_counted_by_topic(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    for number, topic in enumerate(("TopicA", "TopicA", "TopicA", "TopicB")):
        half(broker, key=f"K{number}", topic=topic)
    assert values(broker)["rocketmq_half_messages"] == {("TopicA",): 3, ("TopicB",): 1}
    end(broker, 0, COMMIT, key="K0")
    end(broker, 1, ROLLBACK, key="K1")
    end(broker, 0, COMMIT, key="K0")  # repeated: answered, and not counted
    broker.pass_time(1_000)
    found = values(broker)
    assert found["rocketmq_half_messages"] == {("TopicA",): 1, ("TopicB",): 1}
    assert found["rocketmq_commit_messages_total"] == {("TopicA",): 1}
    assert found["rocketmq_rollback_messages_total"] == {("TopicA",): 1}


def test_deleted_topic_is_forgotten_unless_transactions_of_it_are_open(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    for number, topic in enumerate(("TopicA", "TopicA", "TopicB", "TopicB")):
        half(broker, key=f"K{number}", topic=topic)
    for number, outcome in enumerate((COMMIT, ROLLBACK, ROLLBACK)):
        end(broker, number, outcome, key=f"K{number}")
    broker.pass_time(1_000)
    for topic in ("TopicA", "TopicB"):
        broker.create_topic(topic)
        assert broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == ResponseCode.SUCCESS
    found = values(broker)
    assert found["rocketmq_commit_messages_total"] == found["rocketmq_rollback_messages_total"] == {}
    assert found["rocketmq_half_messages"] == {("TopicB",): 1}
    assert set(broker.node.features.find(Transactions).metrics.as_json()["transactionCount"]) == {"TopicB"}
    end(broker, 3, COMMIT, key="K3")
    assert values(broker)["rocketmq_commit_messages_total"] == {}
    assert broker.node.features.find(Transactions).metrics.as_json()["transactionCount"] == {}
    half(broker, key="K4", topic="TopicA")
    assert values(broker)["rocketmq_half_messages"] == {("TopicA",): 1}


@pytest.mark.parametrize(("age_s", "bucket"), [(3, 0), (5, 0), (61, 2), (90_000, 6)])
def test_latency_of_a_commit_is_the_age_of_the_half_message_in_seconds(age_s: int, bucket: int, tmp_path: Path) -> None:
    broker = ready(tmp_path)
    half(broker)
    born_ms = at_offset(broker, HALF_TOPIC, 0).born_ms
    broker.now.wall_ms = born_ms + 1_000 * age_s + 900
    end(broker, 0, COMMIT)
    batch = families(broker)["rocketmq_finish_message_latency_milliseconds"]
    assert batch.family.bounds == (5, 60, 600, 3_600, 43_200, 86_400)
    ages = batch.distributions["TopicA",]
    assert ages.sum == age_s
    assert [*ages.counts].index(1) == bucket


def test_end_that_is_not_written_is_not_counted() -> None:
    disk = SimDisk(Random(1))
    broker = ready(disk)
    half(broker)
    disk.fail("pwrite", times=1, error=DiskFull, prefix="commitlog")
    end(broker, 0, ROLLBACK)
    assert values(broker)["rocketmq_rollback_messages_total"] == {}
    disk.heal()
    broker.pass_time(25_000)
    assert end(broker, 0, COMMIT).code == ResponseCode.SUCCESS
    assert values(broker)["rocketmq_commit_messages_total"] == {("TopicA",): 1}


def test_checks_and_given_up_transactions_are_counted(tmp_path: Path) -> None:
    broker = checking(tmp_path, transaction_checks_max=2)
    half(broker)
    broker.pass_time(40_000)
    found = values(broker)
    assert found["tandemq_transaction_checks_total"][()] == 2
    assert found["tandemq_transactions_given_up_total"][()] == 1
    assert found["rocketmq_half_messages"] == {}


def test_slave_does_not_know_what_is_open(tmp_path: Path) -> None:
    broker = Harness(tmp_path, role="SLAVE", broker_id=1)
    broker.pass_time(100)
    assert "rocketmq_half_messages" not in values(broker)
