"""The verification of the log.

Source: docs/guides/monitoring.md.
"""

from collections.abc import Iterator, Sequence

from tandemq.boundary import Now
from tandemq.broker.features.scrub.scrubber import Scrubber
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.telemetry.families import Batch, Source, counter, gauge, single

SCRUB_RATIO = gauge("tandemq_scrub_position_ratio", "Share of the commit log that this pass has verified.")
SCRUB_PASS = gauge(
    "tandemq_scrub_last_pass_timestamp_seconds", "Calendar time of the end of the last complete pass; 0: none yet."
)
SCRUB_BYTES = gauge("tandemq_scrub_pass_bytes", "Bytes that this pass has verified.")
DAMAGED = gauge("tandemq_damaged_ranges", "Damaged ranges of the commit log.", "state")
REPAIRED = counter("tandemq_repaired_ranges_total", "Damaged ranges that were repaired.")


class ScrubMetrics(Feature):
    """The source of the families above."""

    def __init__(self, kernel: Kernel, scrubber: Scrubber) -> None:
        """Begin."""
        self._store = kernel.store
        self._damages = kernel.damages
        self._scrubber = scrubber

    def sources(self) -> Sequence[Source]:
        """See `Feature`."""
        return (self.collect,)

    def collect(self, _now: Now) -> Iterator[Batch | None]:
        """Yield the batches."""
        scrubber, log = self._scrubber, self._store.log
        until, start = scrubber.current_pass.until, log.start
        whole = max(1, until - start)
        yield single(SCRUB_RATIO, min(1.0, max(0, scrubber.position - start) / whole) if until else 0.0)
        yield single(SCRUB_PASS, scrubber.last_pass.ended_ms / 1000)
        yield single(SCRUB_BYTES, scrubber.current_pass.bytes)
        ranges = self._damages.ranges
        lost = sum(damage.is_lost for damage in ranges)
        unread = sum(damage.is_unread and not damage.is_lost for damage in ranges)
        waits = len(ranges) - lost - unread
        yield Batch(DAMAGED, {("waits",): waits, ("lost",): lost, ("unread",): unread})
        yield single(REPAIRED, self._damages.repaired_total)
