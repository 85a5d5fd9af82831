"""One client as a plain object: links, routes, and the producers and consumers it hosts.

    node = ClientNode(config, Random(7), now)
    producer = node.producer(ProducerOptions(group="orders"))
    ticket = producer.send(Message("Orders", b"42"), now)
    turn = node.turn(received, events, now)          and so on, until ticket.done

It implements `boundary.Node`: a shell drives it once per turn of its loop, and after each call of an operation, whose
bytes leave with the next turn. The asyncio faces of this package are such a shell; the simulator is another.

Heartbeats are requests, and a broker that does not answer is down: they go out every `heartbeat_ms`, first thing on
every new link, and to a broker that owes an answer and has been silent for `silence_probe_ms`. Masters hear of
producers and consumers, slaves of consumers only.

Source: docs/reference/requests.md, "group membership"; RocketMQ MQClientInstance.
"""

from collections.abc import Sequence
from random import Random

import msgspec

from tandemq.boundary import Closed, Event, Now, Turn
from tandemq.client.consumer.client_remoting_processor import ClientRemotingProcessor
from tandemq.client.consumer.offsets.store import MemoryOffsetStorage, OffsetStorage
from tandemq.client.consumer.pull_machine import PullConsumerCore
from tandemq.client.consumer.push_machine import PushConsumerCore
from tandemq.client.core.availability import BrokerAvailability
from tandemq.client.core.calls import Ticket, Timers
from tandemq.client.core.connections import Answer, RemotingClient
from tandemq.client.core.context import Kit
from tandemq.client.core.operations import Invoke, OperationRunner, Steps, ask_all, current_time, pause, request, wait
from tandemq.client.core.routes import MASTER_ID, Routes, TopicRoute
from tandemq.client.core.settings import ClientConfig, ConsumerOptions, ProducerOptions
from tandemq.client.producer.machine import ProducerCore
from tandemq.client.producer.unique_keys import UniqueKeys
from tandemq.errors import ConfigError, TandemError
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.group import HeartbeatData

INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
FLIGHT_CHECK_MS = 10


