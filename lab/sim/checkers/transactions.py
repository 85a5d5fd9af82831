"""Transactions in the log of a group's master, at the end of a run.

    half message ──copied by checks──► copies ──► named by an op record ──► committed, rolled back or given up

I11  A half message is committed at most once, whichever of its copies a producer names, and only if its producer
     decided so. None is forgotten: an op record names each of them, and one that its producer decided to commit is in
     its topic, unless it was given up after as many checks as configured. (`deliveries`: no other one reaches a
     consumer; `final`: none stays open.)

The log is read without the broker's code for transactions.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from lab.sim.checkers.logs import LoggedMessage
from lab.sim.checkers.model import TOPICS, ExpectedState
from lab.sim.world.world import Violation
from tandemq.codec.record.record import property_value
from tandemq.model.topic import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from tandemq.model.transactions import TransactionState


class LoggedHalf(NamedTuple):
    """A half message or a copy of one. `root`: queue offset of the half message."""

    root: int
    key: str
    queue_offset: int
    log_offset: int


class TransactionLog:
    """The transactions in one log."""

    def __init__(self, name: str, records: Iterable[LoggedMessage], start: int, *, is_unharmed: bool) -> None:
        """`name`: of the broker. `start`: of its log. `is_unharmed`: whether no bit of it was flipped at rest."""
        self.name = name
        self._is_whole = start == 0 and is_unharmed
        self.halves: list[LoggedHalf] = []
        self.over: set[int] = set()
        """Queue offsets that op records name, of copied half messages too."""
        self.copied: set[int] = set()
        self.commits: list[tuple[str, int]] = []
        """Key and prepared offset of the messages in their topics."""
        self.given_up: dict[str, int] = {}
        """Key to number of checks."""
        for found in records:
            self._add(found)

    def _add(self, found: LoggedMessage) -> None:
        properties = found.record.properties
        if found.topic == HALF_TOPIC:
            first = property_value(properties, b"TRAN_PREPARED_QUEUE_OFFSET")
            root = found.record.queue_offset if first is None else int(first)
            self.halves.append(LoggedHalf(root, found.key, found.record.queue_offset, found.record.log_offset))
        elif found.topic == OP_HALF_TOPIC:
            named = {int(part) for part in found.body.decode().split(",") if part}
            self.over |= named
            if property_value(properties, b"TANDEM_COPIED") == b"true":
                self.copied |= named
        elif found.topic == CHECK_MAX_TIME_TOPIC:
            times = property_value(properties, b"TRANSACTION_CHECK_TIMES")
            self.given_up[found.key] = int(times or b"0")
        elif found.topic in TOPICS and found.record.sys_flag & 0xC:
            self.commits.append((found.key, found.prepared_offset))

    def judge(self, expected: ExpectedState, committed: set[str], checks_max: int, *, may_lose: bool) -> None:
        """Check the log.

        Args:
            expected: decisions of the producers.
            committed: keys of the messages that are in their topics, in the logs of all groups.
            checks_max: number of checks after which a transaction may be given up.
            may_lose: whether a group lost messages, so that a commit may be missing.

        Raises:
            Violation: I11.
        """
        roots = {half.log_offset: half for half in self.halves}
        counts: Counter[int] = Counter()
        for key, prepared_offset in self.commits:
            wanted = expected.messages[key]
            if not wanted.is_half or wanted.outcome is not TransactionState.COMMIT:
                raise Violation("I11", f"{self.name} committed {key}, whose outcome is {wanted.outcome}")
            half = roots.get(prepared_offset)
            if half is not None and half.key == key:
                counts[half.root] += 1
                if counts[half.root] > 1:
                    raise Violation("I11", f"{self.name} committed {key}, half message {half.root}, twice")
            elif self._is_whole:
                raise Violation("I11", f"{self.name} committed {key}, and has no half message at {prepared_offset}")
        for half in self.halves:
            self._judge_end(half, expected, committed, checks_max, may_lose=may_lose)

    def _judge_end(
        self, half: LoggedHalf, expected: ExpectedState, committed: set[str], checks_max: int, *, may_lose: bool
    ) -> None:
        if not self._is_whole:
            return
        if half.queue_offset not in self.over:
            raise Violation("I11", f"{self.name} forgot {half.key}: no op record names half message {half}")
        is_committed = half.key in committed or expected.messages[half.key].outcome is not TransactionState.COMMIT
        if is_committed or half.queue_offset in self.copied or may_lose:
            return
        if self.given_up.get(half.key, -1) < checks_max:
            raise Violation("I11", f"{self.name} ended {half.key}, half message {half}, and did not commit it")
