"""Unmodified Java clients 4.9.8 and 5.3.3 and a machine with two shards, which are two broker groups to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.checks import all_sent_ok, exactly, lose_one, prove, repeat_one, sent
from tests.interop.driver import JavaDriver
from tests.interop.java import free_port
from tests.interop.ours import OurBroker, OurNameServer
from tests.interop.peers import SMALL_STORE, start_registered
from tests.interop.wire import wait_registered, wait_topic


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[tuple[OurNameServer, OurBroker]]:
    with OurNameServer(tmp_path / "namesrv") as namesrv:
        namesrv.start()
        port = free_port(-2, 1, 8, 10, 11)
        settings = {**SMALL_STORE, "shards": 2}
        with OurBroker(tmp_path / "broker", namesrv=namesrv.address, port=port, settings=settings) as broker:
            start_registered(broker, namesrv)
            wait_registered(namesrv.port, "broker-a-1", 0)
            try:
                yield namesrv, broker
            finally:
                broker.stop()  # shards outlive a killed process that started them


def test_java_sends_over_both_shards_and_consumes_from_both(
    machine: tuple[OurNameServer, OurBroker], any_java: JavaDriver
) -> None:
    namesrv, _ = machine
    java = any_java.at(namesrv.address)
    printed = java.mqadmin(
        "updateTopic", "-n", namesrv.address, "-c", "DefaultCluster", "-t", "T", "-r", "2", "-w", "2"
    )
    assert printed.count("success") == 2, printed
    wait_topic(namesrv.port, "T")
    answers = java.call("produce", topic="T", count=40)
    prove(all_sent_ok(40), answers, lose_one, repeat_one)
    assert {answer["broker"] for answer in sent(answers)} == {"broker-a", "broker-a-1"}
    read = java.call("pull", topic="T", group="reader", tags="*")
    prove(exactly([f"body-{number}" for number in range(40)]), read, lose_one, repeat_one)
