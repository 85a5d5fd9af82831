"""Reads of the device for pulls, by worker threads: a pull that needs one waits for it and is then answered.

    pull ─► NotCached ─► begin: a job reads the ranges ─► the page cache has them ─► the pull is answered

Pops, and other requests that only read, wait likewise.

Pulls that need the same bytes share one read. READS_AT_ONCE reads are in progress at a time; connections take turns. If
the device does not return for LATE_MS, the pulls that wait for that read get an error, and so does each one that needs
these bytes until it returns; if all threads wait for it, all pulls that need the device do.
"""

import logging
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from tandemq.boundary import READS_AT_ONCE, Job, JobDone, Now, Turn
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pulls import Resume
from tandemq.errors import DiskFailed, StoreError
from tandemq.not_cached import FileRange, NotCached, read_ranges
from tandemq.telemetry.families import Batch, counter, gauge, single

log = logging.getLogger(__name__)
READS = counter("tandemq_device_reads_total", "Reads of the device for pulls: the page cache lacked the messages.")
LATE = counter("tandemq_device_reads_late_total", "Those that took more than 10 s, which the pulls did not wait for.")
IN_PROGRESS = gauge("tandemq_device_reads_in_progress", "Those that have begun and not ended.")
JOB = "read for pulls"
LATE_MS = 10_000
READS_MAX = 4_096
"""Maximum number of reads that have not ended, each of which keeps a file open; at most `open_files_max / 2`."""
WAITING_MAX = 65_536
WAITING_PER_LINK_MAX = 4096
"""Maximum number of requests that wait for a read, in total and of one connection."""
REPEATED_MS = 1000
"""Time after a read in which the device is waited for at once if the page cache lacks the same bytes again."""
REPEATED_MAX = 1024


class _Place(NamedTuple):
    """Where a read begins; reads that begin at the same place are one."""

    path: str
    position: int


@dataclass(slots=True, eq=False)
class _Read:
    """A read that waits for a thread, or is carried out by one."""

    place: _Place
    ranges: Sequence[FileRange]
    waiting: dict[tuple[int, Resume], None] = field(default_factory=dict)
    """Connection and continuation of the requests that wait for it. Pops of a topic share one continuation."""
    began_ms: int = 0
    is_late: bool = False


