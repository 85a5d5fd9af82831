"""End-to-end latency: a producer at a fixed rate and a consumer with open long polls, in one process and on one clock.

Every body begins with the time of its send call, so that the age of a message is known when its pull returns. Messages
go to the queues in turn; each queue always has one pull waiting at its end. Sends follow the clock, not the responses;
the result includes how late the generator was with them.
"""

from __future__ import annotations

import random
import select
import time
from dataclasses import dataclass

from tandemq.load.results.report import (
    Elapsed,
    LatencyResult,
    OnProgress,
    Stopwatch,
    Ticker,
    latency_histogram,
    summarize,
)
from tandemq.load.wire.frames import PullFrames, SendFrames, SendShape
from tandemq.load.wire.probe import max_offset, send_one
from tandemq.load.wire.pulls import FOUND, PullReader, PullResponse
from tandemq.load.wire.records import body_position, record_size
from tandemq.load.wire.responses import LoadError, ResponseCounter
from tandemq.load.wire.sockets import LoadConnection, connect

_STAMP = b"SENT-AT-NANOSECONDS:"  # Twenty bytes, replaced by the twenty digits of the clock.
_SUSPEND_MS = 15_000
_DRAIN_S = 5.0
_BURST_MAX = 64
_NOT_YET = 1 << 63


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """Options of a latency run."""

    address: str
    topic: str
    rate: float = 1_000.0  # Messages per second.
    seconds: float = 10.0
    warmup_s: float = 2.0
    body_bytes: int = 128  # At least 20.
    queue_count: int = 4
    group: str = "load_latency"


