"""A cluster with many topics and consumer groups, made by writing its tables while it is stopped."""

import json
from pathlib import Path

from tandemq.client.blocking import BlockingProducer
from tandemq.model.message import Message, MessageQueue
from tandemq.run.children import ChildCluster
from tests.browser.conftest import SMALL

TOPICS, GROUPS, BROKERS, QUEUES = 1_000, 2_000, 2, 4


def topic_name(number: int) -> str:
    """The name of a topic."""
    return f"orders-{number:04}"


def _write(store: Path, table: str, key: str, content: object) -> None:
    config = store / "config"
    config.mkdir(parents=True, exist_ok=True)
    (config / f"{table}.json").write_text(json.dumps({key: content}), encoding="utf-8")


def large_cluster(directory: Path) -> ChildCluster:
    """Return a cluster that runs: every queue has a message, every group has consumed it or is one behind."""
    stores = [directory / f"broker-{name}-0" for name in "ab"]
    for store in stores:
        topics = {
            topic_name(n): {"topicName": topic_name(n), "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6}
            for n in range(TOPICS)
        }
        groups = {f"billing-{n:04}": {"groupName": f"billing-{n:04}"} for n in range(GROUPS)}
        _write(store, "topics", "topicConfigTable", topics)
        _write(store, "subscriptionGroup", "subscriptionGroupTable", groups)
    cluster = ChildCluster(directory, groups=BROKERS, slaves=0, settings=SMALL)
    with cluster:
        _send(cluster)
    offsets = {
        f"{topic_name(n % TOPICS)}@billing-{n:04}": {str(queue): n % 2 for queue in range(QUEUES)}
        for n in range(GROUPS)
    }
    for store in stores:
        _write(store, "consumerOffset", "offsetTable", offsets)
    cluster = ChildCluster(directory, groups=BROKERS, slaves=0, settings=SMALL)
    cluster.start()
    return cluster


def _send(cluster: ChildCluster) -> None:
    with BlockingProducer(cluster.name_servers, group="shop") as producer:
        for number in range(TOPICS):
            for broker in cluster.brokers:
                for queue in range(QUEUES):
                    at = MessageQueue(topic_name(number), broker.broker_name, queue)
                    producer.send_oneway(Message(at.topic, b"{}"), queue=at)
