"""Operators reach gRPC consumers with mqadmin, through TandemQ's proxy: what it shows of them, thread stacks, and a
message that is consumed on request. The Python client answers neither of the two commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.checks import bodies
from tests.interop.conftest import Drivers
from tests.interop.grpc_stacks import GrpcClients, Stack, stack
from tests.interop.java import wait_until

MQADMIN = "5.3.3"
JAVA, PYTHON = "java-5.2.0", "python"


@pytest.mark.parametrize("language", [JAVA, PYTHON])
def test_mqadmin_reaches_push_consumers(language: str, tmp_path: Path, drivers: Drivers) -> None:
    with stack("ours", "ours", tmp_path) as place:
        clients = GrpcClients(tmp_path / "clients")
        try:
            _check(language, place, clients, drivers)
        finally:
            clients.close()


def _check(language: str, place: Stack, clients: GrpcClients, drivers: Drivers) -> None:
    client = clients(language, place.proxy.address)
    java = drivers(MQADMIN).at(place.namesrv.address)

    def run(command: str, *arguments: str) -> str:
        return java.mqadmin(command, "-n", place.namesrv.address, *arguments)

    topic, group = place.topic(queues=1), place.group()
    sent = client.producer(topics=topic).send(topic=topic, body="seen")
    consumer = client.push(group=group, topic=topic)
    consumer.wait_bodies({"seen"})
    printed = wait_until(
        lambda: found if "127.0.0.1:" in (found := run("consumerConnection", "-g", group)) else "",
        what="the consumer at the broker",
        within_s=30,
    )
    row = next(line.split() for line in printed.splitlines() if "127.0.0.1:" in line)
    client_id = row[0]
    assert row[2] == {JAVA: "JAVA", PYTHON: "PYTHON"}[language]
    assert topic in printed and "CONSUME_PASSIVELY" in printed
    assert client_id in run("consumerStatus", "-g", group)
    stacks = run("consumerStatus", "-g", group, "-i", client_id, "-s")
    directly = run("queryMsgById", "-t", topic, "-i", sent["messageId"], "-g", group, "-d", client_id)
    if language == PYTHON:
        assert all("did not answer within 4.5 s" in printed for printed in (stacks, directly)), (stacks, directly)
        return
    assert "PROP_CLIENT_VERSION                     : 5.2.0" in stacks and "Driver.main(Driver.java" in stacks, stacks
    assert "consumeResult=CR_SUCCESS" in directly, directly
    wait_until(lambda: bodies(consumer.messages()) == ["seen", "seen"], what="the message consumed again", within_s=30)
