"""Single requests to a broker."""

from __future__ import annotations

from tandemq.load.wire.probe import max_offset
from tandemq.load.wire.sockets import connect
from tests.unit.load.fake_broker import FakeBroker, running


def test_broker_reports_the_end_of_a_queue() -> None:
    with running(FakeBroker(queue_count=2)) as broker:
        broker.fill(3, b"abc")
        with connect(broker.address) as connection:
            assert max_offset(connection, "t", 1) == 3
