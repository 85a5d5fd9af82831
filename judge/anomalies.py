"""The rules of the judge, by name, and the anomalies found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple


class Rule(NamedTuple):
    """What a rule calls an anomaly, and what a history needs for it."""

    definition: str
    needs: str


RULES = {
    "lost": Rule(
        "an acknowledged message that no reader got, although its queue was read beyond its offset", "poll or read"
    ),
    "unseen": Rule("an acknowledged message that nobody has read when the history is settled", "settled"),
    "vanished": Rule("a message that was read, and is missing in a later complete read of its offset", "read"),
    "duplicate": Rule("a message at more offsets of its topic than its sends can have stored", "poll, pop or read"),
    "phantom": Rule("a message that was read before it was sent, or was never sent", "poll, pop or read"),
    "corrupt": Rule("a message whose content differs from what was sent", "hash of sends and reads"),
    "failed-read": Rule("a message that was read although every send of it failed", "fail of sends"),
    "order": Rule(
        "a message sent after an acknowledged one of the same process, with a lower offset of the same queue",
        "q and offset of acknowledgements",
    ),
    "skipped": Rule("a reader's position passed over a message that others got", "poll"),
    "went-back": Rule("a reader's position moved back without a new assignment", "poll"),
    "diverging": Rule("one offset of a queue with two messages", "poll, pop or read"),
    "aborted-read": Rule("a message that was read although its transaction was rolled back", "end"),
    "half-read": Rule("a message that was read before its transaction was decided", "end"),
    "committed-lost": Rule(
        "a message of a committed transaction that nobody has read when the history is settled", "end, settled"
    ),
    "undecided": Rule("an acknowledged half message that is undecided when the history is settled", "settled"),
    "early": Rule("a delayed or timed message that was read before its time", "due or delay_ms"),
    "late": Rule(
        "a delayed or timed message that was first read after the promised delay", "due or delay_ms, late_ms promised"
    ),
    "recalled-read": Rule("a timed message that was read although its recall was confirmed in time", "recall"),
    "offset-back": Rule(
        "a committed offset lower than one committed or reported before, without a commit of that offset", "offset"
    ),
    "pop-overlap": Rule("a message popped again within its invisible time", "pop"),
    "pop-again": Rule("a message popped again after its confirmed acknowledgement", "pop, ack"),
    "pop-lost": Rule(
        "a popped message, neither acknowledged nor popped again when the history is settled", "pop, settled"
    ),
    "shared": Rule(
        "a queue that two consumers of a group hold at the same time for longer than promised",
        "hold, shared_ms promised",
    ),
    "not-redelivered": Rule("a message sent back and not delivered again when the history is settled", "back, settled"),
    "G0": Rule(
        "a cycle of sends: by the order of offsets and the order of each process", "q and offset of acknowledgements"
    ),
    "G1c": Rule(
        "a cycle of sends and reads: by the order of offsets, of each process, and of a read after its sends",
        "the same, poll",
    ),
}
"""Rules by name."""
KEPT_PER_RULE = 10_000
"""Anomalies kept of each rule; more are only counted."""


class Anomaly(NamedTuple):
    """One violation. `lines`: numbers of the lines of the history that prove it."""

    rule: str
    text: str
    lines: tuple[int, ...]


@dataclass(slots=True)
class Findings:
    """The anomalies of one history."""

    counts: Counter[str] = field(default_factory=Counter)
    kept: list[Anomaly] = field(default_factory=list)

    def add(self, rule: str, text: str, *lines: int) -> None:
        """Add an anomaly; lines that are 0 do not exist and are left out."""
        assert rule in RULES, rule
        self.counts[rule] += 1
        if self.counts[rule] <= KEPT_PER_RULE:
            self.kept.append(Anomaly(rule, text, tuple(sorted({line for line in lines if line}))))
