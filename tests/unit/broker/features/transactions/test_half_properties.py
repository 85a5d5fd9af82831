"""Properties of half messages: those that checks add need room, and those of an earlier transaction do not count."""

from pathlib import Path

import pytest

from tandemq.broker.features.transactions.service import Transactions
from tandemq.codec.record.record import PROPERTIES_BYTES_MAX
from tandemq.model.codes import ResponseCode
from tandemq.model.topic import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from tests.spec import spec
from tests.unit.broker.features.transactions.producer import (
    COMMIT,
    OK,
    at_offset,
    bodies,
    checking,
    delivered,
    end,
    half,
)

SEGMENT_BYTES = 1 << 20


def filled(count: int, **properties: str) -> dict[str, str]:
    """Return properties of a send; encoded they take `count` bytes."""
    found = {"TRAN_MSG": "true", "PGROUP": "tx", "UNIQ_KEY": "K1"} | properties
    size = sum(len(name) + len(value) + 2 for name, value in found.items())
    return properties | {"X": "x" * (count - size - 3)}


@spec("G09")
@pytest.mark.parametrize("room", range(60, 320, 20))
def test_half_message_that_is_accepted_has_room_for_its_checks(tmp_path: Path, room: int) -> None:
    """One that is too long is refused: nobody could check it or give it up."""
    broker = checking(tmp_path, segment_bytes=SEGMENT_BYTES, transaction_checks_max=2)
    half(broker, key="K0")  # creates the topics, so that the engine takes the next one
    end(broker, 0, COMMIT, key="K0")
    answer = half(broker, b"body", "K1", "TopicA", **filled(PROPERTIES_BYTES_MAX - room))
    if answer.code != OK:
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "properties" in str(answer.remark)
        assert len(bodies(broker, HALF_TOPIC)) == 1
        return
    broker.pass_time(30_000)
    transactions = broker.node.features.find(Transactions)
    assert (transactions.checks, transactions.given_up) == (2, 1)
    assert bodies(broker, CHECK_MAX_TIME_TOPIC) == [b"body"]


def test_room_that_checks_need_is_small(tmp_path: Path) -> None:
    broker = checking(tmp_path, segment_bytes=SEGMENT_BYTES)
    assert half(broker, b"body", "K1", "TopicA", **filled(PROPERTIES_BYTES_MAX - 320)).code == OK


@spec("G09", "G11")
def test_properties_of_an_earlier_transaction_do_not_count(tmp_path: Path) -> None:
    """An application passes on a message that it got from a transaction, with all its properties, in another one."""
    broker = checking(tmp_path, transaction_checks_max=2)
    half(broker, key="K1")
    broker.pass_time(12_000)
    end(broker, 1, COMMIT, key="K1")
    (message,) = delivered(broker)
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
    first = len(bodies(broker, HALF_TOPIC))
    half(broker, b"body", "K2", "TopicA", **(message.properties | {"UNIQ_KEY": "K2"}))
    stored = at_offset(broker, HALF_TOPIC, first)
    assert stored.properties.keys().isdisjoint({"TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET"})
    assert (stored.properties["__transactionId__"], stored.properties["REAL_TOPIC"]) == ("K2", "TopicA")
    broker = broker.restart(clean=False)
    broker.heartbeat("", producers=["tx"])
    broker.pass_time(9_000)
    assert broker.node.features.find(Transactions).checks >= 1
    assert broker.node.features.find(Transactions).given_up == 0
