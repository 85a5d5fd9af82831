"""Half messages that arrive while a new master reads its open transactions, slice by slice."""

from pathlib import Path

import pytest

from tandemq.broker.features.transactions import loading
from tandemq.broker.features.transactions.service import Transactions
from tests.spec import spec
from tests.unit.broker.features.transactions.producer import COMMIT, GROUP, OK, delivered, end, half, ready
from tests.unit.broker.features.waiting_tables import open_transactions


@spec("G11")
def test_half_messages_that_arrive_during_the_reading_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a run of chaos: those behind the part that was read could not be ended, and were not checked."""
    broker = ready(tmp_path)
    half(broker, b"first", key="first")
    for _ in range(60):
        broker.send("TopicA")
    monkeypatch.setattr(loading, "SLICE_RECORDS", 4)
    broker = broker.restart(clean=False)
    broker.heartbeat("", producers=[GROUP])
    keys = ["first"]
    while broker.node.features.find(Transactions).table is None:
        keys.append(f"K{len(keys)}")
        half(broker, keys[-1].encode(), key=keys[-1])
        broker.pass_time(1)
    assert len(keys) > 10, "the reading takes several turns"
    assert list(open_transactions(broker).entries) == list(range(len(keys)))
    assert [end(broker, at, COMMIT, key=key).code for at, key in enumerate(keys)] == [OK] * len(keys)
    assert {message.body for message in delivered(broker)} >= {b"first"}
    assert not open_transactions(broker).entries
