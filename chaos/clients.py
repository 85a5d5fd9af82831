"""Five producers, six consumers, and a watcher of offsets, which fill a `History` while faults happen.

The third producer makes transactions, see `transactions`; the second consumer has an SQL92 expression, see `filters`,
the third one pops, see `pops`, two share a group, see `assignments`; the others are gRPC clients, see `grpc_clients`
and `grpc_transactions`. Some messages are delayed by level, some have a time, and some of these are recalled, see
`timers`; some are sent back by the first consumer once or twice. In some runs there are clients of a static topic too,
see `static_topics`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from random import Random

from chaos import assignments, entries, filters, grpc_clients, grpc_transactions, pops, timers, transactions
from chaos.beside import BesideClients
from chaos.brokers import START_SECONDS, Broker
from chaos.grpc_clients import GROUP as GRPC_GROUP
from chaos.grpc_clients import GrpcClients
from chaos.grpc_transactions import GrpcTransactionClient, client_of
from chaos.history import History, Place
from chaos.recorder import Recorder, read_all
from chaos.static_topics import StaticTopicClients
from chaos.transactions import TransactionClient, TransactionHistory
from chaos.world import World
from tandemq import Admin, ConsumeFrom
from tandemq.broker.features.transactions.loading import GROUP as TRANSACTION_GROUP
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.client.connection import try_request
from tandemq.codec.remoting.fastjson import loads
from tandemq.coordination.registry.records import Mode
from tandemq.errors import TandemError
from tandemq.model.attributes import MESSAGE_TYPE, MIXED
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import Message, SendResult, SendStatus
from tandemq.model.topic import HALF_TOPIC, retry_topic

TOPIC, CONSUMERS = "Chaos", "chaos"
QUEUES = 4
DRAIN_SECONDS = 60.0
DELAYS = "1s 2s 3s 1s 2s 3s 1s 2s 3s 1s 2s 3s 1s 2s 3s 1s 2s 3s"
"""Delay levels from 1 on; messages that are sent back wait by them too."""
DELAY_SECONDS = {1: 1.0, 2: 2.0, 3: 3.0}
_DELAYED_EVERY, _REJECTED_EVERY = 20, 37
_QUIET_SECONDS = 0.5
_FIRST = "first"
_JOIN_SECONDS = 120.0
PACE_S = 0.002


class ClientThread(threading.Thread):
    """The thread of a client; it ends with the process."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        """`work`: what the client does; it returns when it is to end."""
        super().__init__(name=name, daemon=True)
        self._work = work
        self._end = "died, its traceback is in the output"

    def run(self) -> None:
        """Do the work."""
        try:
            self._work()
        except TandemError as error:  # clients survive every fault: otherwise the run would have checked nothing
            self._end = f"gave up: {error}"
        else:
            self._end = ""

    def violation(self) -> str:
        """Return how the thread violates I14; "" if it ended as it should."""
        end = "does not end" if self.is_alive() else self._end
        return f"I14: {self.name} {end}" if end else ""


class Clients:
    """All clients, a thread each."""

    def __init__(
        self, world: World, random: Random, recorder: Recorder | None = None, *, pace_s: float = PACE_S
    ) -> None:
        """`random`: draws for the clients of a static topic; `recorder`: writes the history for the judge. `pace_s`:
        least pause of the producers after each message."""
        self._world = world
        self._pace_s = pace_s
        self._recorder = recorder
        self.history = History(recorder=recorder, group=CONSUMERS)
        self._is_over = threading.Event()
        self._drained = threading.Event()
        self.transacting = TransactionClient(world.name_server.address, TOPIC, self.history)
        self.filtered = filters.FilterHistory(recorder=recorder)
        self.shown = entries.ShownEntries()
        self.popped = pops.PopHistory(elects=world.mode is Mode.ELECT, recorder=recorder)
        self.timers = timers.TimerFigures()
        proxies = {proxy.name: proxy.client_address for proxy in world.proxies}
        self.grpc_transacting = GrpcTransactionClient(client_of(list(proxies.values()), TOPIC), TOPIC, self.history)
        self.grpc = GrpcClients(
            proxies,
            TOPIC,
            QUEUES,
            world.group,
            self.history,
            pops.PopHistory(elects=world.mode is Mode.ELECT, group=GRPC_GROUP, recorder=recorder),
        )
        for known in self.all_transactions():
            known.recorder = recorder
        senders: dict[str, Callable[[], None]] = {
            "producer a": lambda: self._produce("a"),
            "producer b": lambda: self._produce("b"),
            "gRPC producer": lambda: self.grpc.produce(self._is_over, max(pace_s, grpc_clients.PACE_S)),
        }
        others: dict[str, Callable[[], None]] = {
            "transactions": lambda: self.transacting.run(
                self._is_over, self._drained, max(pace_s, transactions.PACE_S)
            ),
            "consumer": self._consume,
            "gRPC transactions": lambda: self.grpc_transacting.run(
                self._is_over, self._drained, max(pace_s, grpc_transactions.PACE_S)
            ),
            "filter": lambda: filters.consume(world.name_server.address, TOPIC, self.filtered, self._drained),
            "pops": lambda: pops.consume(world.name_server.address, TOPIC, self.popped, self._drained),
            "gRPC consumer": lambda: self.grpc.consume(self._drained),
            "offsets": self._watch_offsets,
            "entries": lambda: entries.read(self._addresses, TOPIC, QUEUES, self.shown, self._drained),
        }
        if recorder is not None:
            address = world.name_server.address
            others["reader"] = lambda: read_all(address, TOPIC, recorder, self._drained)
            others["shared queues"] = lambda: assignments.consume(address, TOPIC, "a", recorder, self._drained)
        self.beside: BesideClients | None = None
        """Clients of the other shard, in runs with shards."""
        if world.other_group:
            self.beside = BesideClients(world.name_server.address, world.other_group)
            senders["producer beside"] = self.beside.produce
            others["consumer beside"] = self.beside.consume
        self._senders, self._others = _threads(senders), _threads(others)
        self.static = self._static_topic(random)
        self._static_senders, self._static_readers = (
            (_threads(self.static.senders(self._is_over)), _threads(self.static.readers(self._drained)))
            if self.static is not None
            else ([], [])
        )

    def _static_topic(self, random: Random) -> StaticTopicClients | None:
        """Return the clients of the static topic, in runs with a broker beside the group."""
        world = self._world
        if world.neighbour is None:
            return None
        groups = {broker.address.rpartition(":")[0]: broker.broker_name for broker in world.all_brokers}
        may_go_back = world.mode is Mode.SLAVE_CONSUME
        return StaticTopicClients(
            world.name_server.address, groups, random, lambda: world.deaths, may_go_back=may_go_back
        )

    def start(self) -> None:
        """Start the clients, after the first message has created the topic."""
        history = self.history
        if self.beside is not None:
            asyncio.run(self._take_all_types())
            self.beside.create()
        with BlockingProducer(self._world.name_server.address, group="chaos", queues_per_new_topic=QUEUES) as producer:
            history.sending(_FIRST, _FIRST)
            result = producer.send(_message(_FIRST, _FIRST))
        place = Place(result.queue.queue_id, result.queue_offset)
        history.answered(_FIRST, result.status.name, place, is_ok=result.status is SendStatus.SEND_OK)
        self._prepare_grpc()
        if self.static is not None:
            self.static.create()
        for thread in (*self._senders, *self._others, *self._static_senders, *self._static_readers):
            thread.start()

    def _prepare_grpc(self) -> None:
        """Let the topic take messages of all types, and the group of the gRPC consumer begin with the first one."""
        asyncio.run(self._take_all_types())
        for queue_id in range(QUEUES):
            fields = {"consumerGroup": GRPC_GROUP, "topic": TOPIC, "queueId": str(queue_id), "commitOffset": "0"}
            master = self._world.master
            if master is not None:
                try_request(master.own_address, Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=fields))
        self.grpc.begin(START_SECONDS)

    async def _take_all_types(self) -> None:
        async with Admin(self._world.name_server.address) as admin:
            await admin.create_topic(
                TOPIC, queues=QUEUES, broker_name=self._world.group, attributes={MESSAGE_TYPE: MIXED}
            )

    def _produce(self, name: str) -> None:
        history, number, last = self.history, 0, time.monotonic()
        with BlockingProducer(
            self._world.name_server.address, group=f"chaos-{name}", queues_per_new_topic=QUEUES
        ) as one:
            while not self._is_over.wait(self._pace_s):
                number += 1
                body = f"{name}-{number}"
                level, wait_s = _delay_level(number), timers.delay_of(number)
                if wait_s:
                    level = 0
                delay = DELAY_SECONDS[level] if level else wait_s
                history.sending(body, name, due=time.monotonic() + delay if delay else 0.0, is_timed=bool(wait_s))
                at = time.time() + wait_s if wait_s else None
                try:
                    result = one.send(_message(body, name, level, at))
                except TandemError as error:
                    history.refused(f"{type(error).__name__}: {str(error)[:120]}")
                    continue
                history.longest_write_gap_s = max(history.longest_write_gap_s, time.monotonic() - last)
                last = time.monotonic()
                is_waiting = bool(wait_s and result.recall_handle)
                queue_id = level - 1 if level else 0 if is_waiting else result.queue.queue_id
                history.answered(
                    body,
                    result.status.name,
                    Place(queue_id, result.queue_offset),
                    is_ok=result.status is SendStatus.SEND_OK,
                    was_due=bool(wait_s) and not is_waiting,
                )
                if is_waiting and timers.is_recalled(number):
                    self._recall(one, body, result)

    def _recall(self, producer: BlockingProducer, body: str, result: SendResult) -> None:
        self.history.recalling(body)
        try:
            producer.recall(result)
        except TandemError:  # its time may have come meanwhile
            self.timers.recalls_failed += 1
        else:
            self.history.recall_confirmed(body)
            self.timers.recalls += 1

    def _consume(self) -> None:
        history, last = self.history, time.monotonic()
        times: dict[str, int] = {}
        with BlockingConsumer(
            self._world.name_server.address, group=CONSUMERS, topics={TOPIC: "*"}, consume_from=ConsumeFrom.FIRST
        ) as consumer:
            while not self._drained.is_set():
                message = consumer.receive(0.2)
                if message is None:
                    continue
                history.longest_read_gap_s = max(history.longest_read_gap_s, time.monotonic() - last)
                last = time.monotonic()
                stored = message.stored
                place = Place(message.queue.queue_id, stored.queue_offset)
                body, keys = stored.body.decode(errors="replace"), " ".join(stored.keys)
                is_retry = message.queue.topic == retry_topic(CONSUMERS)
                history.received(body, stored.tags, keys, place, at=last, is_retry=is_retry)
                times[body] = times.get(body, 0) + 1
                if times[body] <= _rejections(body):
                    history.sent_back(body, None if is_retry else place)
                    message.retry()
                else:
                    message.ack()

    def _addresses(self) -> list[str]:
        """Return the addresses of the members that run, for clients."""
        return [broker.address for broker in self._world.brokers if broker.is_running and broker.address]

    def _watch_offsets(self) -> None:
        while not self._drained.wait(0.2):
            for broker in self._world.readable:
                if broker.is_running and broker.startup:
                    self._ask_offsets(broker)

    def _ask_offsets(self, broker: Broker) -> None:
        for queue_id in range(QUEUES):
            fields = {
                "consumerGroup": CONSUMERS,
                "topic": TOPIC,
                "queueId": str(queue_id),
                "setZeroIfNotFound": "false",
            }
            recorder = self._recorder
            op = 0 if recorder is None else recorder.asking_offset(CONSUMERS, recorder.queue(queue_id))
            answer = try_request(broker.own_address, Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=fields))
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                offset = int(answer.fields["offset"])
            elif answer is not None and answer.code == ResponseCode.QUERY_NOT_FOUND:
                offset = 0  # it has permission, and no commit yet
            else:
                return  # it has no permission, so clients do not ask it for offsets
            if recorder is not None:
                recorder.offset(op, offset, broker.name)
            may_be_behind = self._world.mode is Mode.SLAVE_CONSUME and self._world.may_lag
            self.history.offset_reported(queue_id, offset, broker.name, may_be_behind=may_be_behind)

    def _open_transactions(self) -> bool:
        """Return whether the master has open half messages, by the progress that it publishes every few seconds."""
        master = self._world.master
        if master is None:
            return True
        place = {"topic": HALF_TOPIC, "queueId": "0"}
        names = {"consumerGroup": TRANSACTION_GROUP, "setZeroIfNotFound": "false"}
        offset, end = (
            try_request(master.own_address, Command(code, fields=fields))
            for code, fields in (
                (RequestCode.QUERY_CONSUMER_OFFSET, place | names),
                (RequestCode.GET_MAX_OFFSET, place),
            )
        )
        return offset is None or end is None or offset.fields.get("offset", "") != end.fields.get("offset")

    def _waiting_timers(self, topic: str = "") -> bool:
        """Return whether the master has timed messages of a topic that wait, or does not know yet.

        Args:
            topic: "" for any, those of consumers that pop too.
        """
        master = self._world.master
        if master is None:
            return True
        check, counts = (
            try_request(master.own_address, Command(code))
            for code in (RequestCode.GET_TIMER_CHECK_POINT, RequestCode.GET_TIMER_METRICS)
        )
        if check is None or check.code != ResponseCode.SUCCESS or counts is None:
            return True  # it still reads them
        waiting = loads(counts.body).get("timingCount", {})
        return any(one["count"] for name, one in waiting.items() if topic in ("", name))

    def all_transactions(self) -> tuple[TransactionHistory, TransactionHistory]:
        """Return the transactions of both producers of them."""
        return self.transacting.transactions, self.grpc_transacting.transactions

    def _due(self) -> set[str]:
        """Return the messages that a group with every message gets."""
        return self.history.due.union(*(known.due for known in self.all_transactions()))

    def _is_drained(self) -> bool:
        """Return whether all has been delivered that must be, and nothing waits at a broker."""
        due = self._due()
        return not (
            any(known.undecided for known in self.all_transactions())
            or due - self.history.bodies
            or self.history.awaited
            or self.filtered.missing(due)
            or self.popped.awaited(due)
            or self.grpc.popped.awaited(due)
            or (self.static is not None and self.static.history.missing())
            or self._open_transactions()
            or self._waiting_timers(TOPIC)
        )

    def _undelivered(self) -> int:
        """Return the number of deliveries that are missing, over all groups."""
        due = self._due()
        groups = [due - self.history.bodies, *(known.missing(due) for known in (self.filtered, self.popped))]
        groups += [self.grpc.popped.missing(due), self.static.history.missing() if self.static is not None else set()]
        return sum(map(len, groups))

    def _drain(self, within_s: float) -> None:
        """Wait until all is delivered; no longer than this after the last new delivery."""
        fewest = self._undelivered()
        until = time.monotonic() + within_s
        while time.monotonic() < until and not self._is_drained():
            left = self._undelivered()
            if left < fewest:
                fewest, until = left, time.monotonic() + within_s
            time.sleep(0.05)

    def _wait_quiet(self, within_s: float) -> None:
        """Wait until the master stores nothing more on its own: logs of brokers that stop meanwhile end elsewhere."""
        until, end = time.monotonic() + within_s, -1
        while time.monotonic() < until:
            master = self._world.master
            before, end = end, master.log_end() if master is not None else -1
            if end == before >= 0 and not self._waiting_timers():
                return
            time.sleep(_QUIET_SECONDS)

    def finish(self, within_s: float = DRAIN_SECONDS) -> list[str]:
        """Stop producing, wait until everything acknowledged is delivered; return the clients' violations.

        `within_s`: how long messages may take, without new ones that arrive.
        """
        self._is_over.set()
        if self.beside is not None:
            self.beside.stop_sending()
        for thread in (*self._senders, *self._static_senders):
            thread.join(_JOIN_SECONDS)
        self.transacting.is_done.wait(_JOIN_SECONDS)
        self.grpc_transacting.is_done.wait(_JOIN_SECONDS)
        unfinished = self.grpc.send_last(within_s)
        if self.static is not None:
            unfinished += self.static.send_last(within_s)
        self._drain(within_s)
        self._drained.set()
        if self.beside is not None:
            self.beside.drain()
        for thread in (*self._others, *self._static_readers):
            thread.join(_JOIN_SECONDS)
        self._wait_quiet(within_s)
        if self.static is not None:
            unfinished += self.static.commit_last(within_s)
            self.static.history.check_clients()
        threads = (*self._senders, *self._others, *self._static_senders, *self._static_readers)
        ends = [violation for thread in threads if (violation := thread.violation())]
        self.history.check_clients()
        if self.beside is not None:
            self.beside.history.check_clients()
        due = self._due()
        found = [text for known in self.all_transactions() for text in known.check(self.history.bodies)]
        found += [text for group in (self.filtered, self.popped, self.grpc.popped) for text in group.check(due)]
        found += self.shown.violations
        return ends + unfinished + found


def _threads(work: Mapping[str, Callable[[], None]]) -> list[ClientThread]:
    return [ClientThread(name, one) for name, one in work.items()]


def _message(body: str, tag: str, delay_level: int = 0, at: float | None = None) -> Message:
    properties = filters.properties_of(body)
    return Message(
        TOPIC, body.encode(), tags=tag, keys=[body], delay_level=delay_level, deliver_at=at, properties=properties
    )


def _delay_level(number: int) -> int:
    """Return the delay level of a message: every twentieth one is delayed, by each level in turn."""
    turn, rest = divmod(number, _DELAYED_EVERY)
    return 0 if rest else 1 + turn % len(DELAY_SECONDS)


def _rejections(body: str) -> int:
    """Return how often the consumer sends a message back: some messages once or twice, in turn."""
    number = body.rpartition("-")[2]
    turn, rest = divmod(int(number), _REJECTED_EVERY) if number.isdecimal() else (0, 1)
    return 0 if rest else 1 + turn % 2
