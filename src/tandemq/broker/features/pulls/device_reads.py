"""Reads of the device for pulls, by worker threads: a pull that needs one waits for it and is then answered.

    pull ─► NotCached ─► begin: a job reads the ranges ─► the page cache has them ─► the pull is answered

Pulls that need the same part of a file share one read. If the device does not return for LATE_MS, the pulls get an
error, and so does each pull that needs such a part, until the device returns.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from tandemq.boundary import Job, JobDone, Now, Turn
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pulls import Resume
from tandemq.errors import DiskFailed, StoreError
from tandemq.storage.not_cached import FileRange, NotCached, read_ranges
from tandemq.telemetry.families import Batch, counter, gauge, single

log = logging.getLogger(__name__)
READS = counter("tandemq_device_reads_total", "Reads of the device for pulls: the page cache lacked the messages.")
LATE = counter("tandemq_device_reads_late_total", "Those that took more than 10 s, which the pulls did not wait for.")
IN_PROGRESS = gauge("tandemq_device_reads_in_progress", "Those that have begun and not ended.")
JOB = "read for pulls"
LATE_MS = 10_000
READS_MAX = 1024
"""Maximum number of reads in progress."""
WAITING_MAX = 32_768
WAITING_PER_LINK_MAX = 4096
"""Maximum number of requests that wait for a read, in total and of one connection."""
PART_BYTES = 256 << 10
REPEATED_MS = 1000
"""Time after a read in which the same part is taken from the device at once, if the page cache lacks it again."""
REPEATED_MAX = 1024


class _Part(NamedTuple):
    """Place where a read begins; reads that begin in the same part of a file are one."""

    path: str
    number: int
    """Of the part in its file."""


@dataclass(slots=True, eq=False)
class _Read:
    """A read in progress."""

    path: str
    """File of the first range."""
    began_ms: int
    waiting: list[tuple[int, Resume]] = field(default_factory=list)
    """Connection and continuation of the requests that wait."""
    is_late: bool = False


class DeviceReads:
    """All reads of the device for the pulls of one broker."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin without reads."""
        self._turn = kernel.turn
        self._reads: dict[_Part, _Read] = {}
        """By place, oldest first."""
        self._read_ms: dict[_Part, int] = {}
        """When parts were read last, monotonic ms."""
        self._waiting = 0
        self._waiting_of: Counter[int] = Counter()
        """Number of requests that wait, by connection."""
        self._next_late_ms: int | None = None
        self.begun = 0
        """Number of reads since the start."""
        self.late = 0
        """Those of them that took longer than LATE_MS."""

    def collect(self, _now: Now) -> Iterator[Batch | None]:
        """Yield the batches of the metrics."""
        yield single(READS, self.begun)
        yield single(LATE, self.late)
        yield single(IN_PROGRESS, len(self._reads))

    def must_wait(self, missing: NotCached, now_ms: int) -> bool:
        """Whether a read has to go to the device at once: what it needs was read a moment ago and is missing again."""
        return now_ms - self._read_ms.get(_part_of(missing.ranges[0]), -REPEATED_MS) < REPEATED_MS

    def begin(self, missing: NotCached, link: int, resume: Resume, now_ms: int) -> bool:
        """Have ranges read for a request on a connection, which `resume` continues; False if too many requests wait.

        Raises:
            DiskFailed: the device does not return.
        """
        part = _part_of(missing.ranges[0])
        read = self._reads.get(part)
        if read is not None and read.is_late:
            raise _not_returned(read.path)
        is_full = read is None and len(self._reads) >= READS_MAX
        if is_full or self._waiting >= WAITING_MAX or self._waiting_of[link] >= WAITING_PER_LINK_MAX:
            return False
        if read is None:
            read = self._reads[part] = _Read(part.path, now_ms)
            run = partial(read_ranges, missing.ranges)
            self._turn.out.jobs.append(Job(JOB, run, partial(self._ended, part), is_read=True))
            self.begun += 1
            if self._next_late_ms is None:
                self._next_late_ms = now_ms + LATE_MS
        read.waiting.append((link, resume))
        self._waiting += 1
        self._waiting_of[link] += 1
        return True

    def _ended(self, part: _Part, done: JobDone, turn: Turn, now: Now) -> None:
        read = self._reads.pop(part)
        if done.error is not None and not isinstance(done.error, StoreError):
            raise done.error
        if read.is_late:
            took_s = (now.mono_ms - read.began_ms) / 1000
            log.warning("pull: the device returned after %.1f s: file=%s", took_s, read.path)
        if done.error is None:
            self._read_ms[part] = now.mono_ms
            if len(self._read_ms) > REPEATED_MAX:
                del self._read_ms[next(iter(self._read_ms))]
        self._resume(read, done.error, turn, now)

    def _resume(self, read: _Read, error: StoreError | None, turn: Turn, now: Now) -> None:
        waiting, read.waiting = read.waiting, []
        self._waiting -= len(waiting)
        for link, resume in waiting:
            self._waiting_of[link] -= 1
            if not self._waiting_of[link]:
                del self._waiting_of[link]
            resume(error, turn, now)

    def deadline_ms(self) -> int | None:
        """Return when a read may be late, monotonic ms."""
        return self._next_late_ms

    def run_due(self, turn: Turn, now: Now) -> None:
        """Refuse the requests whose read is late."""
        if self._next_late_ms is None or now.mono_ms < self._next_late_ms:
            return
        late = [read for read in self._reads.values() if not read.is_late and now.mono_ms >= read.began_ms + LATE_MS]
        if late:
            log.error(
                "pull: the device has not returned for %d s, requests that need it fail: file=%s reads=%d requests=%d",
                LATE_MS // 1000,
                late[0].path,
                len(late),
                sum(len(read.waiting) for read in late),
            )
        for read in late:
            read.is_late = True
            self.late += 1
            self._resume(read, _not_returned(read.path), turn, now)
        times = [read.began_ms for read in self._reads.values() if not read.is_late]
        self._next_late_ms = min(times) + LATE_MS if times else None


def _part_of(first: FileRange) -> _Part:
    return _Part(first.file.path, first.position // PART_BYTES)


def _not_returned(path: str) -> DiskFailed:
    return DiskFailed(f"{path}: the device has not returned for {LATE_MS // 1000} s", hint="check the device")
