"""Durations of a node's turns, as its shell measures them, and the requests that were answered in them.

A request is counted when it is handled; the latency of all requests of a turn is the turn's, since their responses
leave at its end. So the cost is one addition per request and a few per turn.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tandemq.telemetry.buckets import SECONDS_BOUNDS, DurationBuckets
from tandemq.telemetry.families import Batch, counter, histogram, single

SLOW_NS = 50_000_000
UNKNOWN_CODE = -1
"""Stands for all request codes without a handler, which are numbers that clients choose."""

TURN_SECONDS = histogram(
    "tandemq_loop_turn_seconds",
    "Duration of the turns of the event loop: handling what arrived, without waiting, receiving and sending.",
    bounds=SECONDS_BOUNDS,
)
SLOW_TURNS = counter("tandemq_loop_slow_turns_total", "Turns of the event loop longer than 50 ms.")


class AnswerKind(NamedTuple):
    """Labels by which answered requests are counted."""

    request_code: int
    response_code: int


class TurnTimes:
    """Durations of turns, and latencies of the requests answered in them."""

    def __init__(self) -> None:
        """Begin with no turn."""
        self.turns = DurationBuckets()
        self.slow = 0
        self.answers: dict[AnswerKind, DurationBuckets] = {}
        self._fresh: dict[AnswerKind, int] = {}

    def answered(self, kind: AnswerKind, times: int = 1) -> None:
        """Count requests answered in this turn."""
        self._fresh[kind] = self._fresh.get(kind, 0) + times

    def turn_took(self, duration_ns: int) -> None:
        """Count a turn that has ended, with the requests answered in it."""
        self.turns.add(duration_ns)
        if duration_ns > SLOW_NS:
            self.slow += 1
        if self._fresh:
            for kind, times in self._fresh.items():
                found = self.answers.get(kind)
                if found is None:
                    found = self.answers[kind] = DurationBuckets()
                found.add_many(duration_ns, times)
            self._fresh.clear()

    def collect(self) -> Iterator[Batch]:
        """Yield the families of the turns."""
        yield Batch(TURN_SECONDS, distributions={(): self.turns.distribution()})
        yield single(SLOW_TURNS, self.slow)
