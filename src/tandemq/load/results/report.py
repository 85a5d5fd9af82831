"""Results of load runs as plain values, ready for JSON; and the stopwatch and the progress reports of a run."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tandemq.metrics import Histogram


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Percentiles of a histogram of nanoseconds, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


def latency_histogram() -> Histogram:
    """Return an empty histogram of nanoseconds with 3.2 % precision."""
    return Histogram(exact_below=64, largest=(1 << 63) - 1)


def summarize(histogram: Histogram) -> LatencySummary:
    """Return the percentiles that reports print, of a histogram of nanoseconds."""

    def ms(value: int) -> float:
        return round(value / 1e6, 4)

    return LatencySummary(
        count=histogram.count,
        p50_ms=ms(histogram.percentile(50)),
        p99_ms=ms(histogram.percentile(99)),
        p999_ms=ms(histogram.percentile(99.9)),
        max_ms=ms(histogram.highest),
    )


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Progress of a run, reported to the caller about twice a second."""

    phase: str  # "warm-up", "measure", "drain", "fill", …
    elapsed_s: float
    done: int  # Messages, bytes or connections, depending on the run.
    rate: float  # The same per second, over the last interval.
    refused: int = 0


OnProgress = Callable[[LoadProgress], None]


@dataclass(frozen=True, slots=True)
class ProduceResult:
    """Messages acknowledged with SUCCESS during the measured time."""

    messages: int
    seconds: float
    messages_per_s: float
    mb_per_s: float  # Bodies only, 10^6 bytes.
    latency: (
        LatencySummary  # From the send call to the read that brought the response; sampled if the window is above 1.
    )
    refused: dict[int, int]  # Responses by code, those other than SUCCESS, warm-up included.
    first_refusal: str
    unanswered: int  # Requests without a response when draining ended.
    cpu_share: float  # Of one core, of this process.


@dataclass(frozen=True, slots=True)
class ConsumeResult:
    """Messages read by pulls."""

    messages: int
    seconds: float
    messages_per_s: float
    mb_per_s: float  # Whole records, 10^6 bytes.
    pulls: int
    offsets: int  # Offsets that were passed; more than messages with a tag expression.
    passes: int  # How often all queues were read to their ends.
    cpu_share: float


@dataclass(frozen=True, slots=True)
class ReplicateResult:
    """Commit log bytes received as a classic slave."""

    bytes: int
    seconds: float
    mb_per_s: float  # 10^6 bytes.
    transfers: int  # Frames with a body.
    start_offset: int
    end_offset: int
    cpu_share: float


class Elapsed(NamedTuple):
    """Time since a stopwatch started."""

    seconds: float
    cpu_share: float
    """Share of one core that this process used."""


@dataclass(slots=True)
class Stopwatch:
    """Wall and CPU time of this process since `start`."""

    wall: float = field(default_factory=time.perf_counter)
    cpu: float = field(default_factory=time.process_time)

    def read(self) -> Elapsed:
        """Return the time since the start."""
        wall = max(time.perf_counter() - self.wall, 1e-9)
        return Elapsed(wall, round((time.process_time() - self.cpu) / wall, 3))


class Ticker:
    """Calls `on_progress` about twice a second with the rate since the last call."""

    __slots__ = ("_last", "_last_done", "_on_progress", "_started")

    _EVERY_S = 0.5

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._started = self._last = time.perf_counter()
        self._last_done = 0

    def due(self, now: float) -> bool:
        """Whether half a second has passed since the last report; `now` is of time.perf_counter."""
        return now - self._last >= self._EVERY_S

    def report(self, phase: str, done: int, now: float, refused: int = 0) -> None:
        """Report the progress, with the rate since the last call."""
        rate = max(0.0, (done - self._last_done) / max(now - self._last, 1e-9))
        if self._on_progress is not None:
            self._on_progress(LoadProgress(phase, round(now - self._started, 2), done, round(rate, 1), refused))
        self._last, self._last_done = now, done


def to_json(result: Any) -> str:
    """Return a result as one line of JSON."""
    return json.dumps(dataclasses.asdict(result), separators=(", ", ": "))
