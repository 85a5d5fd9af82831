"""Transactions of a producer: half messages, their ends, and the checks of brokers.

    begin ─► half message stored ─► end(COMMIT or ROLLBACK) ─► confirmed by the broker
                 │                         └► no response, or the time is over: the broker asks
                 └► not stored as configured: rolled back, the transaction fails

    check of a broker ─► still running here: unknown ─► decided here: the decision ─► else: the application is asked

The application is asked only about transactions that this process does not know, such as those of an earlier process.
A request to end a transaction is not repeated after an unknown outcome: a Java broker would store the message twice.

A half message is sent again like any message when an attempt fails, so that brokers may hold several of one
transaction. A check of another one than the one that is committed is answered with UNKNOWN until that commit is
confirmed, and makes the client request it again. Then it is answered with ROLLBACK; with COMMIT if the broker that was
to commit knows no such open transaction any more: rather twice than never.

Invariants: at most `CHECKS_MAX` checks wait for the application, further ones are dropped, since the broker asks again.
The last `DECISIONS_MAX` decisions are kept.

Owner: the node. Source: docs/reference/transactions.md; RocketMQ DefaultMQProducerImpl, TransactionMQProducer.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec.structs import replace as replace_fields

from tandemq.boundary import Now
from tandemq.client.core.calls import Ticket, Timers
from tandemq.client.core.connections import RemotingClient
from tandemq.client.core.operations import (
    OperationRunner,
    Steps,
    ask_any_code,
    current_time,
    pause,
    refusal,
)
from tandemq.client.core.routes import MASTER_ID, Routes
from tandemq.client.producer.encoder import prepare
from tandemq.client.producer.machine import ProducerCore
from tandemq.client.producer.publish_info import Select
from tandemq.client.producer.unique_keys import UniqueKeys
from tandemq.errors import (
    ClosedError,
    InvalidMessage,
    LocalError,
    NotConnected,
    OutcomeUnknown,
    ProtocolError,
    RemoteError,
)
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import (
    PRODUCER_GROUP,
    TRAN_MSG,
    Message,
    SendResult,
    SendStatus,
    StoredMessage,
    decode_properties,
)
from tandemq.model.transactions import CHECK_IMMUNITY, FIRST_QUEUE_OFFSET, TransactionState

log = logging.getLogger(__name__)
CHECKS_MAX = 2_000
DECISIONS_MAX = 10_000
OPEN_MAX = 100_000
"""Maximum number of transactions of a producer that run at the same time."""
END_PAUSE_MS = 200
"""Pause before a refused end is sent again."""
IMMUNITY_S_MAX = 999_999_999
_AGAIN = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.GO_AWAY,
    }
)
"""Responses of a broker that ends no transactions now, after which the same or the next master may."""


_NOT_CONFIRMED = frozenset(
    {ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.ILLEGAL_OPERATION}
)
"""Responses of a broker that has ended the transaction, less safely than it is configured to, and of one that ends it
only by the answer to its next check."""


class TransactionTicket(Ticket[SendResult], eq=False):
    """A transaction; settled when its half message is stored."""

    topic: str = ""
    unique_key: str = ""
    properties: str = ""
    """The encoded properties of the half message."""


class TransactionCheck(msgspec.Struct, eq=False):
    """A broker's question for the outcome of a transaction."""

    address: str
    message: StoredMessage
    fields: dict[str, str]
    """Header of the newest request for it."""

    @property
    def key(self) -> str:
        """Name of the transaction: its unique key, or the place of the half message for a producer without keys."""
        return self.message.unique_key or f"{self.address}/{self.fields.get('commitLogOffset')}"


class _Decision(NamedTuple):
    """Outcome of a transaction that this process has begun."""

    state: TransactionState
    half: SendResult | None
    """Place of the half message; None: it is unknown whether it is stored, and the transaction did not run."""
    is_confirmed: bool = False
    """Whether its broker has confirmed the end."""
    is_lost: bool = False
    """Whether its broker has refused the end, as one of no open transaction."""


