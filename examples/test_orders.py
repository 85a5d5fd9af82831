"""Tests of an application, with the fixtures of TandemQ's pytest plugin.

pytest examples/test_orders.py
"""

from tandemq import ConsumeFrom, Message
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.run.local import LocalCluster

ORDERS = [b"41 paid", b"42 paid", b"43 refunded"]


def send_orders(name_servers: str) -> list[str]:
    """Send all orders and return their statuses."""
    with BlockingProducer(name_servers, group="orders") as producer:
        return [producer.send(Message("Orders", body)).status.name for body in ORDERS]


def read_orders(name_servers: str) -> list[bytes]:
    """Consume as many orders as were sent and return them, sorted."""
    found: list[bytes] = []
    with BlockingConsumer(
        name_servers, group="billing", topics={"Orders": "*"}, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        while len(found) < len(ORDERS) and (message := consumer.receive(timeout_s=10)) is not None:
            found.append(message.body)
            message.ack()
    return sorted(found)


def test_orders_are_stored_and_consumed(tandemq_broker: LocalCluster) -> None:
    """One master is enough for most tests of an application."""
    assert send_orders(tandemq_broker.name_servers) == ["SEND_OK"] * 3
    assert read_orders(tandemq_broker.name_servers) == ORDERS


def test_orders_are_consumed_from_the_slave_after_the_master_was_killed(tandemq_pair: LocalCluster) -> None:
    """SEND_OK means that the slave has the message as well."""
    assert send_orders(tandemq_pair.name_servers) == ["SEND_OK"] * 3
    tandemq_pair.broker().kill()
    assert read_orders(tandemq_pair.name_servers) == ORDERS