class _Run:
    def __init__(self, options: LatencyOptions, on_progress: OnProgress | None) -> None:
        assert options.body_bytes >= len(_STAMP) and options.rate > 0
        self.options = options
        self.ticker = Ticker(on_progress)
        self.epoll = select.epoll()
        shape = SendShape(options.topic, options.body_bytes, options.queue_count)
        identity = random.getrandbits(32)
        self.frames = SendFrames(shape, identity=identity, wall_ms=_wall_ms(), body_start=_STAMP)
        self.pulls = PullFrames(options.topic, group=options.group, suspend_ms=_SUSPEND_MS)
        self.responses = ResponseCounter()
        self.reader = PullReader()
        self.sent = self.received = self.answered = 0
        self.warm_from_ns = 0
        self.measured_from_ns = _NOT_YET  # When the first message due after the warm-up was sent.
        self.ages = latency_histogram()
        self.lag_max_ns = 0
        self.acks = latency_histogram()
        self.watched = b""
        self.watched_since = 0

    def connect(self) -> None:
        """Create the topic if needed, find the ends of its queues, and leave a pull waiting at each."""
        options = self.options
        with connect(options.address) as sock:
            response = send_one(sock, SendShape(options.topic, options.body_bytes, options.queue_count))
            if response.code != 0:
                raise LoadError(f"a send was refused with code {response.code}: {response.remark}")
            ends = [max_offset(sock, options.topic, queue_id) for queue_id in range(options.queue_count)]
        self.producer = LoadConnection(options.address, self.epoll)
        self.consumer = LoadConnection(options.address, self.epoll)
        self.offsets = ends
        for queue_id in range(options.queue_count):
            self.pull(queue_id)

    def pull(self, queue_id: int) -> None:
        self.consumer.send(self.pulls.frame(queue_id, self.offsets[queue_id], queue_id))

    def send_due(self, due_ns: int, now_ns: int) -> None:
        """Send one message that is due."""
        data = bytes(self.frames.take(1, _wall_ms()))
        sent_at = time.perf_counter_ns()
        if due_ns >= self.warm_from_ns:
            self.measured_from_ns = min(self.measured_from_ns, sent_at)
            self.lag_max_ns = max(self.lag_max_ns, now_ns - due_ns)
        if not self.watched:
            self.watched, self.watched_since = b'"opaque":%d' % self.frames.first_opaque(), sent_at
        self.producer.send(data.replace(_STAMP, b"%020d" % sent_at, 1))
        self.sent += 1

    def receive(self, wait_s: float) -> None:
        """Wait up to `wait_s` (to the microsecond, which epoll alone cannot) and process what has arrived."""
        if wait_s > 0:
            select.select([self.epoll.fileno()], [], [], wait_s)
        for fd, event in self.epoll.poll(0):
            link = self.producer if fd == self.producer.fd else self.consumer
            if event != select.EPOLLIN:
                link.ready(event)
            if not event & ~select.EPOLLOUT:
                continue
            if link is self.producer:
                self.take_acks(link.receive())
            else:
                for response in self.reader.read(link):
                    self.take_messages(response)

    def take_acks(self, data: bytes) -> None:
        now_ns = time.perf_counter_ns()
        if self.watched and self.watched in data:
            if self.watched_since >= self.measured_from_ns:
                self.acks.add(now_ns - self.watched_since)
            self.watched = b""
        count, good = self.responses.feed(data)
        self.answered += count
        if good != count:
            raise LoadError(f"a send was refused; {self.responses.first_refusal}")

    def take_messages(self, response: PullResponse) -> None:
        now_ns = time.perf_counter_ns()
        if response.code == FOUND:
            buffer = self.reader.buffer
            position = response.records_start
            while position < response.records_end:
                body = body_position(buffer, position)
                stamp = bytes(buffer[body : body + len(_STAMP)])
                # The message that created the topic has no timestamp; it arrives too if its queue was built late.
                if stamp.isdigit():
                    self.received += 1
                    if int(stamp) >= self.measured_from_ns:
                        self.ages.add(now_ns - int(stamp))
                position += record_size(buffer, position)
        self.offsets[response.opaque] = response.next_offset
        self.pull(response.opaque)

    def run(self) -> Elapsed:
        """Send by the clock until the time is up; return the measured seconds and the CPU share."""
        options = self.options
        interval_ns = int(1e9 / options.rate)
        due_ns = time.perf_counter_ns()
        self.warm_from_ns = due_ns + int(options.warmup_s * 1e9)
        end_ns = self.warm_from_ns + int(options.seconds * 1e9)
        watch = Stopwatch()
        while due_ns < end_ns:
            now_ns = time.perf_counter_ns()
            for _ in range(_BURST_MAX):
                if due_ns > now_ns or due_ns >= end_ns:
                    break
                self.send_due(due_ns, now_ns)
                due_ns += interval_ns
            self.receive(max(0.0, (due_ns - time.perf_counter_ns()) / 1e9))
            if self.ticker.due(now_ns / 1e9):
                self.ticker.report("latency", self.received, now_ns / 1e9)
        result = watch.read()
        self.drain()
        return result

    def drain(self) -> None:
        end = time.perf_counter() + _DRAIN_S
        while (self.received < self.sent or self.answered < self.sent) and time.perf_counter() < end:
            self.receive(0.05)

    def close(self) -> None:
        for name in ("producer", "consumer"):
            link: LoadConnection | None = getattr(self, name, None)
            if link is not None:
                link.close()
        self.epoll.close()


def measure_latency(options: LatencyOptions, on_progress: OnProgress | None = None) -> LatencyResult:
    """Send at the given rate, receive by long poll, and return the ages of the messages on arrival.

    Raises:
        LoadError: no connection, or a refusal.
    """
    run = _Run(options, on_progress)
    try:
        run.connect()
        _, cpu_share = run.run()
        return LatencyResult(
            latency=summarize(run.ages),
            acknowledged=summarize(run.acks),
            sent=run.sent,
            received=run.received,
            lag_max_ms=round(run.lag_max_ns / 1e6, 3),
            refused=run.responses.statuses,
            cpu_share=cpu_share,
        )
    finally:
        run.close()


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
