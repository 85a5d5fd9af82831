"""What serves gRPC clients in a test: a name server, a broker and a proxy, each TandemQ's or RocketMQ's."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.interop.grpc_clients import GrpcClient
from tests.interop.grpc_proxies import Proxy, proxy
from tests.interop.java import Value, wait_until
from tests.interop.peers import SMALL_STORE, Broker, NameServer, broker, name_server, start_registered
from tests.interop.wire import ask, wait_topic

UPDATE_TOPIC, UPDATE_GROUP, MAX_OFFSET = 17, 200, 30
_numbers = itertools.count(1)

QUICK: dict[str, Value] = {
    **SMALL_STORE,
    "mappedFileSizeCommitLog": 16 * 1024 * 1024,
    "transactionCheckInterval": 3_000,
    "transactionTimeOut": 1_000,
    "enablePropertyFilter": True,
    "recallMessageEnable": True,
    "reviveQueueNum": 2,
}
"""Settings of brokers: orphaned transactions are checked within seconds, and every kind of request is permitted."""

QUICK_PROXY: dict[str, Value] = {"transactionHeartbeatPeriodSecond": 1, "useEndpointPortFromRequest": True}
"""Settings of Java proxies: brokers know the producers that answer checks within a second instead of 20, and routes
have the ports that the client was given, as proxies on one host need."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Running servers."""

    namesrv: NameServer
    broker: Broker
    proxy: Proxy

    def topic(self, kind: str = "NORMAL", queues: int = 2) -> str:
        """Make a topic of a message type, with a name of its own, and wait until it is routed."""
        name = f"Grpc{kind.title()}{next(_numbers)}"
        fields = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "attributes": f"+message.type={kind}",
        }
        # A master that starts refuses it until the registry confirms that no other broker serves.
        wait_until(
            lambda: ask(self.broker.port, UPDATE_TOPIC, fields).fields["code"] == 0, what=f"topic {name}", within_s=30
        )
        wait_topic(self.namesrv.port, name)
        return name

    def group(self, *, ordered: bool = False, retries: int = 16, exponential: bool | None = None) -> str:
        """Make a consumer group with a name of its own.

        The Node.js client knows only exponential delays between deliveries. With others it sends a message to the dead
        letter queue after the first failure. The Python client ignores them, and the number of deliveries with them.

        Args:
            ordered: messages of a queue are delivered one after the other.
            retries: deliveries after the first one, before a message goes to the dead letter queue.
            exponential: whether the delays between deliveries grow exponentially; None: in an ordered group.
        """
        name = f"grpc-group-{next(_numbers)}"
        config = {
            "groupName": name,
            "consumeEnable": True,
            "consumeBroadcastEnable": True,
            "consumeMessageOrderly": ordered,
            "retryQueueNums": 1,
            "retryMaxTimes": retries,
            "brokerId": 0,
            "whichBrokerWhenConsumeSlowly": 1,
        }
        if ordered if exponential is None else exponential:
            config["groupRetryPolicy"] = {
                "type": "EXPONENTIAL",
                "exponentialRetryPolicy": {"initial": 1_000, "max": 10_000, "multiplier": 2},
            }
        answer = ask(self.broker.port, UPDATE_GROUP, {}, json.dumps(config).encode()).fields
        assert answer["code"] == 0, answer
        return name

    def stored(self, topic: str, queue: int = 0) -> int:
        """Return how many messages a queue has had; 0 if there is no such topic."""
        answer = ask(self.broker.port, MAX_OFFSET, {"topic": topic, "queueId": str(queue)}).fields
        return int(answer["extFields"]["offset"]) if answer["code"] == 0 else 0

    def wait_dead_letters(self, group: str, count: int = 1, within_s: float = 60) -> None:
        """Wait until a group's dead letter queue has messages."""
        wait_until(lambda: self.stored(f"%DLQ%{group}") >= count, what=f"dead letters of {group}", within_s=within_s)


@contextmanager
def stack(proxy_kind: str, broker_kind: str, directory: Path) -> Iterator[Stack]:
    """Start servers. A kind is "ours" or a version of RocketMQ; the name server is of the broker's kind."""
    with (
        name_server(broker_kind, directory / "namesrv") as namesrv,
        broker(broker_kind, directory / "broker", namesrv, settings=QUICK) as keeper,
        proxy(proxy_kind, directory / "proxy", namesrv.address, settings=QUICK_PROXY) as front,
    ):
        namesrv.start()
        start_registered(keeper, namesrv)
        front.start()
        yield Stack(namesrv, keeper, front)


class GrpcClients:
    """A process for each client, started when first asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, GrpcClient] = {}

    def __call__(self, language: str, endpoints: str) -> GrpcClient:
        """Return the client of a language, for a proxy."""
        if language not in self._running:
            client = GrpcClient(language, self._directory / language, endpoints)
            self._running[language] = client.start()
        return self._running[language].towards(endpoints)

    def close(self) -> None:
        """End all processes."""
        for client in self._running.values():
            client.close()