class ClientNode:
    """A client: see `boundary.Node`."""

    def __init__(self, config: ClientConfig, random: Random, now: Now, local: OffsetStorage | None = None) -> None:
        """Nothing is connected. `local` keeps the offsets of broadcasting groups."""
        timers = Timers()
        links = RemotingClient(config, timers)
        runner = OperationRunner(links, timers)
        standing = BrokerAvailability(links, timers, random)
        routes = Routes(config, links, timers, runner, standing, random, now)
        keys = UniqueKeys(config.ip, config.pid, random.getrandbits(32))
        self.config = config
        self.kit = Kit(config, links, timers, runner, routes, standing, keys, random)
        self._local = local if local is not None else MemoryOffsetStorage()
        self._producers: dict[str, ProducerCore] = {}
        self._consumers: dict[str, PushConsumerCore] = {}
        self._pullers: dict[str, PullConsumerCore] = {}
        self._is_closed = False
        told = ClientRemotingProcessor(self.kit, self._consumers, now.wall_ms)
        links.on_open = self._greet
        links.on_up = self._up
        links.on_request = told.asked
        routes.on_change.append(self._route_changed)
        routes.on_better.append(self._serves_now)
        standing.on_open.append(self._serves_now)
        timers.every(config.heartbeat_ms, self.beat, first_ms=now.mono_ms + config.heartbeat_ms)
        probe_ms = max(1, config.silence_probe_ms // 4)
        timers.every(probe_ms, self._probe_silent, first_ms=now.mono_ms + probe_ms)

    # What it hosts.

    def producer(self, options: ProducerOptions) -> ProducerCore:
        """Host a producer.

        Raises:
            ConfigError: this client has a producer of that group.
        """
        if options.group in self._producers:
            raise ConfigError(f"this client has a producer of the group {options.group} already")
        producer = self._producers[options.group] = ProducerCore(self.kit, options)
        return producer

    def push_consumer(self, options: ConsumerOptions, now: Now) -> PushConsumerCore:
        """Host a push consumer.

        Raises:
            ConfigError: this client has a consumer of that group.
        """
        if options.group in self._consumers:
            raise ConfigError(f"this client has a consumer of the group {options.group} already")
        inner = self._producers.get(INNER_PRODUCER)
        if inner is None:
            # What it cannot send soon stays with the consumer, which keeps it from being forgotten.
            options_of_inner = ProducerOptions(group=INNER_PRODUCER, retry_ms=0)
            inner = self._producers[INNER_PRODUCER] = ProducerCore(self.kit, options_of_inner)
        consumer = self._consumers[options.group] = PushConsumerCore(self.kit, options, inner, self._local, now)
        consumer.on_subscribed = self.beat
        return consumer

    def pull_consumer(self, options: ConsumerOptions) -> PullConsumerCore:
        """Host a pull consumer.

        Raises:
            ConfigError: this client has one of that group.
        """
        if options.group in self._pullers:
            raise ConfigError(f"this client has a pull consumer of the group {options.group} already")
        consumer = self._pullers[options.group] = PullConsumerCore(self.kit, options)
        return consumer

    # Driven by a shell.

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        """See `boundary.Node`. What arrived on a link counts before the link's end."""
        links = self.kit.links
        for event in events:
            if not isinstance(event, Closed):
                links.on_event(event, now)
        for link, data in received:
            links.on_data(link, data, now)
        for event in events:
            if isinstance(event, Closed):
                links.on_event(event, now)
        self.kit.timers.run(now)
        links.expire(now)
        return links.take_turn()

    def deadline_ms(self) -> int | None:
        """See `boundary.Node`."""
        timers, links = self.kit.timers.next_ms(), self.kit.links.next_ms()
        return links if timers is None or (links is not None and links < timers) else timers

    # Heartbeats.

    def _members(self) -> bool:
        return bool(self._producers or self._consumers or self._pullers)

    def heartbeat(self) -> Command:
        """The request that tells a broker who is here."""
        data = HeartbeatData(
            self.config.client_id,
            [entry for producer in self._producers.values() for entry in producer.heartbeat_data()],
            [entry for consumer in self._consumers.values() for entry in consumer.heartbeat_data()]
            + [entry for puller in self._pullers.values() for entry in puller.heartbeat_data()],
        )
        return Command(RequestCode.HEART_BEAT, body=msgspec.json.encode(data))

    def beat(self, now: Now) -> None:
        """Tell all brokers that are to know."""
        for address in self.broker_addresses():
            self._beat(address, now)

    def broker_addresses(self) -> list[str]:
        """Brokers that are to know of this client: masters, and slaves if something is consumed."""
        routes = self.kit.routes
        return list(
            dict.fromkeys(
                address
                for name in routes.broker_names()
                for broker_id, address in routes.members(name).items()
                if broker_id == MASTER_ID or self._consumers or self._pullers
            )
        )

    def _beat(self, address: str, now: Now) -> None:
        links = self.kit.links
        if self._members() and not self._is_closed and (links.is_open(address) or not links.is_down(address)):
            links.request(address, self.heartbeat(), now, self._beaten)

    def _beaten(self, _answer: Answer, _now: Now) -> None:
        """Silence closes the link by itself; what the answer says does not matter."""

    def _greet(self, address: str, now: Now) -> None:
        if address not in self.config.name_servers:
            self._beat(address, now)

    def _probe_silent(self, now: Now) -> None:
        for address in self.kit.links.owing(self.config.silence_probe_ms, now):
            if address not in self.config.name_servers:
                self._beat(address, now)

    def introduce(self, topics: Sequence[str], now: Now) -> Ticket[None]:
        """Learn the routes of some topics and let their brokers know who is here; settled when both was tried."""
        return self.kit.runner.start(self._introducing(topics), now)

    def _introducing(self, topics: Sequence[str]) -> Steps[None]:
        for topic in topics:
            try:
                yield from wait(self.kit.routes.fetch(topic, (yield from current_time())))
            except TandemError:
                continue
        yield from ask_all([Invoke(address, self.heartbeat()) for address in self.broker_addresses()])

    def _route_changed(self, route: TopicRoute, now: Now) -> None:
        """New brokers hear of our consumers at once; producers become known with their first message."""
        if not self._consumers:
            return
        for group in route.brokers.values():
            for address in group.members.values():
                if not self.kit.links.is_open(address):
                    self._beat(address, now)

    def _serves_now(self, address: str, now: Now) -> None:
        """A broker that did not serve does: it hears who is here before it is asked for messages."""
        if self._consumers and not self.kit.links.is_down(address):
            self._beat(address, now)
        self._up(address, now)

    def _up(self, address: str, now: Now) -> None:
        if self.kit.routes.name_of(address) is not None:
            for producer in self._producers.values():
                producer.address_up(address)
            for consumer in self._consumers.values():
                consumer.rebalance_service.commit(now)

    # The end.

    def close(self, now: Now) -> Ticket[None]:
        """Tell offsets, leave all groups, close all links; settled when brokers have answered or did not in time."""
        return self.kit.runner.start(self._closing(), now)

    def _closing(self) -> Steps[None]:
        for consumer in self._consumers.values():
            yield from wait(consumer.close((yield from current_time())))
        for puller in self._pullers.values():
            yield from wait(puller.close((yield from current_time())))
        for producer in self._producers.values():
            producer.refuse()
        while any(producer.in_flight for producer in self._producers.values()):
            yield from pause(FLIGHT_CHECK_MS)
        for producer in self._producers.values():
            producer.close()
        yield from ask_all([Invoke(address, command) for address in self._known() for command in self._farewells()])
        self._is_closed = True
        self.kit.links.close((yield from current_time()))

    def _known(self) -> list[str]:
        return [address for address in self.kit.links.open_addresses() if address not in self.config.name_servers]

    def _farewells(self) -> list[Command]:
        client_id = self.config.client_id
        code = RequestCode.UNREGISTER_CLIENT
        return [request(code, clientID=client_id, producerGroup=group) for group in self._producers] + [
            request(code, clientID=client_id, consumerGroup=group) for group in (*self._consumers, *self._pullers)
        ]
