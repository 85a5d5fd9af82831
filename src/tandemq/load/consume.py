"""Catch-up reads of whole topics: several connections that rotate over their queues, one open pull per queue.

Queues are assigned to connections in turn. Each connection has a number of pulls in flight; the queues behind them wait
for their turn, as the pull requests of a Java consumer do. When the last queue has reached its end, all start again at
their first offset until the time is up, so that a short log can be read for long enough.

Messages are counted by offsets, and in one of eight responses also by walking the record sizes; with a tag expression
always by walking. The first record of every response must be the requested one.
"""

from __future__ import annotations

import select
import time
from collections import deque
from dataclasses import dataclass, field

from tandemq.load.results.report import ConsumeResult, OnProgress, Stopwatch, Ticker
from tandemq.load.wire.frames import PullFrames, SendShape
from tandemq.load.wire.pulls import FOUND, OFFSET_MOVED, RETRY_AT_ONCE, PullReader, PullResponse
from tandemq.load.wire.records import count_records, queue_offset
from tandemq.load.wire.responses import LoadError
from tandemq.load.wire.sockets import LoadConnection

_POLL_S = 0.1
_SILENCE_S = 30.0
_ALL = "*"
_WALKED_EVERY = 8


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """Options of a consume run."""

    address: str
    topic: str
    queue_count: int = 8  # Of each topic.
    connections: int = 4
    max_messages: int = 32  # Per pull.
    seconds: float = 5.0  # Measured time; 0: one pass over all queues.
    warmup_s: float = 1.0
    group: str = "load_consumer"
    topics: int = 1  # As in SendShape.
    expression: str = _ALL  # Tags, for example "a || b".
    window: int = 32  # Pulls in flight per connection, of as many queues.
    expression_type: str = "TAG"  # TAG or SQL92.


@dataclass(slots=True)
class _Queue:
    """One queue and the offset of its next pull."""

    frames: PullFrames
    queue_id: int
    reader: _Reader
    offset: int = 0
    done: bool = False


@dataclass(slots=True)
class _Reader:
    """One connection and the queues that wait for their turn."""

    link: LoadConnection
    pulls: PullReader = field(default_factory=PullReader)
    waiting: deque[int] = field(default_factory=deque)
    in_flight: int = 0


class _Run:
    def __init__(self, options: ConsumeOptions, on_progress: OnProgress | None) -> None:
        self.options = options
        self.ticker = Ticker(on_progress)
        self.epoll = select.epoll()
        self.readers: dict[int, _Reader] = {}
        self.messages = self.record_bytes = self.pulls = self.passes = self.offsets = 0
        self.queues: list[_Queue] = []
        self.moved_at = time.perf_counter()

    def connect(self) -> None:
        options = self.options
        names = SendShape(options.topic, topics=options.topics).topic_names()
        count = options.queue_count * len(names)
        readers = [_Reader(LoadConnection(options.address, self.epoll)) for _ in range(min(options.connections, count))]
        self.readers = {reader.link.fd: reader for reader in readers}
        for topic in names:
            frames = PullFrames(
                topic,
                group=options.group,
                max_messages=options.max_messages,
                expression=options.expression,
                expression_type=options.expression_type,
            )
            for queue_id in range(options.queue_count):
                self.queues.append(_Queue(frames, queue_id, readers[len(self.queues) % len(readers)]))

    def begin_pass(self) -> None:
        for number, queue in enumerate(self.queues):
            queue.offset, queue.done = 0, False
            queue.reader.waiting.append(number)
        for reader in self.readers.values():
            self.pull(reader)

    def pull(self, reader: _Reader) -> None:
        """Open pulls of the waiting queues, as many as the window allows, with one send call."""
        count = min(self.options.window - reader.in_flight, len(reader.waiting))
        if count > 0:
            reader.in_flight += count
            # The opaque is the queue's number: there is one open pull per queue.
            numbers = [reader.waiting.popleft() for _ in range(count)]
            asked = [(number, self.queues[number]) for number in numbers]
            reader.link.send(b"".join([q.frames.frame(q.queue_id, q.offset, number) for number, q in asked]))

    def turn(self) -> float:
        events = self.epoll.poll(_POLL_S)
        now = time.perf_counter()
        for fd, event in events:
            reader = self.readers[fd]
            if event != select.EPOLLIN:
                reader.link.ready(event)
            if event & ~select.EPOLLOUT:
                for response in reader.pulls.read(reader.link):
                    self.take(response, reader)
                self.pull(reader)
        if events:
            self.moved_at = now
        elif now - self.moved_at > _SILENCE_S:
            raise LoadError(f"no response for {_SILENCE_S:.0f} s")
        if self.ticker.due(now):
            self.ticker.report("consume", self.messages, now)
        return now

    def take(self, response: PullResponse, reader: _Reader) -> None:
        queue = self.queues[response.opaque]
        reader.in_flight -= 1
        moved = response.next_offset - queue.offset
        if response.code == FOUND:
            self.messages += self.count(response, queue, reader.pulls.buffer, moved)
            self.record_bytes += response.records_end - response.records_start
            self.pulls += 1
            self.offsets += moved
        queue.offset = response.next_offset
        if response.code == RETRY_AT_ONCE:
            self.offsets += moved
        goes_on = response.code == FOUND or (response.code in (RETRY_AT_ONCE, OFFSET_MOVED) and moved > 0)
        if goes_on and queue.offset < response.max_offset:
            reader.waiting.append(response.opaque)
        else:
            queue.done = True

    def count(self, response: PullResponse, queue: _Queue, buffer: bytearray, moved: int) -> int:
        """Return the number of messages in a response.

        Raises:
            LoadError: they are not the requested ones.
        """
        start, end = response.records_start, response.records_end
        if self.options.expression != _ALL:
            return count_records(buffer, start, end)
        if queue_offset(buffer, start) != queue.offset:
            raise LoadError(f"queue {queue.queue_id}: asked for offset {queue.offset}, got another message")
        if self.pulls % _WALKED_EVERY == 0 and (count := count_records(buffer, start, end)) != moved:
            raise LoadError(f"queue {queue.queue_id}: {count} messages, but the next offset is {response.next_offset}")
        return moved

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
        for reader in self.readers.values():
            reader.link.close()
        self.epoll.close()


def consume(options: ConsumeOptions, on_progress: OnProgress | None = None) -> ConsumeResult:
    """Read the topic and return the rates.

    Raises:
        NotConnected: no connection.
        LoadError: a refused pull, an empty topic, or a response that does not fit its request.
    """
    run = _Run(options, on_progress)
    try:
        run.connect()
        run.begin_pass()
        if options.seconds > 0 and options.warmup_s > 0:
            run.read_until(time.perf_counter() + options.warmup_s)
        messages, record_bytes, pulls, offsets = run.messages, run.record_bytes, run.pulls, run.offsets
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
            offsets=run.offsets - offsets,
            passes=run.passes,
            cpu_share=cpu_share,
        )
    finally:
        run.close()
