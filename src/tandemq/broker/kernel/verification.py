"""Interface of the log verification for features that read records or queue entries which may be damaged."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.storage.consume_queue import ConsumeQueue

A_PULL = "a pull"
A_DELAY = "delivery after a delay"
A_TIMER = "delivery at a time"
A_TRANSACTION = "reading of transactions"


class Mismatch(NamedTuple):
    """A queue entry that does not match the record at its log offset: one of them is damaged."""

    queue_offset: int
    log_offset: int
    reason: str


class Verification(ABC):
    """The scrubber, as other features use it."""

    @abstractmethod
    def look_at(self, log_offset: int, source: str, reason: str, now: Now) -> None:
        """Verify a log offset that was reported as damaged, before everything else. `source`: `A_PULL`, …"""

    @abstractmethod
    def is_right(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Whether a queue entry was found to be right."""

    @abstractmethod
    def suspect_entry(self, queue: ConsumeQueue, queue_offset: int, reason: str) -> bool:
        """Search the log for the record of a queue entry that cannot be right; whether it may still be found."""

    @abstractmethod
    def suspect_pulled(self, queue: ConsumeQueue, found: Mismatch) -> bool:
        """Handle a mismatch that a pull met: verify the log there, or search the record; see `suspect_entry`."""
