"""A user's own tests, with the fixtures that come with TandemQ: `pytest examples/test_orders.py`."""

from tandemq import ConsumeFrom, Message
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.run.local import LocalCluster

ORDERS = [b"41 paid", b"42 paid", b"43 refunded"]


def send_orders(name_servers: str) -> list[str]:
    """Send all orders; the statuses."""
    with BlockingProducer(name_servers, group="orders") as producer:
        return [producer.send(Message("Orders", body)).status.name for body in ORDERS]


def read_orders(name_servers: str) -> list[bytes]:
    """Read as many as there must be."""
    found: list[bytes] = []
    with BlockingConsumer(
        name_servers, group="billing", topics={"Orders": "*"}, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        while len(found) < len(ORDERS) and (message := consumer.receive(timeout_s=10)) is not None:
            found.append(message.body)
            message.ack()
    return sorted(found)


def test_orders_are_stored_and_read(tandemq_broker: LocalCluster) -> None:
    """One broker is enough for this."""
    assert send_orders(tandemq_broker.name_servers) == ["SEND_OK"] * 3
    assert read_orders(tandemq_broker.name_servers) == ORDERS


def test_orders_are_read_from_the_slave_when_the_master_is_dead(tandemq_pair: LocalCluster) -> None:
    """What was acknowledged is on both, so the slave has it."""
    assert send_orders(tandemq_pair.name_servers) == ["SEND_OK"] * 3
    tandemq_pair.broker().kill()
    assert read_orders(tandemq_pair.name_servers) == ORDERS
