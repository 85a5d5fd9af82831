"""State of a broker, as benchmarks ask for it."""

from __future__ import annotations

import threading

import pytest

from bench.probe import first_acknowledgement, first_record_end, log_end, wait_for_port
from bench.records import body_position
from tandemq.load import LoadError, SendShape
from tandemq.load.wire.sockets import connect
from tests.unit.load.fake_broker import FakeBroker, record, running


def test_first_acknowledgement_waits_until_sends_are_accepted() -> None:
    with running(FakeBroker(code=14)) as broker:

        def open_up() -> None:
            broker.code = 0

        timer = threading.Timer(0.2, open_up)
        timer.start()
        assert first_acknowledgement(broker.address, SendShape("t"), 10) >= 0.15
        timer.join()
    assert sum(map(len, broker.queues)) == 1


def test_first_acknowledgement_times_out_with_the_last_refusal() -> None:
    with running(FakeBroker(code=14)) as broker, pytest.raises(LoadError, match="last: code 14"):
        first_acknowledgement(broker.address, SendShape("t"), 0.2)


def test_waiting_for_a_closed_port_times_out() -> None:
    with pytest.raises(LoadError, match="no server listens"):
        wait_for_port("127.0.0.1:1", 0.05)


def test_broker_reports_the_end_of_its_log() -> None:
    with running(FakeBroker(queue_count=2)) as broker:
        broker.fill(3, b"abc")
        with connect(broker.address) as sock:
            assert log_end(sock) == 6 * len(record(0, 0, 0, b"abc"))
        assert first_record_end(broker.address, "t", 2) == len(record(0, 0, 0, b"abc"))


def test_body_position_counts_the_hosts() -> None:
    data = bytearray(record(0, 0, 0, b"abc"))
    assert data[body_position(data, 0) :][:3] == b"abc"
    data[39] = 0x30
    assert body_position(data, 0) == 88 + 24
