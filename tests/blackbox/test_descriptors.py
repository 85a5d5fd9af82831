"""Connections leave a broker's files the descriptors they need."""

import resource
import socket
from contextlib import ExitStack

import pytest

from tandemq.model.codes import ResponseCode
from tests.blackbox.pair import Start
from tests.blackbox.programs import Caller, Program, wait_until

LIMIT = 128
CLIENTS = LIMIT // 4
"""Half of the descriptors are for files, half of the others for replicas and members of the group."""
SHORT = "files need the other descriptors"


@pytest.fixture
def broker(start: Start) -> Program:
    broker = start("a")
    resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    return broker


def test_strangers_take_no_descriptor_that_the_store_needs(broker: Program) -> None:
    with Caller(broker.port) as caller:
        before = broker.descriptors()
        with ExitStack() as opened:
            for _ in range(2 * LIMIT):
                opened.enter_context(socket.create_connection(("127.0.0.1", broker.port), 120))
            wait_until(lambda: SHORT in broker.log_text(), "connections are refused")
            wait_until(lambda: broker.descriptors() > CLIENTS, "the others are taken")
            for number in range(12):
                assert caller.send(b"x" * 300_000, f"New{number}") == ResponseCode.SUCCESS
            assert len(broker.log_files()) > 3
            assert caller.read_all("New7") == [b"x" * 300_000]
            assert CLIENTS < broker.descriptors() < LIMIT
        wait_until(lambda: broker.descriptors() < before + CLIENTS, "whoever has left is gone")
        with Caller(broker.port) as other:
            assert other.send(b"taken again") == ResponseCode.SUCCESS
    assert broker.stop() == 0


def test_broker_takes_as_many_descriptors_as_it_may_have(start: Start) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        broker = start("a")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
