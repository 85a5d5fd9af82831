"""Interface of timed messages for other features."""

from abc import ABC, abstractmethod


class MessageTimers(ABC):
    """The timed messages of one broker."""

    @property
    @abstractmethod
    def passed_ms(self) -> int:
        """Calendar time: every message with an earlier `TIMER_OUT_MS` is delivered and in the log; 0 on a slave, and
        before those that wait are known."""
