"""A producer of transactions beside the other clients, and what must become of each of them.

    half message SEND_OK ─► commit ─────► delivered at least once            checked when all clients have finished
                     ├────► rollback ───► never delivered, in no topic
                     └────► forgotten ──► a broker asks: the outcome is decided then, as above; nobody asks: forgotten

Half messages are forgotten by sending them behind the producer's back, as a process that dies after the half message.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from chaos.filters import properties_of
from chaos.history import History, Stored
from chaos.recorder import Recorder
from tandemq.client.blocking import BlockingTransactionProducer
from tandemq.errors import TandemError
from tandemq.model.message import PRODUCER_GROUP, TRAN_MSG, Message, SendStatus, StoredMessage
from tandemq.model.transactions import TransactionState
from tandemq.run.ports import Setting

NAME = "t"
"""Tag of the messages, and beginning of their bodies."""
SETTINGS: dict[str, Setting] = {
    "transactionCheckInterval": 1_000,
    "transactionTimeOut": 1_000,
    "transactionCheckMax": 10_000,
}
"""Settings of the brokers with which transactions are over soon, and none is given up."""
_GROUP = "chaos-transactions"
PACE_S = 0.02
_SHOWN = 3
_COMMIT, _ROLLBACK, _UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


class _RolledBack(Exception):
    """Ends a transaction with a rollback."""


@dataclass(slots=True)
class TransactionHistory:
    """The transactions of one client: their outcomes, and what is known of their half messages."""

    name: str = NAME
    """Tag of the messages, and beginning of their bodies."""
    stored: set[str] = field(default_factory=set)
    """Bodies of the half messages that were answered SEND_OK."""
    outcomes: dict[str, TransactionState] = field(default_factory=dict)
    confirmed: int = 0
    checks: int = 0
    asked: set[str] = field(default_factory=set)
    """Bodies of those that were left undecided once."""
    recorder: Recorder | None = None
    """Writes the history for the judge."""
    refused: list[str] = field(default_factory=list)
    """Ends that a broker refused although it had acknowledged the half message."""

    @property
    def due(self) -> set[str]:
        """Bodies that must be delivered."""
        return {body for body in self.stored if self.outcomes.get(body) is _COMMIT}

    @property
    def undecided(self) -> set[str]:
        """Bodies of acknowledged half messages that no broker has asked about yet."""
        return self.stored - self.outcomes.keys()

    def half_stored(self, body: str) -> None:
        """Record that a half message was answered SEND_OK."""
        if self.recorder is not None:
            self.recorder.half_stored(body)
        self.stored.add(body)

    def decided(self, body: str, state: TransactionState) -> None:
        """Record the outcome that the producer decides."""
        if self.recorder is not None:
            self.recorder.decided(self.name, body, is_commit=state is _COMMIT)
        self.outcomes[body] = state

    def check(self, delivered: set[str]) -> list[str]:
        """Return the violations of I11 among the deliveries."""
        found = list(self.refused)
        mine = {body for body in delivered if body.startswith(f"{self.name}-")}
        if wrong := sorted(body for body in mine if self.outcomes.get(body) is not _COMMIT):
            found.append(f"I11: {len(wrong)} delivered and not committed, first {wrong[:_SHOWN]}")
        if lost := sorted(self.due - delivered):
            found.append(f"I11: {len(lost)} committed and never delivered, first {lost[:_SHOWN]}")
        if forgotten := sorted(self.undecided):
            found.append(f"I11: {len(forgotten)} forgotten: no broker asked, first {forgotten[:_SHOWN]}")
        return found

    def check_log(
        self, name: str, messages: Iterable[Stored], halves: Iterable[Stored], ops: Iterable[Stored]
    ) -> list[str]:
        """Return the violations of I11 in a member's log: its topic, half messages and op records."""
        found = []
        stored = [record for record in messages if record.tag == self.name]
        wrong = [record.body for record in stored if self.outcomes.get(record.body) is not _COMMIT]
        if wrong:
            found.append(f"I11: {len(wrong)} in the log of {name} and not committed, first {wrong[:_SHOWN]}")
        if missing := sorted(self.due - {record.body for record in stored}):
            found.append(f"I11: {len(missing)} committed and not in the log of {name}, first {missing[:_SHOWN]}")
        over = {int(part) for record in ops for part in record.body.split(",") if part}
        mine = (record for record in halves if record.tag == self.name)
        left = [(record.place.offset, record.body) for record in mine if record.place.offset not in over]
        if left:
            found.append(f"I11: {len(left)} half messages in the log of {name} are not over, first {left[:_SHOWN]}")
        return found

    def decide(self, body: str) -> TransactionState:
        """Decide a transaction that a broker asks for: some at once, some when asked again."""
        self.checks += 1
        number = int(body.rpartition("-")[2])
        if number % 3 == 0 and body not in self.asked:
            self.asked.add(body)
            return _UNKNOWN
        if body not in self.outcomes:
            self.decided(body, _COMMIT if number % 2 else _ROLLBACK)
        return self.outcomes[body]

    def report(self) -> dict[str, Any]:
        """Return the figures for the run's JSON."""
        states = list(self.outcomes.values())
        return {
            "stored": len(self.stored),
            "committed": states.count(_COMMIT),
            "rolled_back": states.count(_ROLLBACK),
            "confirmed": self.confirmed,
            "checks": self.checks,
        }


