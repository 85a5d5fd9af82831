"""ReceiveMessage: a pop at the broker that the client has chosen, its messages, and what becomes of undelivered ones.

Messages come from any queue of the broker, also if the client names one, as with Java's proxy: clients ask queue after
queue, and would wait at an empty one.

    pop ─► messages ─┬─► attempts used up: dead letters          ─┐
                     ├─► tag not asked for: acknowledged          ├─ the rest goes to the client
                     └─► handle kept for renewal, if asked for   ─┘
    the client has gone meanwhile ─► all are returned: others get them after `RETURN_MS`

Brokers compare hashes of tags, so that a message with another tag of the same hash arrives here.

Source: docs/reference/grpc.md; RocketMQ ReceiveMessageActivity, ConsumerProcessor, PopMessageResultFilterImpl.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.client.core.connections import Answer
from tandemq.client.core.operations import Invoke, Steps, ask_all, current_time, refusal
from tandemq.client.core.pulled import decode_pulled
from tandemq.client.core.routes import MASTER_ID, Routes
from tandemq.codec.remoting.pops import PopAnswer, PopQuery, pop_request
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.group import (
    SQL_EXPRESSION,
    SUBSCRIBE_ALL,
    TAG_EXPRESSION,
    SubscriptionGroupConfig,
    parse_tag_expression,
)
from tandemq.model.message import StoredMessage
from tandemq.model.pop import INVISIBLE_MS_MAX, MESSAGES_MAX
from tandemq.proxy.brokers import Brokers
from tandemq.proxy.handles import Receipt, ack_request, dead_letter_request
from tandemq.proxy.messages import received
from tandemq.proxy.names import Caller, group_of, topic_of
from tandemq.proxy.protocol.messaging_pb2 import Code, FilterType, Message, ReceiveMessageRequest
from tandemq.proxy.renewals import Renewals
from tandemq.proxy.status import CallRefused
from tandemq.proxy.times import milliseconds

log = logging.getLogger(__name__)
RENEWED_INVISIBLE_MS = 60_000
"""Invisible time of messages whose handles the proxy renews."""
POLL_MS_DEFAULT = 15_000
POLL_MS_MAX = 20_000
POLL_MARGIN_MS = 500
"""How long before the client's deadline the broker answers."""
GRACE_MS = 5_000
"""How long after the end of a poll the broker may answer."""
BODIES_BYTES_MAX = 16 << 20
"""Decompressed bodies of a response; messages beyond it are returned. A response of 1 MiB can inflate to 1 GiB."""


class Pop(NamedTuple):
    """What a client asks for."""

    topic: str
    group: str
    broker: str
    batch: int
    invisible_ms: int
    is_renewed: bool
    expression: str
    kind: str
    attempt_id: str | None


class Received(NamedTuple):
    """Messages of a pop."""

    messages: list[Message]
    receipts: list[Receipt]
    is_renewed: bool = False


def parse_pop(query: ReceiveMessageRequest, invisible_ms_min: int) -> Pop:
    """Return what a request asks for. `invisible_ms_min`: shortest invisible time.

    Raises:
        CallRefused: it is invalid.
    """
    queue = query.message_queue
    if query.auto_renew:
        invisible_ms = RENEWED_INVISIBLE_MS
    else:
        invisible_ms = milliseconds(query.invisible_duration)
        if not invisible_ms_min <= invisible_ms <= INVISIBLE_MS_MAX:
            what = "small" if invisible_ms < invisible_ms_min else "large"
            text = f"the invisibleTime is too {what}: {invisible_ms}, not {invisible_ms_min} to {INVISIBLE_MS_MAX} ms"
            raise CallRefused(Code.ILLEGAL_INVISIBLE_TIME, text)
    expression = query.filter_expression.expression or SUBSCRIBE_ALL
    kind = SQL_EXPRESSION if query.filter_expression.type == FilterType.SQL else TAG_EXPRESSION
    if kind == TAG_EXPRESSION:
        _tags_of(expression)
    return Pop(
        topic_of(queue.topic),
        group_of(query.group),
        queue.broker.name,
        max(1, min(query.batch_size, MESSAGES_MAX)),
        invisible_ms,
        query.auto_renew,
        expression,
        kind,
        query.attempt_id if query.HasField("attempt_id") else None,
    )


def _tags_of(expression: str) -> frozenset[str] | None:
    try:
        tags = parse_tag_expression(expression)
    except ValueError as error:
        raise CallRefused(Code.ILLEGAL_FILTER_EXPRESSION, str(error)) from error
    return None if tags is None else frozenset(tags)


