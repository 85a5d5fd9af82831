"""A running Java pair becomes a TandemQ pair, as docs/guides/java.md says, and then one that elects its master."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemq import ConsumeFrom
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.coordination.registry.records import Mode
from tandemq.errors import TandemError
from tandemq.model.message import Message, SendStatus
from tandemq.run.groups import configure
from tests.interop.java import SERVER_VERSIONS, JavaBroker, Value, free_port, wait_until
from tests.interop.logs import read_log
from tests.interop.ours import OurBroker, OurNameServer
from tests.interop.peers import SMALL_STORE
from tests.interop.wire import wait_registered

EACH = 40
TOPIC = "Moving"


def add(names: str, stage: str) -> list[str]:
    """Send until each message has its second copy; the bodies."""
    bodies = [f"{stage}-{number}" for number in range(EACH)]
    with BlockingProducer(names, group="movers", queues_per_new_topic=2) as producer:

        def counts() -> bool:
            try:
                return producer.send(Message("MovingProbes", b"?")).status is SendStatus.SEND_OK
            except TandemError:
                return False

        wait_until(counts, what=f"SEND_OK in stage {stage}", within_s=90, every_s=0.3)
        for body in bodies:
            assert producer.send(Message(TOPIC, body.encode())).status is SendStatus.SEND_OK
    return bodies


def read_all(names: str, group: str, count: int) -> list[str]:
    with BlockingConsumer(names, group=group, topics={TOPIC: "*"}, consume_from=ConsumeFrom.FIRST) as consumer:
        found: list[str] = []
        while len(found) < count:
            message = consumer.receive(30)
            assert message is not None, f"{len(found)} of {count} messages came"
            found.append(message.body.decode())
            message.ack()
        return sorted(found)


@pytest.mark.parametrize("version", SERVER_VERSIONS)
def test_java_pair_becomes_ours_and_elects_with_all_its_messages(version: str, tmp_path: Path) -> None:
    with OurNameServer(tmp_path / "namesrv") as server:
        server.start()
        names = server.address
        roles: list[dict[str, Value]] = [{"brokerRole": "SYNC_MASTER"}, {"brokerRole": "SLAVE", "brokerId": 1}]
        stores = [tmp_path / "store-0", tmp_path / "store-1"]
        ports = [free_port(-2, 1), free_port(-2, 1)]
        # A Java 5.x master waits for nobody unless told so.
        common: dict[str, Value] = {**SMALL_STORE, "inSyncReplicas": 2}

        def java(number: int) -> JavaBroker:
            directory = tmp_path / f"java-{number}"
            settings = {**common, **roles[number]}
            return JavaBroker(
                version, directory, namesrv=names, port=ports[number], store=stores[number], settings=settings
            )

        def ours(number: int, stage: str, **settings: Value) -> OurBroker:
            directory = tmp_path / f"{stage}-{number}"
            values = {**common, **roles[number], **settings}
            return OurBroker(directory, namesrv=names, port=ports[number], store=stores[number], settings=values)

        with java(0) as master:
            master.start()
            with java(1) as slave:
                slave.start()
                sent = add(names, "java")
                slave.stop()
            assert read_log(stores[1]) == read_log(stores[0]), "SEND_OK: it has them"
            with ours(1, "mixed") as new_slave:
                new_slave.start()
                sent += add(names, "mixed")
                master.stop()
                with ours(0, "ours") as new_master:
                    new_master.start()
                    wait_registered(server.port, "broker-a", 0)
                    sent += add(names, "ours")
                    new_slave.stop()
                    new_master.stop()
        assert read_log(stores[0]) == read_log(stores[1])

        server.stop()
        own = {"registryEnable": "true", "kvConfigPath": str(tmp_path / "registry-data")}
        with OurNameServer(tmp_path / "registry", port=server.port, settings=own) as registry:
            registry.start()
            address = f"namesrv://{names}"
            configure(address, ["broker-a"], Mode.ELECT, 2)
            with (
                ours(0, "elect", registryAddr=address) as first,
                ours(1, "elect", registryAddr=address) as second,
            ):
                first.start()
                second.start()
                sent += add(names, "elect")
                first.kill()
                with BlockingProducer(names, group="movers") as producer:
                    result = producer.send(Message(TOPIC, b"elected"))
                    assert result.status in (SendStatus.SEND_OK, SendStatus.SLAVE_NOT_AVAILABLE)
                assert read_all(names, "judge", len(sent) + 1) == sorted([*sent, "elected"])