class TransactionCore:
    """The transactions of one producer."""

    def __init__(
        self,
        producer: ProducerCore,
        remoting: RemotingClient,
        routes: Routes,
        runner: OperationRunner,
        timers: Timers,
        keys: UniqueKeys,
    ) -> None:
        """Nothing is open."""
        self._producer = producer
        self._remoting = remoting
        self._routes = routes
        self._runner = runner
        self._timers = timers
        self._keys = keys
        self._running: dict[str, TransactionTicket] = {}
        """Transactions that are not decided, by unique key."""
        self._decisions: dict[str, _Decision] = {}
        self._checks: dict[str, TransactionCheck] = {}
        """Checks that wait for the application, or for its answer, by unique key."""
        self._ready: deque[TransactionCheck] = deque()
        """Checks that wait for the application."""
        self._confirming: set[str] = set()
        """Unique keys of decisions whose end was requested by a check, and has no response yet."""
        self._is_closed = False
        self.on_check: Callable[[], None] = lambda: None
        """Called when a check waits for the application."""
        self.ending = 0
        """Number of transactions whose end is in flight."""
        self.dropped = 0
        """Number of checks that were dropped because too many waited."""

    # Half messages.

    def begin(
        self, message: Message, now: Now, *, select: Select | None = None, check_after_s: int | None = None
    ) -> TransactionTicket:
        """Send a half message.

        The ticket fails as that of a send, and with RemoteError if the half message is stored less safely than the
        broker is configured to; then it is rolled back.

        Args:
            check_after_s: age at which the broker asks for the outcome first; by default its `transactionTimeOut`.

        Raises:
            LocalError, RecordTooLarge: nothing was sent.
        """
        if self._is_closed:
            raise ClosedError("the producer is closed")
        if message.delay_level:
            raise InvalidMessage("a message of a transaction has no delay level")
        if len(self._running) >= OPEN_MAX:
            raise LocalError(f"{OPEN_MAX} transactions of this producer are open already")
        marks = {TRAN_MSG: "true", PRODUCER_GROUP: self._producer.options.group}
        if check_after_s is not None:
            if not 0 <= check_after_s <= IMMUNITY_S_MAX:
                raise LocalError(f"check_after_s is {check_after_s}; it must be 0 to {IMMUNITY_S_MAX}")
            marks[CHECK_IMMUNITY] = str(check_after_s)
        key = self._keys.next(now.wall_ms)
        prepared = prepare(replace(message, properties=message.properties | marks), key, self._producer.options)
        ticket = self._running[key] = TransactionTicket(
            topic=message.topic, unique_key=key, properties=prepared.properties
        )
        try:
            sent = self._producer.send_prepared(prepared, now, select=select)
        except LocalError:
            del self._running[key]
            raise
        sent.then(partial(self._sent, ticket))
        return ticket

    def _sent(self, ticket: TransactionTicket, sent: Ticket[SendResult]) -> None:
        error = sent.error
        if error is not None:
            self._decide(ticket, TransactionState.ROLLBACK, None)
            ticket.fail(error)
            return
        half = sent.result()
        if _log_offset(half) is None:
            self._decide(ticket, TransactionState.ROLLBACK, None)
            ticket.fail(ProtocolError(f"{half.queue.broker_name} stored a half message, its id is invalid"))
            return
        if half.status is SendStatus.SEND_OK:
            ticket.settle(half)
            return
        error = RemoteError(
            f"the half message is stored with {half.status.value} only, and rolled back",
            code=int(ResponseCode[half.status.name]),
        )
        # As Java's client does: the transaction does not run, since its half message may be lost.
        self._timers.at(0, partial(self._roll_back_unsafe, ticket, half, error))

    def _roll_back_unsafe(self, ticket: TransactionTicket, half: SendResult, error: RemoteError, now: Now) -> None:
        ended = self._start_end(ticket, half, TransactionState.ROLLBACK, now, retry_ms=0)
        ended.then(lambda _: ticket.fail(error))

    # Ends.

    def end(
        self, ticket: TransactionTicket, state: TransactionState, now: Now, *, retry_ms: int | None = None
    ) -> Ticket[bool]:
        """End a transaction whose half message is stored.

        Returns:
            whether the broker has confirmed it in time. If not, an earlier attempt has ended it, or the broker will
            ask, and the answer is this state. The ticket fails with RemoteError if the broker knows no such open
            transaction at the first attempt.

        Args:
            retry_ms: for how long to try while no broker ends transactions; by default as long as a send is retried.

        Raises:
            LocalError: the transaction was ended before, or the state is UNKNOWN.
        """
        if state is TransactionState.UNKNOWN:
            raise LocalError("a transaction ends with COMMIT or ROLLBACK")
        if self._running.get(ticket.unique_key) is not ticket:
            raise LocalError("the transaction was ended before, or its producer was closed")
        wait_ms = self._producer.options.retry_ms if retry_ms is None else retry_ms
        return self._start_end(ticket, ticket.result(), state, now, retry_ms=wait_ms)

    def _start_end(
        self, ticket: TransactionTicket, half: SendResult, state: TransactionState, now: Now, *, retry_ms: int
    ) -> Ticket[bool]:
        self._decide(ticket, state, half)
        self.ending += 1
        steps = self._ending(ticket, half, state, now.mono_ms + retry_ms)
        ended = self._runner.start(steps, now)
        ended.then(partial(self._end_over, ticket.unique_key))
        return ended

    def _end_over(self, key: str, ended: Ticket[bool]) -> None:
        self.ending -= 1
        self._note_end(key, ended)

    def _note_end(self, key: str, ended: Ticket[bool]) -> None:
        decision = self._decisions.get(key)
        if decision is None:
            return
        if isinstance(ended.error, RemoteError):
            self._decisions[key] = decision._replace(is_lost=True)
        elif ended.error is None and ended.result():
            self._decisions[key] = decision._replace(is_confirmed=True)

    def _decide(self, ticket: TransactionTicket, state: TransactionState, half: SendResult | None) -> None:
        del self._running[ticket.unique_key]
        while len(self._decisions) >= DECISIONS_MAX:
            del self._decisions[next(iter(self._decisions))]
        self._decisions[ticket.unique_key] = _Decision(state, half)

    def _ending(
        self, ticket: TransactionTicket, half: SendResult, state: TransactionState, until_ms: int
    ) -> Steps[bool]:
        timeout_ms, name = self._producer.options.timeout_ms, half.queue.broker_name
        fields = _end_fields(half, ticket.topic)
        may_be_over = False  # by an attempt that was answered with an unknown outcome
        while True:
            address = self._routes.members(name).get(MASTER_ID)
            if address is not None:
                try:
                    answer = yield from ask_any_code(address, self._end_request(fields, state), timeout_ms)
                except NotConnected:
                    pass
                except OutcomeUnknown:
                    yield from self._trace_end(ticket, state, address)
                    return False
                else:
                    if answer.code == ResponseCode.SUCCESS:
                        yield from self._trace_end(ticket, state, address)
                        return True
                    if answer.code in _NOT_CONFIRMED:
                        return False
                    if answer.code not in _AGAIN:
                        if may_be_over:
                            return False
                        raise refusal(answer)
                    may_be_over = True
            now = yield from current_time()
            if self._is_closed or now.mono_ms >= until_ms:
                return False
            self._routes.refresh(ticket.topic, now)
            yield from pause(END_PAUSE_MS)

    def _trace_end(self, ticket: TransactionTicket, state: TransactionState, address: str) -> Steps[None]:
        if self._producer.tracer is not None:
            now = yield from current_time()
            properties = decode_properties(ticket.properties)
            self._producer.tracer.ended(
                ticket.unique_key, ticket.topic, properties, state, address, now, from_check=False
            )

    def _end_request(
        self, fields: dict[str, str], state: TransactionState, *, is_answer: bool = False, remark: str = ""
    ) -> Command:
        own = {
            "producerGroup": self._producer.options.group,
            "commitOrRollback": str(int(state)),
            "fromTransactionCheck": "true" if is_answer else "false",
        }
        return Command(RequestCode.END_TRANSACTION, remark=remark or None, fields=fields | own)

    # Checks.

    def take_check(self, address: str, message: StoredMessage, fields: dict[str, str], now: Now) -> None:
        """Handle a check of a broker."""
        check = TransactionCheck(address, message, fields)
        key = check.key
        waiting = self._checks.get(key)
        if key in self._running:
            self._answer(check, TransactionState.UNKNOWN, "the transaction is running", now)
        elif key in self._decisions:
            self._answer_decided(check, self._decisions[key], now)
        elif waiting is not None:
            waiting.address, waiting.fields = address, fields
        elif len(self._checks) >= CHECKS_MAX:
            self.dropped += 1
            log.warning("check dropped: %d wait already group=%s", CHECKS_MAX, self._producer.options.group)
        else:
            self._checks[key] = check
            self._ready.append(check)
            self.on_check()

    def _answer_decided(self, check: TransactionCheck, decision: _Decision, now: Now) -> None:
        """Answer a check of a transaction that was decided here; a commit that is not confirmed yet waits for that."""
        state, half, key = self._decided(check, decision), decision.half, check.key
        if half is None or decision.is_confirmed or state is TransactionState.ROLLBACK:
            self._answer(check, state, "", now)
        elif state is TransactionState.COMMIT:
            self._request_end(key, check.address, self._named_half(check, half), _named_fields(check), now)
            self._trace_answer(check, state, now)
        else:
            self._answer(check, state, f"{half.queue.broker_name} has not confirmed the commit", now)
            address = self._routes.members(half.queue.broker_name).get(MASTER_ID)
            if address is not None and key not in self._confirming:
                self._request_end(key, address, half, _end_fields(half, check.message.topic), now)

    def _decided(self, check: TransactionCheck, decision: _Decision) -> TransactionState:
        """Return the answer to a check; the broker may hold another half message than the one that was ended."""
        half = decision.half
        if half is None or decision.state is TransactionState.ROLLBACK:
            return TransactionState.ROLLBACK
        first = check.message.properties.get(FIRST_QUEUE_OFFSET)
        is_there = self._routes.name_of(check.address) == half.queue.broker_name
        if is_there and first in (None, str(half.queue_offset)):
            return TransactionState.COMMIT
        if decision.is_confirmed:
            return TransactionState.ROLLBACK
        return TransactionState.COMMIT if decision.is_lost else TransactionState.UNKNOWN

    def _named_half(self, check: TransactionCheck, half: SendResult) -> SendResult:
        """Return the half message that a check names; `half`: the result of sending it."""
        first = check.message.properties.get(FIRST_QUEUE_OFFSET) or check.fields.get("tranStateTableOffset", "")
        name = self._routes.name_of(check.address)
        if not first.isdecimal() or name is None:
            return half
        queue = replace_fields(half.queue, broker_name=name)
        return replace_fields(half, queue=queue, queue_offset=int(first))

    def _request_end(self, key: str, address: str, half: SendResult, fields: dict[str, str], now: Now) -> None:
        """Commit a half message of a transaction whose commit is not confirmed, and note whether it is now."""
        self._confirming.add(key)
        ended = self._runner.start(self._committing(address, fields), now)
        ended.then(partial(self._confirmed, key, half))

    def _committing(self, address: str, fields: dict[str, str]) -> Steps[bool]:
        command = self._end_request(fields, TransactionState.COMMIT, is_answer=True)
        answer = yield from ask_any_code(address, command, self._producer.options.timeout_ms)
        if answer.code != ResponseCode.SUCCESS and answer.code not in _NOT_CONFIRMED | _AGAIN:
            raise refusal(answer)
        return answer.code == ResponseCode.SUCCESS

    def _confirmed(self, key: str, half: SendResult, ended: Ticket[bool]) -> None:
        self._confirming.discard(key)
        decision = self._decisions.get(key)
        if decision is not None and not decision.is_confirmed and ended.error is None and ended.result():
            self._decisions[key] = decision._replace(half=half)
        self._note_end(key, ended)

    def next_check(self) -> TransactionCheck | None:
        """Return a check for the application, which `answer` answers; None if none waits."""
        return self._ready.popleft() if self._ready else None

    def answer(self, check: TransactionCheck, state: TransactionState, now: Now, *, remark: str = "") -> None:
        """Answer a check. `remark`: why the outcome is unknown, for the broker's log."""
        if self._checks.get(check.key) is check:
            del self._checks[check.key]
        if not self._is_closed:
            self._answer(check, state, remark, now)

    def _answer(self, check: TransactionCheck, state: TransactionState, remark: str, now: Now) -> None:
        """Send the outcome; if that is lost, the broker asks again."""
        command = self._end_request(_named_fields(check), state, is_answer=True, remark=remark)
        self._remoting.send_oneway(check.address, command, now)
        self._trace_answer(check, state, now)

    def _trace_answer(self, check: TransactionCheck, state: TransactionState, now: Now) -> None:
        if self._producer.tracer is not None:
            message = check.message
            key = message.unique_key or message.offset_message_id
            self._producer.tracer.ended(
                key, message.topic, message.properties, state, check.address, now, from_check=True
            )

    def close(self) -> None:
        """Begin no more transactions, answer no more checks, and repeat no end that is refused."""
        self._is_closed = True
        self._ready.clear()
        self._checks.clear()


def _log_offset(half: SendResult) -> int | None:
    """Return the log offset in the offset id of a half message; None if it has none."""
    try:
        return int(half.offset_message_id[-16:], 16)
    except ValueError:
        return None


def _end_fields(half: SendResult, topic: str) -> dict[str, str]:
    """Return the header fields that name a half message which was sent here."""
    return {
        "tranStateTableOffset": str(half.queue_offset),
        "commitLogOffset": str(_log_offset(half)),
        "msgId": half.unique_key,
        "transactionId": half.unique_key,
        "topic": topic,
        "bname": half.queue.broker_name,
    }


def _named_fields(check: TransactionCheck) -> dict[str, str]:
    """Return the header fields that name the half message of a check."""
    named = ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId", "topic", "bname")
    return {name: check.fields[name] for name in named if name in check.fields}
