"""Catch-up reads of a whole topic: one open pull per queue, several connections.

Queues are assigned to connections in turn. When the last queue has reached its end, all start again at their first
offset until the time is up, so that a short log can be read for long enough. Messages are counted by walking the record
sizes, and the first record of every response must be the requested one.
"""

from __future__ import annotations

import select
import time
from dataclasses import dataclass

from tandemq.load.results.report import ConsumeResult, OnProgress, Stopwatch, Ticker
from tandemq.load.wire.frames import PullFrames
from tandemq.load.wire.pulls import FOUND, OFFSET_MOVED, PullReader, PullResponse
from tandemq.load.wire.records import count_records, queue_offset
from tandemq.load.wire.responses import LoadError
from tandemq.load.wire.sockets import LoadConnection

_POLL_S = 0.1
_SILENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """Options of a consume run."""

    address: str
    topic: str
    queue_count: int = 8
    connections: int = 4
    max_messages: int = 32  # Per pull.
    seconds: float = 5.0  # Measured time; 0: one pass over all queues.
    warmup_s: float = 1.0
    group: str = "load_consumer"


@dataclass(slots=True)
class _Queue:
    """One queue and the offset of its next pull."""

    number: int
    link: LoadConnection
    offset: int = 0
    done: bool = False


class _Run:
    def __init__(self, options: ConsumeOptions, on_progress: OnProgress | None) -> None:
        self.options = options
        self.ticker = Ticker(on_progress)
        self.epoll = select.epoll()
        self.frames = PullFrames(options.topic, group=options.group, max_messages=options.max_messages)
        self.links: dict[int, tuple[LoadConnection, PullReader]] = {}
        self.messages = self.record_bytes = self.pulls = self.passes = 0
        self.queues: list[_Queue] = []
        self.stopping = False
        self.moved_at = time.perf_counter()

    def connect(self) -> None:
        options = self.options
        links = [
            LoadConnection(options.address, self.epoll) for _ in range(min(options.connections, options.queue_count))
        ]
        self.links = {link.fd: (link, PullReader()) for link in links}
        self.queues = [_Queue(number, links[number % len(links)]) for number in range(options.queue_count)]

    def begin_pass(self) -> None:
        for queue in self.queues:
            queue.offset, queue.done = 0, False
            self.pull(queue)

    def pull(self, queue: _Queue) -> None:
        # The opaque is the queue's number: there is one open pull per queue.
        queue.link.send(self.frames.frame(queue.number, queue.offset, queue.number))

    def turn(self) -> float:
        events = self.epoll.poll(_POLL_S)
        now = time.perf_counter()
        for fd, event in events:
            link, reader = self.links[fd]
            if event != select.EPOLLIN:
                link.ready(event)
            if event & ~select.EPOLLOUT:
                for response in reader.read(link):
                    self.take(response, reader)
        if events:
            self.moved_at = now
        elif now - self.moved_at > _SILENCE_S:
            raise LoadError(f"no response for {_SILENCE_S:.0f} s")
        if self.ticker.due(now):
            self.ticker.report("consume", self.messages, now)
        return now

    def take(self, response: PullResponse, reader: PullReader) -> None:
        queue = self.queues[response.opaque]
        if response.code == FOUND:
            start, end = response.records_start, response.records_end
            if queue_offset(reader.buffer, start) != queue.offset:
                raise LoadError(f"queue {queue.number}: asked for offset {queue.offset}, got another message")
            count = count_records(reader.buffer, start, end)
            if response.next_offset != queue.offset + count:
                raise LoadError(
                    f"queue {queue.number}: {count} messages, but the next offset is {response.next_offset}"
                )
            self.messages += count
            self.record_bytes += end - start
            self.pulls += 1
        queue.offset = response.next_offset
        moved = response.code == OFFSET_MOVED and queue.offset < response.max_offset
        if self.stopping or (response.code != FOUND and not moved) or queue.offset >= response.max_offset:
            queue.done = True
        else:
            self.pull(queue)

    def read_until(self, end: float | None) -> None:
        """Read passes until `end`; one pass if it is None."""
        while True:
            if all(queue.done for queue in self.queues):
                self.passes += 1
                if end is None:
                    return
                if not self.messages:
                    raise LoadError(f"topic {self.options.topic} has no messages")
                self.begin_pass()
            if self.turn() >= (end or float("inf")):
                return

    def close(self) -> None:
        for link, _ in self.links.values():
            link.close()
        self.epoll.close()


def consume(options: ConsumeOptions, on_progress: OnProgress | None = None) -> ConsumeResult:
    """Read the topic and return the rates.

    Raises:
        LoadError: no connection, a refused pull, an empty topic, or a response that does not fit its request.
    """
    run = _Run(options, on_progress)
    try:
        run.connect()
        run.begin_pass()
        if options.seconds > 0 and options.warmup_s > 0:
            run.read_until(time.perf_counter() + options.warmup_s)
        messages, record_bytes, pulls = run.messages, run.record_bytes, run.pulls
        watch = Stopwatch()
        run.read_until(watch.wall + options.seconds if options.seconds > 0 else None)
        seconds, cpu_share = watch.read()
        messages, record_bytes, pulls = run.messages - messages, run.record_bytes - record_bytes, run.pulls - pulls
        return ConsumeResult(
            messages=messages,
            seconds=round(seconds, 3),
            messages_per_s=round(messages / seconds, 1),
            mb_per_s=round(record_bytes / seconds / 1e6, 2),
            pulls=pulls,
            passes=run.passes,
            cpu_share=cpu_share,
        )
    finally:
        run.close()
