"""An application on the real client that sends transactions.

Its outcomes are in a database of its own that survives its process. It commits and rolls back, at once or later, leaves
transactions to be checked, repeats ends, and sends ends that name other places or another group. Killed between the
half message and the end, it is asked by the brokers when it runs again.

I11  no check asks for another message than was sent, or for one of a transaction that is over for its client; after the
     faults transactions are confirmed again  (see `checkers.transactions` for the log)
I17  an end that a broker refused is of no open transaction, unless the broker lost it
"""

from dataclasses import replace
from functools import partial
from random import Random

from lab.sim.checkers.model import TOPICS, SentMessage
from lab.sim.workload.application import Application, ApplicationContext
from lab.sim.workload.client_producer import as_message
from lab.sim.workload.group_clients import OnResponse
from lab.sim.workload.messages import MessageFactory
from lab.sim.world.world import Violation
from tandemq.boundary import Now
from tandemq.client.core.calls import Ticket
from tandemq.client.core.settings import ProducerOptions
from tandemq.client.node import ClientNode
from tandemq.client.producer.encoder import prepare
from tandemq.client.producer.transactions import TransactionCheck, TransactionTicket
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.message import PRODUCER_GROUP, TRAN_MSG, SendResult
from tandemq.model.transactions import TransactionState

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
PACE_MS = 700
OPEN_MAX = 30
LEFT = 0.25
"""Share of the transactions that are left to be checked."""


