"""Single requests to a broker."""

from __future__ import annotations

import pytest

from tandemq.load import LoadError
from tandemq.load.wire.probe import max_offset
from tandemq.load.wire.sockets import connect, parse_address
from tests.unit.load.fake_broker import FakeBroker, running


def test_broker_reports_the_end_of_a_queue() -> None:
    with running(FakeBroker(queue_count=2)) as broker:
        broker.fill(3, b"abc")
        with connect(broker.address) as sock:
            assert max_offset(sock, "t", 1) == 3


@pytest.mark.parametrize("text", ["host", "host:", ":x", "1.2.3.4:-1"])
def test_malformed_address_is_refused(text: str) -> None:
    with pytest.raises(LoadError, match="not an address"):
        parse_address(text)