class TransactionClient:
    """Makes transactions until it is stopped, then answers checks until the brokers have no more."""

    def __init__(self, name_server: str, topic: str, history: History) -> None:
        self._name_server = name_server
        self._topic = topic
        self._history = history
        self.transactions = TransactionHistory()
        self.is_done = threading.Event()
        """Set once no more transactions are made."""

    def run(self, is_over: threading.Event, drained: threading.Event, pace_s: float = PACE_S) -> None:
        """Make transactions until `is_over`, answer checks until `drained`. `pace_s`: pause after each."""
        with BlockingTransactionProducer(
            self._name_server, group=_GROUP, check=self._check, topics=[self._topic]
        ) as producer:
            number = 0
            while not is_over.wait(pace_s):
                number += 1
                body = f"{NAME}-{number}"
                self._history.sending(body, NAME, is_half=True)
                try:
                    self._make(producer, body, number)
                except TandemError as error:
                    self._history.refused(f"{type(error).__name__}: {str(error)[:120]}")
            self.is_done.set()
            drained.wait()

    def _make(self, producer: BlockingTransactionProducer, body: str, number: int) -> None:
        """Commit five of ten transactions, roll back two, forget three."""
        turn, known = number % 10, self.transactions
        if turn > 6:
            marks = {TRAN_MSG: "true", PRODUCER_GROUP: _GROUP} | properties_of(body)
            result = producer.send(Message(self._topic, body.encode(), tags=NAME, keys=[body], properties=marks))
            if result.status is SendStatus.SEND_OK:
                known.half_stored(body)
            return
        properties = properties_of(body)
        transaction = producer.transaction(
            Message(self._topic, body.encode(), tags=NAME, keys=[body], properties=properties)
        )
        state = _COMMIT if turn < 5 else _ROLLBACK
        try:
            with transaction:
                known.half_stored(body)
                known.decided(body, state)
                if state is _ROLLBACK:
                    raise _RolledBack
        except _RolledBack:
            pass
        except TandemError as error:
            if body not in known.stored:
                known.decided(body, _ROLLBACK)  # the client answers checks of it so
                raise
            known.refused.append(f"I11: the end of {body} was refused: {error}")
        known.confirmed += transaction.is_confirmed

    def _check(self, message: StoredMessage) -> TransactionState:
        return self.transactions.decide(message.body.decode(errors="replace"))