class TransactingApplication(Application):
    """Sends transactions until it is stopped."""

    def __init__(
        self,
        context: ApplicationContext,
        name: str,
        ip: str,
        random: Random,
        *,
        retry_ms: int = 0,
        on_response: OnResponse | None = None,
    ) -> None:
        """An application whose client starts with the first turn. `on_response` is called with every response."""
        super().__init__(context, name, ip, random)
        self._world = context.world
        self._factory = MessageFactory(context.world, name, random, frozenset(), uses_late=False)
        self._options = ProducerOptions(
            group=f"P-{name}",
            timeout_ms=2_500,
            retries=random.randrange(3),
            retry_ms=retry_ms,
            queues_per_new_topic=3,
            retry_when_not_stored_ok=random.random() < 0.3,
        )
        self._open: dict[TransactionTicket, SentMessage] = {}
        self.is_stopped = False
        self.is_hasty = False
        """Whether every check is answered with its outcome at once; set by the owner."""
        self.confirmed_us = 0
        """When the newest transaction was made whose end is confirmed."""
        self.monitor.by_body = self._factory.by_body
        self.monitor.on_answer = on_response

    def begin(self, client: ClientNode, now: Now) -> None:
        """See `Application`."""
        self._open.clear()
        self._producer = client.producer(self._options)
        self._core = client.transactions(self._producer)
        client.routes.want(TOPICS[0])
        client.introduce(TOPICS[:1], now)
        self.after(300, now, self._step)

    def _step(self, now: Now) -> None:
        if self.is_stopped or self.is_ending:
            return
        for _ in range(self.random.choice((1, 1, 2, 4))):
            if len(self._open) < OPEN_MAX:
                self._send(now)
        self.after(self.random.randrange(PACE_MS // 4, PACE_MS * 2), now, self._step)

    def _send(self, now: Now) -> None:
        wanted = self._factory.message(TOPICS[0], plain=True)
        wanted.is_half = True
        if self.random.random() < LEFT:
            self._leave(wanted, now)
            return
        check_after_s = self.random.choice((None, None, None, 1, 6))
        ticket = self._core.begin(as_message(wanted), now, check_after_s=check_after_s)
        self._open[ticket] = wanted
        ticket.then(partial(self._stored, wanted, ticket))

    def _leave(self, wanted: SentMessage, now: Now) -> None:
        """Send a half message behind the client's back, as a process that dies after it."""
        message = as_message(wanted)
        marks = {TRAN_MSG: "true", PRODUCER_GROUP: self._options.group}
        key = f"{self.random.getrandbits(128):032X}"
        prepared = prepare(replace(message, properties=message.properties | marks), key, self._options)
        self._producer.send_prepared(prepared, now)

    # Ends.

    def _stored(self, wanted: SentMessage, ticket: TransactionTicket, _done: object) -> None:
        if ticket.error is not None:
            self._open.pop(ticket, None)
            wanted.decide(ROLLBACK, self._world.now_us)
            return
        delay_ms = self.random.choice((0, 0, 0, 50, 1_000, 4_000, 8_000))
        self.timers.at(0, lambda now: self.after(delay_ms, now, partial(self._decide, wanted, ticket)))

    def _decide(self, wanted: SentMessage, ticket: TransactionTicket, now: Now) -> None:
        if self._open.pop(ticket, None) is None or self.is_ending:
            return
        half = ticket.result()
        if self.random.random() < 0.15:
            self._send_wrong_end(half, now)
        state = COMMIT if self.random.random() < 0.7 else ROLLBACK
        wanted.decide(state, self._world.now_us)
        self._core.end(ticket, state, now).then(partial(self._ended, wanted, half, state))
        if self.random.random() < 0.1:
            self._repeat(half, state, now)

    def _ended(self, wanted: SentMessage, half: SendResult, state: TransactionState, ended: Ticket[bool]) -> None:
        if ended.error is None and ended.result():
            self.confirmed_us = max(self.confirmed_us, wanted.made_us)
            if self.random.random() < 0.3:
                self.timers.at(0, partial(self._repeat, half, state))

    def _repeat(self, half: SendResult, state: TransactionState, now: Now) -> None:
        self._send_end(half, now, commitOrRollback=str(int(state)))

    def _send_wrong_end(self, half: SendResult, now: Now) -> None:
        """Send a commit that brokers must not carry out."""
        wrong = self.random.choice(
            (
                {"producerGroup": "another"},
                {"tranStateTableOffset": str(half.queue_offset + 1)},
                {"commitLogOffset": str(int(half.offset_message_id[-16:], 16) + 8)},
                {"commitLogOffset": str(1 << 40)},
                {"commitOrRollback": "4"},
                {"msgId": "0" * 32, "transactionId": "0" * 32},
            )
        )
        self._send_end(half, now, **{"commitOrRollback": str(int(COMMIT))} | wrong)

    def _send_end(self, half: SendResult, now: Now, **fields: str) -> None:
        address = self.client.routes.members(half.queue.broker_name).get(0)
        if address is None or not self.client.remoting.is_open(address) or self.is_ending:
            return
        named = {
            "producerGroup": self._options.group,
            "tranStateTableOffset": str(half.queue_offset),
            "commitLogOffset": str(int(half.offset_message_id[-16:], 16)),
            "msgId": half.unique_key,
            "transactionId": half.unique_key,
        }
        self.client.remoting.send_oneway(address, Command(RequestCode.END_TRANSACTION, fields=named | fields), now)

    # Checks.

    def act(self, now: Now) -> bool:
        """Take the checks there are."""
        taken = False
        while not self.is_ending and (check := self._core.next_check()) is not None:
            taken = True
            delay_ms = 0 if self.is_hasty else self.random.choice((0, 0, 200, 1_500))
            self.after(delay_ms, now, partial(self._answer, check))
        return taken

    def _answer(self, check: TransactionCheck, now: Now) -> None:
        wanted = self._factory.by_body(check.message.body)
        if wanted is None or (wanted.key, wanted.topic) != (check.message.unique_key, check.message.topic):
            raise Violation("I11", f"{self.name} was asked for a transaction that was not sent: {check.message}")
        if wanted.outcome is None and (self.is_hasty or self.random.random() < 0.7):
            wanted.decide(COMMIT if self.random.random() < 0.6 else ROLLBACK, self._world.now_us)
        self._core.answer(check, wanted.outcome or UNKNOWN, now)
