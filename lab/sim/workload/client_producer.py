"""Application that sends through the real client and compares results with the frames on the wire.

I2   the client sends the messages that it was given                                  (see `checkers.wire_monitor`)
I3   a message is sent under one unique key, and not more often than the options allow
I17  a result is what a broker answered; an error other than OutcomeUnknown means that the message is not stored
I14  a message does not fail while a broker that was reachable all the time was not tried
"""

from functools import partial
from random import Random
from typing import Any

from lab.sim.checkers.model import TOPICS, Attempt, SentMessage
from lab.sim.workload.application import Application, ApplicationContext
from lab.sim.workload.messages import BATCH_COUNTS, MessageFactory
from lab.sim.world.world import MS, Violation
from tandemq.boundary import Now
from tandemq.client.core.calls import Ticket
from tandemq.client.core.routes import TopicRoute
from tandemq.client.core.settings import ProducerOptions
from tandemq.client.node import ClientNode
from tandemq.client.producer.machine import by_hash
from tandemq.errors import OutcomeUnknown, TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.message import Message, SendResult, SendStatus

IN_FLIGHT_MAX = 40
STATUS_CODES = {
    SendStatus.SEND_OK: ResponseCode.SUCCESS,
    SendStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    SendStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    SendStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}
CHOSEN_US = 1_600 * MS
"""A broker may be chosen this long before the request leaves, while there is no connection yet."""
STEADY = frozenset({"oneway", "select"})
"""Ways of sending without retries."""


