"""Applications on the real client that ask and reply, and one that selects messages by an SQL92 expression.

I20  a request ends once, by its own reply or an error, and in time; after the faults there are replies again
I21  a consumer with an expression gets no message that does not match  (that it gets every other: see `checkers.final`)
"""

from functools import partial
from random import Random

from lab.sim.checkers.model import TOPICS, SentMessage
from lab.sim.workload.application import Application, ApplicationContext
from lab.sim.workload.client_consumer import ConsumingApplication
from lab.sim.workload.client_producer import as_message
from lab.sim.world.world import MS, Violation
from tandemq.boundary import Now
from tandemq.client.consumer.delivery import Delivery
from tandemq.client.core.calls import Ticket
from tandemq.client.core.settings import ProducerOptions
from tandemq.client.node import ClientNode
from tandemq.client.producer.requester import RequestTicket
from tandemq.errors import ClosedError
from tandemq.model.group import Sql
from tandemq.model.replies import ReplyMessage, create_reply

REQUEST_TAG = "Q"
REPLYING_GROUP = "GR"
SELECTING_GROUP = "GS"
SELECTION = "(TAGS IN ('A', 'C') AND NOT (KEYS STARTSWITH 'k3')) OR (TAGS IS NULL AND X = 'p0')"
TIMEOUT_MS = 4_000
SLACK_MS = 1_000
LATE_MS = 20
PACE_MS = 1_500


def selects(message: SentMessage) -> bool:
    """Return whether `SELECTION` matches a message, without the code that evaluates expressions."""
    if message.tag in ("A", "C"):
        return not message.keys.startswith("k3")
    return message.tag == "" and message.producer == "p0"


def is_request(message: SentMessage) -> bool:
    """Return whether a message is a request."""
    return message.tag == REQUEST_TAG


class RequestingApplication(Application):
    """Sends requests, gives some of them up, and checks the replies."""

    def __init__(self, context: ApplicationContext, name: str, ip: str, random: Random) -> None:
        """An application whose client starts with the first turn."""
        super().__init__(context, name, ip, random)
        self.is_stopped = False
        self.replied_us = 0
        """When the newest request was made that has a reply."""
        self._made: list[SentMessage] = []
        self._open: dict[RequestTicket, SentMessage] = {}
        self.monitor.by_body = self._by_body

    def begin(self, client: ClientNode, now: Now) -> None:
        """See `Application`."""
        self._open.clear()
        self._producer = client.producer(
            ProducerOptions(group=f"P-{self.name}", timeout_ms=1_500, retries=1, retry_ms=0, queues_per_new_topic=3)
        )
        self.after(300, now, self._step)

    def _by_body(self, body: bytes) -> SentMessage | None:
        number = body.split(b":")[1]
        return next((wanted for wanted in self._made if wanted.body == body and number.isdigit()), None)

    def _step(self, now: Now) -> None:
        if self.is_stopped or self.is_ending:
            return
        body = f"{self.name}:{len(self._made)}:".encode() + self.random.randbytes(20)
        made_us = self.context.world.now_us
        wanted = SentMessage("", self.name, TOPICS[0], body, REQUEST_TAG, f"q {self.name}", made_us=made_us)
        self._made.append(wanted)
        ticket = self.client.requester.request(self._producer, as_message(wanted), now, timeout_ms=TIMEOUT_MS)
        self._open[ticket] = wanted
        ticket.then(partial(self._ended, ticket))
        if self.random.random() < 0.1:
            self.after(self.random.randrange(1, TIMEOUT_MS), now, partial(self._give_up, ticket))
        due_ms = now.mono_ms + TIMEOUT_MS + SLACK_MS
        self.after(TIMEOUT_MS + SLACK_MS, now, partial(self._judge_end, ticket, due_ms))
        self.after(self.random.randrange(PACE_MS // 4, PACE_MS * 2), now, self._step)

    def _give_up(self, ticket: RequestTicket, _now: Now) -> None:
        if self._open.pop(ticket, None) is not None:
            self.client.requester.forget(ticket)

    def _judge_end(self, ticket: RequestTicket, due_ms: int, now: Now) -> None:
        if ticket in self._open:
            if now.mono_ms > due_ms + LATE_MS:  # it was paused, so that the client's own timers come now as well
                self.after(SLACK_MS, now, partial(self._judge_end, ticket, now.mono_ms + SLACK_MS))
                return
            raise Violation("I20", f"{self.name} has neither a reply nor an error for {self._open[ticket].key}")

    def _ended(self, ticket: RequestTicket, _settled: Ticket[ReplyMessage]) -> None:
        wanted = self._open.pop(ticket, None)
        if wanted is None:
            raise Violation("I20", f"{self.name} got an end of a request that it had given up, or a second one")
        if ticket.error is not None:
            if isinstance(ticket.error, ClosedError) and not self._is_leaving:
                raise Violation("I20", f"{self.name} got {ticket.error} and did not close the client")
            return
        reply = ticket.result()
        if reply.body != b"re:" + wanted.body:
            raise Violation("I20", f"{self.name} got {reply.body[:40]!r} for its request {wanted.body[:40]!r}")
        self.replied_us = max(self.replied_us, wanted.made_us)
        self.context.world.fold("reply", self.name, (self.context.world.now_us - wanted.made_us) // MS, wanted.key)


class RespondingApplication(ConsumingApplication):
    """Replies to every request when it finishes it."""

    def _finish(self, delivery: Delivery, key: str, now: Now) -> None:
        if not self.is_ending:
            reply = create_reply(delivery.message, b"re:" + delivery.message.body)
            self.client.inner_producer().send(reply, now)
        super()._finish(delivery, key, now)


class SelectingApplication(ConsumingApplication):
    """Consumes the messages that `SELECTION` selects."""

    def _finish(self, delivery: Delivery, key: str, now: Now) -> None:
        wanted = self.context.expected.messages[key]
        if not selects(wanted):
            raise Violation("I21", f"{self.name} got {key}, which does not match: {wanted.tag!r} {wanted.keys!r}")
        super()._finish(delivery, key, now)


def responding(context: ApplicationContext, ip: str, random: Random, suspend_ms: int) -> RespondingApplication:
    """Return the application that replies."""
    return RespondingApplication(
        context,
        "answerer",
        ip,
        random,
        group=REPLYING_GROUP,
        expression=REQUEST_TAG,
        orderly=False,
        suspend_ms=suspend_ms,
    )


def selecting(context: ApplicationContext, ip: str, random: Random, suspend_ms: int) -> SelectingApplication:
    """Return the application that selects messages."""
    return SelectingApplication(
        context,
        "selector",
        ip,
        random,
        group=SELECTING_GROUP,
        expression=Sql(SELECTION),
        orderly=False,
        suspend_ms=suspend_ms,
    )
