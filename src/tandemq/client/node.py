"""A client without input and output: builds its parts, hosts producers and consumers, runs turns.

    node = ClientNode(config, Random(7), now)
    producer = node.producer(ProducerOptions(group="orders"))
    ticket = producer.send(Message("Orders", b"42"), now)
    turn = node.turn(received, events, now)          and so on, until ticket.done

It implements `boundary.Node`. A shell runs a turn whenever its loop wakes, and after each call of an operation, since
the next turn returns the operation's requests. The asyncio client is such a shell; the simulator is another.

Heartbeats are requests, and a broker that does not respond is down. A heartbeat is sent every `heartbeat_ms`, as the
first request on every new connection, and to a broker that has not responded to a request and has sent nothing for
`silence_probe_ms`.
Masters get the heartbeats of producers and consumers, slaves only those of clients with consumers.

Source: docs/reference/requests.md, "group membership"; RocketMQ MQClientInstance.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import msgspec

from tandemq.boundary import Closed, Event, Now, Turn
from tandemq.client.consumer.client_remoting_processor import ClientRemotingProcessor, Handler
from tandemq.client.consumer.consume_tracer import ConsumeTracer
from tandemq.client.consumer.offsets.commits import OffsetCommitter
from tandemq.client.consumer.offsets.offset_store import (
    LocalOffsetStore,
    MemoryOffsetStorage,
    OffsetStorage,
    OffsetStore,
    RemoteBrokerOffsetStore,
)
from tandemq.client.consumer.pop_machine import PopConsumerCore
from tandemq.client.consumer.pull_machine import PullConsumerCore
from tandemq.client.consumer.push_machine import PushConsumerCore
from tandemq.client.consumer.queues.group_members import GroupMembers
from tandemq.client.consumer.queues.queue_locks import QueueLockClient
from tandemq.client.consumer.queues.queue_puller import MakePuller, QueuePuller
from tandemq.client.consumer.rebalance import RebalanceService
from tandemq.client.consumer.send_back import MessageSendBack
from tandemq.client.core.availability import BrokerAvailability
from tandemq.client.core.calls import Ticket, Timers
from tandemq.client.core.connections import Answer, RemotingClient
from tandemq.client.core.operations import (
    Invoke,
    OperationRunner,
    Steps,
    ask_all,
    current_time,
    pause,
    request,
    wait,
)
from tandemq.client.core.routes import MASTER_ID, Routes, TopicRoute
from tandemq.client.core.settings import (
    ClientConfig,
    ConsumerOptions,
    MessageModel,
    PopOptions,
    ProducerOptions,
    trace_topic,
)
from tandemq.client.core.trace_dispatcher import TraceDispatcher
from tandemq.client.producer.fault_strategy import MQFaultStrategy
from tandemq.client.producer.machine import ProducerCore
from tandemq.client.producer.requester import Requester
from tandemq.client.producer.send_tracer import SendTracer
from tandemq.client.producer.transactions import TransactionCore
from tandemq.client.producer.unique_keys import UniqueKeys
from tandemq.codec.record.record import decode_message
from tandemq.errors import ConfigError, ProtocolError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.group import HeartbeatData, ProducerData
from tandemq.model.message import PRODUCER_GROUP, StoredMessage
from tandemq.model.topic import GROUP_CHARACTERS_MAX

log = logging.getLogger(__name__)
TakeCheck = Callable[[str, StoredMessage, dict[str, str], Now], None]
"""Takes a transaction check: address of the broker, half message, header fields, time."""
INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
TRACE_PRODUCER = "_INNER_TRACE_PRODUCER"
"""Prefix of the groups of producers that send traces."""
FLIGHT_CHECK_MS = 10
"""Time between checks for messages in flight, while the client is closed."""


class ClientNode:
    """A client; see `boundary.Node`."""

    def __init__(self, config: ClientConfig, random: Random, now: Now, storage: OffsetStorage | None = None) -> None:
        """Create a client without connections. `storage`: for offsets of broadcasting groups; by default in memory."""
        self.config = config
        self.timers = Timers()
        self.remoting = RemotingClient(config, self.timers)
        self.runner = OperationRunner(self.remoting, self.timers)
        self.availability = BrokerAvailability(self.remoting, self.timers, random)
        self.routes = Routes(config, self.remoting, self.timers, self.runner, self.availability, random, now)
        self._random = random
        self._keys = UniqueKeys(config.ip, config.pid, random.getrandbits(32))
        self._storage = storage if storage is not None else MemoryOffsetStorage()
        self._producers: dict[str, ProducerCore] = {}
        self.requester = Requester(config.client_id, self.introduce, self.routes, self.timers, self._keys, random)
        self._transactions: dict[str, TransactionCore] = {}
        self._check_takers: dict[str, TakeCheck] = {}
        """Takes the transaction checks of a producer group."""
        self._consumers: dict[str, PushConsumerCore] = {}
        self._pullers: dict[str, PullConsumerCore] = {}
        self._poppers: dict[str, PopConsumerCore] = {}
        self._traces: dict[str, TraceDispatcher] = {}
        """By the producer group that sends their traces."""
        self._is_closed = False
        self._connect_parts(now)
        self._start_timers(now)

    def _connect_parts(self, now: Now) -> None:
        processor = self._processor = ClientRemotingProcessor(
            self.remoting,
            self.config.name_servers,
            self._consumers,
            self.requester.take_reply,
            self._take_check,
            now.wall_ms,
        )
        self.remoting.on_open = self._on_open
        self.remoting.on_recovered = self._on_recovered
        self.remoting.on_request = processor.process_request
        self.routes.on_change.append(self._on_route_change)
        self.routes.on_promoted.append(self._on_active)
        self.availability.on_active.append(self._on_active)

    def _start_timers(self, now: Now) -> None:
        heartbeat_ms, probe_ms = self.config.heartbeat_ms, max(1, self.config.silence_probe_ms // 4)
        self.timers.every(heartbeat_ms, self.send_heartbeats, first_ms=now.mono_ms + heartbeat_ms)
        self.timers.every(probe_ms, self._probe_silent, first_ms=now.mono_ms + probe_ms)

    # Producers and consumers.

    def producer(self, options: ProducerOptions) -> ProducerCore:
        """Host a producer.

        Raises:
            ConfigError: this client has a producer of that group.
        """
        if options.group in self._producers:
            raise ConfigError(f"this client already has a producer of the group {options.group}")
        strategy = MQFaultStrategy(options, self.remoting, self.routes, self.availability, self._random)
        producer = self._producers[options.group] = ProducerCore(
            options, self.remoting, self.routes, self.runner, self.timers, strategy, self._keys, self._random
        )
        topic = trace_topic(options.trace)
        if topic is not None:
            producer.tracer = SendTracer(options.group, self._trace_dispatcher(topic, options.group, "PRODUCE"))
        return producer

    def _trace_dispatcher(self, topic: str, group: str, kind: str) -> TraceDispatcher:
        suffix = f"-{kind}-{len(self._traces) + 1}"
        group = f"{TRACE_PRODUCER}-{group}"[: GROUP_CHARACTERS_MAX - len(suffix)] + suffix
        sender = self.producer(ProducerOptions(group=group, retries=1, retry_ms=0))
        dispatcher = self._traces[group] = TraceDispatcher(topic, sender.send, self.timers)
        return dispatcher

    def transactions(self, producer: ProducerCore) -> TransactionCore:
        """Return the transactions of a producer of this client; brokers send it transaction checks from now on."""
        group = producer.options.group
        assert self._producers.get(group) is producer, "a producer of this client"
        if group not in self._transactions:
            self._transactions[group] = TransactionCore(
                producer, self.remoting, self.routes, self.runner, self.timers, self._keys
            )
            self._check_takers[group] = self._transactions[group].take_check
        return self._transactions[group]

    def answer_checks(self, group: str, take: TakeCheck, now: Now) -> None:
        """Take part in a producer group without a producer: brokers send its transaction checks here from now on."""
        if group not in self._check_takers:
            self._check_takers[group] = take
            self.send_heartbeats(now)

    def leave_checks(self, group: str, now: Now) -> None:
        """Leave a producer group in which the client has no producer."""
        if group not in self._producers and self._check_takers.pop(group, None) is not None:
            fields = {"clientID": self.config.client_id, "producerGroup": group}
            for address in self.broker_addresses():
                if self.remoting.is_open(address):
                    self.remoting.request(address, Command(RequestCode.UNREGISTER_CLIENT, fields=fields), now, _ignore)

    def answer_with(self, code: RequestCode, handler: Handler) -> None:
        """Have requests of brokers with a code handled by `handler` instead of by the consumers of this client."""
        self._processor.handlers[code] = handler

    def _take_check(self, address: str, command: Command, now: Now) -> Command | None:
        """Handle a transaction check of a broker; the outcome is sent in a request of its own."""
        try:
            message = decode_message(command.body, 0, len(command.body))
        except ProtocolError as error:
            log.warning("check cannot be read address=%s: %s", address, error)
            raise
        group = message.properties.get(PRODUCER_GROUP, "")
        take = self._check_takers.get(group)
        if take is None:
            log.warning("check of a producer group that this client has not address=%s group=%.255s", address, group)
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="this client has no such producer")
        take(address, message, command.fields, now)
        return command.answer(ResponseCode.SUCCESS)

    @property
    def _receives_requests(self) -> bool:
        """Whether brokers send requests to this client, so that each must have its heartbeat at all times."""
        return bool(self._consumers or self._check_takers) or self.requester.is_used

    def push_consumer(self, options: ConsumerOptions, now: Now) -> PushConsumerCore:
        """Host a push consumer.

        Raises:
            ConfigError: this client has a push consumer of that group.
        """
        if options.group in self._consumers:
            raise ConfigError(f"this client already has a consumer of the group {options.group}")
        inner = self.inner_producer()
        service = self._rebalance_service(options)
        sender = MessageSendBack(options, self.remoting, self.routes, inner, self._keys)
        consumer = PushConsumerCore(options, self.runner, self.timers, service, sender, now)
        consumer.on_subscribed = self.send_heartbeats
        topic = trace_topic(options.trace)
        if topic is not None:
            dispatcher = self._trace_dispatcher(topic, options.group, "CONSUME")
            consumer.tracer = ConsumeTracer(options.group, dispatcher, self._keys)
        self.routes.on_change.append(consumer.route_changed)
        self._consumers[options.group] = consumer
        return consumer

    def inner_producer(self) -> ProducerCore:
        """Return the producer that consumers use to send messages back, and for replies."""
        inner = self._producers.get(INNER_PRODUCER)
        if inner is None:
            # No retries: a message that cannot be sent back at once stays with the consumer, which delivers it again.
            inner = self.producer(ProducerOptions(group=INNER_PRODUCER, retry_ms=0))
        return inner

    def _rebalance_service(self, options: ConsumerOptions) -> RebalanceService:
        client_id, remoting, routes, availability = (
            self.config.client_id,
            self.remoting,
            self.routes,
            self.availability,
        )
        offsets: OffsetStore
        if options.model is MessageModel.BROADCASTING:
            offsets = LocalOffsetStore(options, self._storage, routes)
        else:
            committer = OffsetCommitter(remoting, options.group)
            offsets = RemoteBrokerOffsetStore(options, committer, routes, availability, self.timers)
        members = GroupMembers(options.group, remoting, availability, self.timers)
        locks = QueueLockClient(client_id, options, remoting, routes, availability) if options.orderly else None
        return RebalanceService(
            client_id, options, routes, self.runner, members, offsets, self._make_puller(options), locks
        )

    def pull_consumer(self, options: ConsumerOptions) -> PullConsumerCore:
        """Host a pull consumer.

        Raises:
            ConfigError: this client has a pull consumer of that group, or `options` ask for traces.
        """
        if options.trace:
            raise ConfigError("pull consumers make no message traces", hint="leave out trace, or use a push consumer")
        if options.group in self._pullers:
            raise ConfigError(f"this client already has a pull consumer of the group {options.group}")
        make_puller = self._make_puller(options)
        consumer = PullConsumerCore(options, self.routes, self.availability, self.runner, make_puller)
        consumer.on_subscribed = self.send_heartbeats
        self._pullers[options.group] = consumer
        return consumer

    def pop_consumer(self, options: PopOptions) -> PopConsumerCore:
        """Host a pop consumer.

        Raises:
            ConfigError: this client has a pop consumer of that group.
        """
        if options.group in self._poppers:
            raise ConfigError(f"this client already has a pop consumer of the group {options.group}")
        consumer = PopConsumerCore(
            options, self.remoting, self.routes, self.availability, self.runner, self.timers, self._random
        )
        consumer.on_subscribed = self.send_heartbeats
        self.routes.on_change.append(consumer.route_changed)
        self.routes.takes_static = True
        self._poppers[options.group] = consumer
        return consumer

    def _make_puller(self, options: ConsumerOptions) -> MakePuller:
        return partial(QueuePuller, options, self.remoting, self.routes, self.availability, self.timers)

    # Turns.

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        """See `boundary.Node`. Bytes of a connection are handled before the end of the connection."""
        for event in events:
            if not isinstance(event, Closed):
                self.remoting.on_event(event, now)
        for link, data in received:
            self.remoting.on_data(link, data, now)
        for event in events:
            if isinstance(event, Closed):
                self.remoting.on_event(event, now)
        self.timers.run(now)
        self.remoting.expire(now)
        return self.remoting.take_turn()

    def deadline_ms(self) -> int | None:
        """See `boundary.Node`."""
        timer_ms, request_ms = self.timers.next_ms(), self.remoting.next_ms()
        return request_ms if timer_ms is None or (request_ms is not None and request_ms < timer_ms) else timer_ms

    # Heartbeats.

    def heartbeat(self) -> Command:
        """Return the heartbeat that lists all producers and consumers."""
        data = HeartbeatData(
            self.config.client_id,
            [entry for producer in self._producers.values() for entry in producer.heartbeat_data()]
            + [ProducerData(group) for group in self._check_takers if group not in self._producers],
            [entry for consumer in self._consumers.values() for entry in consumer.heartbeat_data()]
            + [entry for puller in self._pullers.values() for entry in puller.heartbeat_data()]
            + [entry for popper in self._poppers.values() for entry in popper.heartbeat_data()],
        )
        return Command(RequestCode.HEART_BEAT, body=msgspec.json.encode(data))

    def send_heartbeats(self, now: Now) -> None:
        """Send a heartbeat to all brokers."""
        for address in self.broker_addresses():
            if self._check_takers:
                self.remoting.keep_reconnecting(address, now)
            self._send_heartbeat(address, now)

    def broker_addresses(self) -> list[str]:
        """Return the brokers that get heartbeats: masters, and slaves too if the client has a consumer."""
        return list(
            dict.fromkeys(
                address
                for name in self.routes.broker_names()
                for broker_id, address in self.routes.members(name).items()
                if broker_id == MASTER_ID or self._consumers or self._pullers
            )
        )

    def _send_heartbeat(self, address: str, now: Now) -> None:
        has_members = self._producers or self._consumers or self._pullers or self._poppers
        is_reachable = self.remoting.is_open(address) or not self.remoting.is_down(address)
        if has_members and not self._is_closed and is_reachable:
            self.remoting.request(address, self.heartbeat(), now, _ignore)

    def _probe_silent(self, now: Now) -> None:
        for address in self.remoting.silent_addresses(self.config.silence_probe_ms, now):
            if address not in self.config.name_servers:
                self._send_heartbeat(address, now)

    def introduce(self, topics: Sequence[str], now: Now) -> Ticket[None]:
        """Fetch the routes of topics and send a heartbeat to their brokers; settled when all requests have ended."""
        return self.runner.start(self._introducing(topics), now)

    def _introducing(self, topics: Sequence[str]) -> Steps[None]:
        for topic in topics:
            try:
                yield from wait(self.routes.fetch(topic, (yield from current_time())))
            except TandemError:
                continue
        yield from ask_all([Invoke(address, self.heartbeat()) for address in self.broker_addresses()])

    # Events of the parts.

    def _on_open(self, address: str, now: Now) -> None:
        if address not in self.config.name_servers:
            self._send_heartbeat(address, now)

    def _on_route_change(self, route: TopicRoute, now: Now) -> None:
        """Reconnect to the listed brokers that are down. Send a heartbeat to new ones at once if brokers send requests
        to this client; other clients connect with their first message."""
        for group in route.brokers.values():
            for address in group.members.values():
                self.remoting.keep_reconnecting(address, now)
                if self._receives_requests and not self.remoting.is_open(address):
                    self._send_heartbeat(address, now)

    def _on_active(self, address: str, now: Now) -> None:
        """Send a heartbeat to a broker that has become active, before messages are pulled from it."""
        if self._receives_requests and not self.remoting.is_down(address):
            self._send_heartbeat(address, now)
        self._resume(address, now)

    def _on_recovered(self, address: str, now: Now) -> None:
        self.routes.recovered(address, now)
        self._resume(address, now)

    def _resume(self, address: str, now: Now) -> None:
        """Retry waiting messages at a broker that is up again, and commit offsets."""
        if self.routes.name_of(address) is not None:
            for producer in self._producers.values():
                producer.address_up(address)
            for consumer in self._consumers.values():
                consumer.rebalance_service.commit(now)

    # Close.

    def close(self, now: Now) -> Ticket[None]:
        """Commit offsets, leave all groups, close all connections; settled when brokers have responded or timed out."""
        return self.runner.start(self._closing(), now)

    def _closing(self) -> Steps[None]:
        for consumer in self._consumers.values():
            yield from wait(consumer.close((yield from current_time())))
        for puller in self._pullers.values():
            yield from wait(puller.close((yield from current_time())))
        for popper in self._poppers.values():
            yield from wait(popper.close((yield from current_time())))
        for transactions in self._transactions.values():
            transactions.close()
        yield from self._drain([producer for group, producer in self._producers.items() if group not in self._traces])
        while any(transactions.ending for transactions in self._transactions.values()):
            yield from pause(FLIGHT_CHECK_MS)
        for dispatcher in self._traces.values():
            dispatcher.flush((yield from current_time()))
        yield from self._drain([self._producers[group] for group in self._traces])
        brokers = [address for address in self.remoting.open_addresses() if address not in self.config.name_servers]
        yield from ask_all([Invoke(address, command) for address in brokers for command in self._unregistrations()])
        self.end((yield from current_time()))

    def end(self, now: Now, reason: str = "the client was closed") -> None:
        """Close all connections at once. Each message in flight fails: with OutcomeUnknown if it was sent, else with
        NotConnected or ClosedError."""
        self._is_closed = True
        for transactions in self._transactions.values():
            transactions.close()
        for producer in self._producers.values():
            producer.refuse()
        self.remoting.close(now, reason)
        for producer in self._producers.values():
            producer.close()
        self.requester.close()

    def _drain(self, producers: list[ProducerCore]) -> Steps[None]:
        """Accept no more messages, and wait for those in flight."""
        now = yield from current_time()
        for producer in producers:
            producer.drain(now)
        while any(producer.in_flight for producer in producers):
            yield from pause(FLIGHT_CHECK_MS)

    def _unregistrations(self) -> list[Command]:
        client_id = self.config.client_id
        code = RequestCode.UNREGISTER_CLIENT
        groups = dict.fromkeys([*self._producers, *self._check_takers])
        return [request(code, clientID=client_id, producerGroup=group) for group in groups] + [
            request(code, clientID=client_id, consumerGroup=group)
            for group in (*self._consumers, *self._pullers, *self._poppers)
        ]


def _ignore(_answer: Answer, _now: Now) -> None:
    """Ignore the response to a heartbeat; without one the connection is closed (`RemotingClient.expire`)."""
