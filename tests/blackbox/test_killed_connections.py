"""What clients see of their connections when a broker is killed, and when it is stopped."""

import pytest

from tandemq.model.codes import ResponseCode
from tests.blackbox.pair import Start
from tests.blackbox.programs import Caller
from tests.spec import spec


@spec("F05")
def test_killed_broker_resets_connections_so_that_java_clients_fail_requests_in_flight(start: Start) -> None:
    """A Java client of 4.9 fails them only after a reset: an orderly end leaves a held pull waiting for 30 s."""
    broker = start("a")
    with Caller(broker.port) as caller:
        assert caller.send(b"one") == ResponseCode.SUCCESS
        broker.kill()
        with pytest.raises(ConnectionResetError):
            caller.read_end()


def test_stopped_broker_ends_connections_in_order(start: Start) -> None:
    broker = start("a")
    with Caller(broker.port) as caller:
        assert caller.send(b"one") == ResponseCode.SUCCESS
        assert broker.stop() == 0
        assert caller.read_end() == b""