class ProducingApplication(Application):
    """Sends until it is stopped."""

    def __init__(
        self,
        context: ApplicationContext,
        name: str,
        ip: str,
        random: Random,
        *,
        pace_ms: int,
        kinds: frozenset[str],
        retry_ms: int = 0,
        uses_late: bool = True,
    ) -> None:
        """`pace_ms`: mean time between messages. `retry_ms`: retry time of a message.

        `uses_late`: see `MessageFactory`.
        """
        super().__init__(context, name, ip, random)
        self._factory = MessageFactory(context.world, name, random, kinds, uses_late=uses_late)
        self._pace_ms = pace_ms
        self._options = ProducerOptions(
            group=f"P-{name}",
            timeout_ms=2_500,
            retries=random.randrange(1, 4),
            retry_ms=retry_ms,
            queues_per_new_topic=3,
            retry_when_not_stored_ok=random.random() < 0.5,
            latency_aware=random.random() < 0.8,
        )
        self.is_stopped = False
        self._reachable: dict[str, dict[str, int]] = {}
        """Unique key to the connections that were open when it was first sent."""
        self._known_us: dict[tuple[str, str], int] = {}
        """(topic, group) to the time when the client learned that the group accepts the topic."""
        self.monitor.by_body = self._factory.by_body
        self.monitor.on_attempt = self._sent

    def begin(self, client: ClientNode, now: Now) -> None:
        """See `Application`."""
        self._producer = client.producer(self._options)
        self._known_us.clear()
        client.routes.on_change.append(self._learned)
        self.after(300, now, self._step)

    def _step(self, now: Now) -> None:
        if self.is_stopped or self.is_ending:
            return
        count = self.random.choice(BATCH_COUNTS)
        if self._producer.in_flight < IN_FLIGHT_MAX:
            if count > 1 and "batch" in self._factory.kinds and self.random.random() < 0.5:
                self._send_batch([self._factory.message(TOPICS[0], plain=True) for _ in range(count)], now)
            else:
                for _ in range(count):
                    self._send(self._factory.message(self._factory.topic()), now)
        self.after(self.random.randrange(self._pace_ms // 4, self._pace_ms * 2), now, self._step)

    def _send_batch(self, messages: list[SentMessage], now: Now) -> None:
        for ticket in self._producer.send_batch([as_message(wanted) for wanted in messages], now):
            ticket.then(partial(self._completed, messages, "batch"))

    def _send(self, wanted: SentMessage, now: Now) -> None:
        kinds, chance = self._factory.kinds, self.random.random()
        message = as_message(wanted)
        if "oneway" in kinds and chance < 0.04:
            self._producer.send_oneway(message, now)
            return
        message.wait_store_ok = not ("nowait" in kinds and chance < 0.1)
        select = by_hash(wanted.keys) if chance > 0.9 else None
        ticket = self._producer.send(message, now, select=select)
        ticket.then(partial(self._completed, [wanted], "select" if select else "plain"))

    # Checks.

    def _sent(self, attempt: Attempt) -> None:
        for wanted in attempt.messages:
            self._reachable.setdefault(wanted.key, dict(self.monitor.open_links))
            if self._is_too_often(wanted):
                raise Violation("I3", f"{self.name} sent {wanted.key} {len(wanted.attempts)} times")

    def _is_too_often(self, wanted: SentMessage) -> bool:
        """Return whether it exceeds its retries, and was sent more than once after its retry time."""
        retry_ms = self._options.retry_ms
        late = [attempt for attempt in wanted.attempts if attempt.sent_us > wanted.made_us + retry_ms * MS]
        return len(wanted.attempts) > 1 + self._options.retries and len(late) > (1 if retry_ms else 0)

    def _learned(self, route: TopicRoute, _now: Now) -> None:
        names = {queue.broker_name for queue in route.publish_queues()}
        for topic, name in [known for known in self._known_us if known[0] == route.topic]:
            if name not in names:
                del self._known_us[topic, name]
        for name in names:
            self._known_us.setdefault((route.topic, name), self.context.world.now_us)

    def _groups(self, topic: str, since_us: int) -> set[str]:
        """Return the groups that accept a topic, as the client knew at a time and knows now."""
        route = self.client.routes.get(topic)
        names = set() if route is None else {queue.broker_name for queue in route.publish_queues()}
        return {name for name in names if self._known_us.get((topic, name), since_us) <= since_us}

    def _completed(self, messages: list[SentMessage], way: str, ticket: Ticket[Any]) -> None:
        if ticket.error is not None:
            self._judge_error(messages, way, ticket.error)
            return
        found: SendResult | list[SendResult] = ticket.result()
        results = found if isinstance(found, list) else [found]
        for index, (wanted, result) in enumerate(zip(messages, results, strict=True)):
            if not any(_says(attempt, index, wanted, result) for attempt in wanted.attempts):
                raise Violation("I17", f"{self.name} got {result}, which no broker answered")

    def _judge_error(self, messages: list[SentMessage], way: str, error: TandemError) -> None:
        first = messages[0]
        open_ones = [attempt for attempt in first.attempts if attempt.code is None or attempt.is_stored]
        if open_ones and not isinstance(error, OutcomeUnknown):
            raise Violation(
                "I17", f"{self.name} got an error that says {first.key} is not stored, and it may be: {error}"
            )
        if way not in STEADY and error.retriable and not self.is_ending and first.attempts:
            self._judge_given_up(first, error)

    def _judge_given_up(self, first: SentMessage, error: TandemError) -> None:
        tried = {attempt.group for attempt in first.attempts}
        chosen_us = first.attempts[-1].sent_us - CHOSEN_US
        for name in self._groups(first.topic, chosen_us) - tried:
            address = self.context.master(name)
            link = self.monitor.open_links.get(address)
            if address in str(error):
                continue  # it was chosen, and its connection closed before the request left
            if link is not None and link == self._reachable[first.key].get(address):
                raise Violation("I14", f"{self.name} gave up {first.key} without asking {name}: {error}")


def _says(attempt: Attempt, index: int, wanted: SentMessage, result: SendResult) -> bool:
    queue = result.queue
    return (
        attempt.is_stored
        and ResponseCode(attempt.code or 0).name
        == ("SUCCESS" if result.status.name == "SEND_OK" else result.status.name)
        and (attempt.group, attempt.queue_id, attempt.queue_offset + index)
        == (queue.broker_name, queue.queue_id, result.queue_offset)
        and (queue.topic, result.unique_key) == (wanted.topic, wanted.key)
    )


def as_message(wanted: SentMessage) -> Message:
    """Return the message for the client."""
    return Message(
        wanted.topic,
        wanted.body,
        tags=wanted.tag,
        keys=wanted.keys.split(),
        delay_level=wanted.delay_level,
        properties={"X": wanted.producer},
    )