class Receiving:
    """Pops for clients."""

    def __init__(
        self,
        routes: Routes,
        brokers: Brokers,
        renewals: Renewals,
        seen: Callable[[str, Now], bool],
        invisible_ms_min: int,
    ) -> None:
        """Begin.

        Args:
            routes: of the brokers.
            brokers: the brokers.
            renewals: of the handles that the proxy keeps alive.
            seen: notes that a client lives; returns whether its end will be noticed.
            invisible_ms_min: shortest invisible time.
        """
        self._routes = routes
        self._invisible_ms_min = invisible_ms_min
        self._seen = seen
        self._brokers = brokers
        self._renewals = renewals
        self._turns = 0
        self.received = 0
        """Number of messages given to clients."""

    def receive(self, caller: Caller, query: ReceiveMessageRequest) -> Steps[Received]:
        """Wait for messages and return them; none if there were none in time.

        Raises:
            CallRefused: the request is invalid.
            TandemError: the broker refuses it, or does not respond.
        """
        pop = parse_pop(query, self._invisible_ms_min)
        if not pop.broker:
            pop = pop._replace(broker=(yield from self._next_broker(pop.topic)))
        config = yield from self._brokers.group(pop.group, pop.topic, caller.deadline_ms)
        is_ordered = config.consume_message_orderly
        now = yield from current_time()
        if pop.is_renewed:
            pop = pop._replace(is_renewed=self._seen(caller.client_id, now))
        poll_ms = _poll_ms(query, caller, now)
        until_ms = now.mono_ms + poll_ms
        asked = PopQuery(
            pop.group,
            pop.topic,
            pop.batch,
            pop.invisible_ms,
            pop.expression,
            pop.kind,
            starts_at_end=True,
            is_ordered=is_ordered,
            attempt_id=pop.attempt_id,
        )
        answer = yield from self._brokers.ask_master(
            pop.topic,
            pop.broker,
            lambda now: pop_request(asked, max(0, until_ms - now.mono_ms)),
            caller.deadline_ms,
            poll_ms + GRACE_MS,
        )
        if answer.code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND):
            return Received([], [])
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer)
        return (yield from self._sort(caller, query, pop, config, answer))

    def _next_broker(self, topic: str) -> Steps[str]:
        route = yield from self._brokers.route(topic)
        names = sorted(route.brokers)
        if not names:
            raise CallRefused(Code.BAD_REQUEST, f"the topic {topic} has no broker")
        self._turns += 1
        return names[self._turns % len(names)]

    def _sort(
        self, caller: Caller, query: ReceiveMessageRequest, pop: Pop, config: SubscriptionGroupConfig, answer: Command
    ) -> Steps[Received]:
        now = yield from current_time()
        tags = _tags_of(pop.expression) if pop.kind == TAG_EXPRESSION else None
        popped = PopAnswer(pop.broker, answer)
        found = Received([], [], is_renewed=pop.is_renewed)
        unwanted: list[Receipt] = []
        spent: list[tuple[Receipt, StoredMessage]] = []
        pulled = decode_pulled(answer.body, BODIES_BYTES_MAX)
        for stored in pulled.messages:
            if stored.fault:
                log.warning("receive: the message %s comes again: %s", stored.offset_message_id, stored.fault)
                continue
            receipt = Receipt(popped.handle(stored), stored.log_offset)
            attempt = popped.attempts(stored) + 1
            if tags is not None and stored.tags not in tags:
                unwanted.append(receipt)
            elif attempt > config.retry_max_times + 1 and not config.consume_message_orderly:
                spent.append((receipt, stored))
            else:
                found.messages.append(received(stored, query.message_queue.topic, str(receipt), attempt))
                found.receipts.append(receipt)
        late = _receipts_in(answer.body[pulled.end :], popped)
        if late:
            self._renewals.not_delivered(caller.client_id, pop.group, pop.topic, late, now, is_renewed=False)
        if pop.is_renewed:
            for receipt in found.receipts:
                self._renewals.keep(caller.client_id, pop.group, pop.topic, receipt, now)
        if unwanted or spent:
            yield from self._end_others(pop, unwanted, spent)
        self.received += len(found.messages)
        return found

    def _end_others(self, pop: Pop, unwanted: list[Receipt], spent: list[tuple[Receipt, StoredMessage]]) -> Steps[None]:
        """End messages that the client does not get.

        Args:
            pop: their pop.
            unwanted: those with other tags.
            spent: those whose attempts are used up; each is acknowledged when it is a dead letter.
        """
        address = self._routes.members(pop.broker).get(MASTER_ID)
        if address is None:
            return
        letters = [dead_letter_request(receipt, pop.group, pop.topic, stored.unique_key) for receipt, stored in spent]
        answers = yield from ask_all([Invoke(address, letter) for letter in letters])
        ended = [receipt for (receipt, _), answer in zip(spent, answers, strict=True) if _is_success(answer)]
        acks = [Invoke(address, ack_request(receipt, pop.group, pop.topic)) for receipt in (*unwanted, *ended)]
        answers += yield from ask_all(acks)
        failed = len(answers) - sum(map(_is_success, answers))
        if failed:
            log.warning("receive: %d messages of %s come to group %s again", failed, pop.topic, pop.group)

    def return_messages(self, client_id: str, query: ReceiveMessageRequest, found: Received, now: Now) -> None:
        """Have messages that the client did not get delivered to others soon."""
        topic, group = topic_of(query.message_queue.topic), group_of(query.group)
        self._renewals.not_delivered(client_id, group, topic, found.receipts, now, is_renewed=found.is_renewed)


def _receipts_in(data: bytes, popped: PopAnswer) -> list[Receipt]:
    """Return the receipts of messages in what the limit of decompressed bodies has left of a response."""
    found = []
    while data:
        pulled = decode_pulled(data, BODIES_BYTES_MAX)
        found += [Receipt(popped.handle(stored), stored.log_offset) for stored in pulled.messages]
        data = data[pulled.end :] if pulled.messages else b""
    return found


def _is_success(answer: Answer) -> bool:
    return isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS


def _poll_ms(query: ReceiveMessageRequest, caller: Caller, now: Now) -> int:
    """Return for how long the broker holds a pop that finds nothing."""
    poll_ms = POLL_MS_DEFAULT
    if query.HasField("long_polling_timeout"):
        poll_ms = milliseconds(query.long_polling_timeout)
    if caller.deadline_ms is not None:
        poll_ms = min(poll_ms, caller.deadline_ms - now.mono_ms - POLL_MARGIN_MS)
    return max(0, min(poll_ms, POLL_MS_MAX))