class DeviceReads:
    """All reads of the device for the pulls of one broker."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin without reads."""
        self._turn = kernel.turn
        self._reads_max = min(READS_MAX, kernel.store.disk.open_files_max // 2)
        self._reads: dict[_Place, _Read] = {}
        """All that have not ended."""
        self._queues: dict[int, deque[_Read]] = {}
        """Those without a thread, by the connection that needs them; connections take turns."""
        self._running: list[_Read] = []
        """Those with a thread, oldest first."""
        self._read_ms: dict[_Place, int] = {}
        """When places were read last, monotonic ms."""
        self._waiting = 0
        self._waiting_of: Counter[int] = Counter()
        """Number of requests that wait, by connection."""
        self._begun = self._late = 0
        """Number of reads that began since the start, and of those that took longer than LATE_MS."""

    def collect(self, _now: Now) -> Iterator[Batch | None]:
        """Yield the batches of the metrics."""
        yield single(READS, self._begun)
        yield single(LATE, self._late)
        yield single(IN_PROGRESS, len(self._reads))

    def must_wait(self, missing: NotCached, now_ms: int) -> bool:
        """Whether a read has to go to the device at once: what it needs was read a moment ago and is missing again."""
        return now_ms - self._read_ms.get(_place_of(missing), -REPEATED_MS) < REPEATED_MS

    def begin(self, missing: NotCached, link: int, resume: Resume, now_ms: int) -> bool:
        """Have ranges read for a request on a connection, which `resume` continues; False if too many requests wait.

        Raises:
            DiskFailed: the device does not return.
        """
        place = _place_of(missing)
        read = self._reads.get(place)
        if self._hangs or (read is not None and read.is_late):
            raise _not_returned(place.path)
        if read is not None and (link, resume) in read.waiting:
            return True
        is_full = read is None and len(self._reads) >= self._reads_max
        if is_full or self._waiting >= WAITING_MAX or self._waiting_of[link] >= WAITING_PER_LINK_MAX:
            return False
        if read is None:
            read = self._reads[place] = _Read(place, missing.ranges)
            self._queues.setdefault(link, deque()).append(read)
        read.waiting[link, resume] = None
        self._waiting += 1
        self._waiting_of[link] += 1
        self._start(now_ms)
        return True

    @property
    def _hangs(self) -> bool:
        """Whether all threads wait for a device that does not return."""
        return len(self._running) == READS_AT_ONCE and all(read.is_late for read in self._running)

    def _start(self, now_ms: int) -> None:
        """Give reads to free threads."""
        while self._queues and len(self._running) < READS_AT_ONCE:
            link, queue = next(iter(self._queues.items()))
            read = queue.popleft()
            del self._queues[link]
            if queue:
                self._queues[link] = queue
            read.began_ms = now_ms
            self._running.append(read)
            self._begun += 1
            self._turn.out.jobs.append(
                Job(JOB, partial(read_ranges, read.ranges), partial(self._ended, read), is_read=True)
            )

    def _ended(self, read: _Read, done: JobDone, turn: Turn, now: Now) -> None:
        self._running.remove(read)
        del self._reads[read.place]
        if done.error is not None and not isinstance(done.error, StoreError):
            raise done.error
        if read.is_late:
            took_s = (now.mono_ms - read.began_ms) / 1000
            log.warning("pull: the device returned after %.1f s: file=%s", took_s, read.place.path)
        if done.error is None:
            self._read_ms.pop(read.place, None)
            self._read_ms[read.place] = now.mono_ms
            if len(self._read_ms) > REPEATED_MAX:
                del self._read_ms[next(iter(self._read_ms))]
        self._start(now.mono_ms)
        self._resume(read, done.error, turn, now)

    def _resume(self, read: _Read, error: StoreError | None, turn: Turn, now: Now) -> None:
        waiting = list(read.waiting)
        self._end_wait(read, waiting)
        for _, resume in waiting:
            resume(error, turn, now)

    def _end_wait(self, read: _Read, waiting: Sequence[tuple[int, Resume]]) -> None:
        self._waiting -= len(waiting)
        for link, resume in waiting:
            del read.waiting[link, resume]
            self._waiting_of[link] -= 1
            if not self._waiting_of[link]:
                del self._waiting_of[link]

    def drop_link(self, link: int) -> None:
        """Forget the reads that a connection needed which has closed, unless they have begun or others need them."""
        for read in self._queues.pop(link, ()):
            self._end_wait(read, [request for request in read.waiting if request[0] == link])
            if read.waiting:
                other, _ = next(iter(read.waiting))
                self._queues.setdefault(other, deque()).append(read)
            else:
                del self._reads[read.place]

    def deadline_ms(self) -> int | None:
        """Return when a read is late, monotonic ms."""
        return next((read.began_ms + LATE_MS for read in self._running if not read.is_late), None)

    def run_due(self, turn: Turn, now: Now) -> None:
        """Refuse the requests whose read is late; if no thread is left, all that wait for one."""
        late = [read for read in self._running if not read.is_late and now.mono_ms >= read.began_ms + LATE_MS]
        if not late:
            return
        for read in late:
            read.is_late = True
            self._late += 1
        if self._hangs:
            queued = [read for queue in self._queues.values() for read in queue]
            self._queues.clear()
            for read in queued:
                del self._reads[read.place]
            late += queued
        log.error(
            "pull: the device has not returned for %d s, requests that need it fail: file=%s reads=%d requests=%d",
            LATE_MS // 1000,
            late[0].place.path,
            len(late),
            sum(len(read.waiting) for read in late),
        )
        for read in late:
            self._resume(read, _not_returned(read.place.path), turn, now)


def _place_of(missing: NotCached) -> _Place:
    first = missing.ranges[0]
    return _Place(first.file.path, first.position)


def _not_returned(path: str) -> DiskFailed:
    return DiskFailed(f"{path}: the device has not returned for {LATE_MS // 1000} s", hint="check the device")
