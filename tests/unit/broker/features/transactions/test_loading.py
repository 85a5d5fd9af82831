"""Half messages that arrive while a new master reads its open transactions, slice by slice."""

from pathlib import Path

import pytest

from tandemq.broker.features.scrub.repair import Repairs
from tandemq.broker.features.transactions import loading
from tandemq.broker.features.transactions.service import Transactions
from tandemq.broker.kernel.log_queue import DOUBT_MS
from tandemq.model.codes import RequestCode
from tandemq.model.topic import OP_HALF_TOPIC
from tests.spec import spec
from tests.unit.broker.features.transactions.producer import (
    COMMIT,
    GROUP,
    OK,
    at_offset,
    checking,
    delivered,
    end,
    half,
    ready,
)
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


@pytest.mark.parametrize("is_repaired", [True, False])
def test_transaction_whose_end_may_be_damaged_is_not_checked_before_the_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_repaired: bool
) -> None:
    """Found by simulation seed 6000375: asked again, the producer committed a message a second time."""
    broker = checking(tmp_path)
    half(broker, b"one", key="A")
    assert end(broker, 0, COMMIT, key="A").code == OK
    half(broker, b"open", key="B")
    at = at_offset(broker, OP_HALF_TOPIC, 0).log_offset
    segment = next((tmp_path / "commitlog").iterdir())
    whole = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(at + 4)
        file.write(bytes(16))
    monkeypatch.setattr(Repairs, "_ask", lambda _self, _now: None)  # the replica does not answer yet
    broker.pass_time(1_500)
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (tmp_path / "config" / name).unlink(missing_ok=True)
    broker = broker.restart(clean=False)
    broker.heartbeat("", producers=[GROUP])
    broker.pass_time(DOUBT_MS // 2)
    assert broker.node.features.find(Transactions).table is None
    assert not broker.take_requests(RequestCode.CHECK_TRANSACTION_STATE)
    if is_repaired:
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(whole[at : at + 20])
        broker.node.kernel.damages.ranges.clear()
        broker.pass_time(6_000)
        assert len(open_transactions(broker).entries) == 1
    else:
        broker.pass_time(DOUBT_MS)
        assert open_transactions(broker).entries, "it is not waited for without end"
