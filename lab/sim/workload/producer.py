"""Raw producers: messages of every kind, retried elsewhere when the outcome is bad or unknown.

    plain (310, 10) · batch (320) · one-way · not waiting (WAIT=false) · delayed · to be rejected by its consumer

Each attempt goes to a master named by the route, on one connection per address; several may be in flight. A message
whose attempt failed is sent again under the same unique key, to another group if there is one.
"""

from functools import partial
from hashlib import blake2b
from random import Random
from typing import NamedTuple

from lab.sim.checkers.model import TOPICS, Attempt, ExpectedState, SentMessage
from lab.sim.workload.messages import BATCH_COUNTS, MessageFactory
from lab.sim.workload.raw_client import RawClient
from lab.sim.world.world import World
from tandemq.codec.record.record import BatchPart, encode_batch
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.topic import AUTO_CREATE_TOPIC

ATTEMPTS_MAX = 4
SEND_TIMEOUT_MS = 2_500


class RawSendTarget(NamedTuple):
    """A broker group to send to."""

    group: str
    address: str
    """Of its master."""
    queues: int
    """Number of queues to choose from."""


class SimProducer(RawClient):
    """A raw producer."""

    def __init__(
        self,
        world: World,
        expected: ExpectedState,
        name: str,
        random: Random,
        name_servers: tuple[str, ...],
        *,
        pace_ms: int,
        kinds: frozenset[str],
        binary: bool,
    ) -> None:
        """`pace_ms`: mean time between messages; `kinds`: kinds of messages beside plain ones."""
        super().__init__(name, random, name_servers, binary=binary)
        self._world = world
        self._expected = expected
        self._pace_ms = pace_ms
        self._kinds = kinds
        self._factory = MessageFactory(world, name, random, kinds)
        self.is_stopped = False
        self.under_way = 0
        self.queue_nums = 3
        self.pending: list[tuple[Attempt, str]] = []
        self.suspects: dict[str, int] = {}
        """Groups that failed, to the time until which they are avoided (monotonic ms)."""

    def begin(self) -> None:
        """Fetch routes, then send."""
        self._look()
        self.after(300, self._step)

    def _look(self) -> None:
        for topic in (AUTO_CREATE_TOPIC, *TOPICS):
            self.fetch_route(topic)
        self.after(5_000 if len(self.routes) > 1 else 400, self._look)

    def _step(self) -> None:
        if self.is_stopped:
            return
        count = self.random.choice(BATCH_COUNTS)
        if self.under_way < 40:
            if count > 1 and "batch" in self._kinds and self.random.random() < 0.5:
                self._send([self._make(TOPICS[0], plain=True) for _ in range(count)], set())
            else:
                for _ in range(count):
                    self._send([self._make(self._factory.topic())], set())
        self.after(self.random.randrange(self._pace_ms // 4, self._pace_ms * 2), self._step)

    def _make(self, topic: str, *, plain: bool = False) -> SentMessage:
        wanted = self._factory.message(topic, plain=plain)
        number = len(self._factory.made)
        wanted.key = blake2b(f"{self.name}-{number}".encode(), digest_size=16).hexdigest().upper()
        self._expected.record_message(wanted)
        return wanted

    # Attempts.

    def place(self, topic: str, tried: set[str]) -> RawSendTarget | None:
        """Return the group to send to, or None if no route is known."""
        route = self.routes.get(topic)
        known = route is not None and bool(route.queues)
        if route is None or not known:
            route = self.routes.get(AUTO_CREATE_TOPIC)
        if route is None:
            return None
        names = sorted(name for name in route.queues if 0 in route.members.get(name, {}))
        names = [name for name in names if name not in tried] or names
        sound = [name for name in names if self.suspects.get(name, 0) <= self.now.mono_ms]
        names = sound or names
        if not names:
            return None
        name = self.random.choice(names)
        nums = route.queues[name] if known else self.queue_nums
        queues = min(nums, self.queue_nums) if topic == TOPICS[0] else 1
        return RawSendTarget(name, route.members[name][0], queues)

    def _send(self, messages: list[SentMessage], tried: set[str]) -> None:
        found = self.place(messages[0].topic, tried)
        if found is None:
            self.after(300, lambda: self._again(messages, tried))
            return
        group, address, nums = found
        self.attempt(messages, group, address, self.random.randrange(nums), tried)

    def attempt(self, messages: list[SentMessage], group: str, address: str, queue_id: int, tried: set[str]) -> Attempt:
        """Send messages to a queue of a group."""
        expected = self._expected
        attempt = Attempt(len(expected.attempts), messages, group, queue_id, self._world.now_us, address=address)
        single = messages[0] if len(messages) == 1 else None
        is_oneway = single is not None and "oneway" in self._kinds and self.random.random() < 0.04
        attempt.waits = not (single is not None and "nowait" in self._kinds and self.random.random() < 0.06)
        command = self._command(messages, queue_id, waits=attempt.waits)
        if is_oneway:
            attempt.waits = False
            attempt.link = (self.name, self.send_oneway(address, command))
        else:
            self.under_way += 1
            attempt.link = (
                self.name,
                self.ask(address, command, SEND_TIMEOUT_MS, lambda answer: self._answered(attempt, tried, answer)),
            )
        expected.record_attempt(attempt)
        return attempt

    def probe(self, group: str, address: str) -> Attempt:
        """Send one plain message to a group; called between turns, so it leaves with the next one."""
        message = self._make(TOPICS[0], plain=True)
        attempt = Attempt(-1, [message], group, 0, self._world.now_us, address=address)
        self.pending.append((attempt, address))
        return attempt

    def act(self) -> None:
        """Send the messages queued by `probe`."""
        pending, self.pending = self.pending, []
        for attempt, address in pending:
            attempt.number, attempt.sent_us = len(self._expected.attempts), self._world.now_us
            self._expected.record_attempt(attempt)
            self.under_way += 1
            command = self._command(attempt.messages, attempt.queue_id, waits=True)
            attempt.link = (
                self.name,
                self.ask(address, command, SEND_TIMEOUT_MS, partial(self._record_response, attempt)),
            )

    def _command(self, messages: list[SentMessage], queue_id: int, *, waits: bool) -> Command:
        first = messages[0]
        is_batch = len(messages) > 1
        values = {
            "a": f"P-{self.name}",
            "b": first.topic,
            "c": AUTO_CREATE_TOPIC,
            "d": str(self.queue_nums if first.topic == TOPICS[0] else 1),
            "e": str(queue_id),
            "f": "0",
            "g": str(self.now.wall_ms),
            "h": "0",
            "i": "" if is_batch else properties_of(first, waits=waits),
            "j": "0",
            "k": "false",
            "m": str(is_batch).lower(),
        }
        if is_batch:
            parts = [BatchPart(0, message.body, properties_of(message, waits=True).encode()) for message in messages]
            return Command(RequestCode.SEND_BATCH_MESSAGE, fields=values, body=encode_batch(parts))
        if self.random.random() < 0.1:
            names = {
                "a": "producerGroup",
                "b": "topic",
                "c": "defaultTopic",
                "d": "defaultTopicQueueNums",
                "e": "queueId",
                "f": "sysFlag",
                "g": "bornTimestamp",
                "h": "flag",
                "i": "properties",
                "j": "reconsumeTimes",
                "k": "unitMode",
                "m": "batch",
            }
            fields = {names[short]: value for short, value in values.items()}
            return Command(RequestCode.SEND_MESSAGE, fields=fields, body=first.body)
        return Command(RequestCode.SEND_MESSAGE_V2, fields=values, body=first.body)

    def _answered(self, attempt: Attempt, tried: set[str], answer: Command | None) -> None:
        self._record_response(attempt, answer)
        if answer is not None and (answer.code == 0 or (attempt.is_stored and self.random.random() < 0.5)):
            return
        self.suspects[attempt.group] = self.now.mono_ms + 1_000
        tried = tried | {attempt.group}
        self.after(self.random.randrange(5, 60), lambda: self._again(attempt.messages, tried))

    def _record_response(self, attempt: Attempt, answer: Command | None) -> None:
        self.under_way -= 1
        if answer is None:
            return
        self._world.fold("ack", attempt.number, answer.code)
        self._expected.record_response(attempt, answer.code, answer.fields, self._world.now_us)

    def _again(self, messages: list[SentMessage], tried: set[str]) -> None:
        if len(messages[0].attempts) < ATTEMPTS_MAX and not self.is_stopped:
            self._send(messages, tried)


def properties_of(message: SentMessage, *, waits: bool) -> str:
    """Return the properties of a message as encoded text."""
    pairs = [("UNIQ_KEY", message.key), ("KEYS", message.keys), ("X", message.producer)]
    if message.tag:
        pairs.append(("TAGS", message.tag))
    if message.delay_level:
        pairs.append(("DELAY", str(message.delay_level)))
    if message.timer_ms:
        pairs.append(("TIMER_DELAY_MS", str(message.timer_ms)))
    if not waits:
        pairs.append(("WAIT", "false"))
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs)
