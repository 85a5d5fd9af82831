"""Latency at a fixed rate: `python -m bench.latency_load ADDRESS`, a process of its own.

A producer, and groups of consumers with open long polls, on one clock.

Every body begins with the time of its send call, so that a message has an age when its pull returns. Each group
always has one pull waiting at the end of each queue. Sends follow the clock, not the responses; the result includes how
late the generator was with them.

Both sides run in one process, or each in its own (`rate` 0: only the consumers, `groups` 0: only the producer): the
clock is the same in all processes of a machine. With many groups ages are measured in the first ten.
"""

from __future__ import annotations

import argparse
import random
import re
import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.loads import say_open
from bench.probe import send_one
from bench.records import body_position, record_size
from tandemq.load.process import add_options, run_parsed
from tandemq.load.results.report import Elapsed, LatencySummary, Stopwatch, latency_histogram, summarize
from tandemq.load.wire.frames import PullFrames, SendFrames, SendShape
from tandemq.load.wire.probe import create_topics, max_offset
from tandemq.load.wire.pulls import FOUND, PullReader, PullResponse
from tandemq.load.wire.responses import LoadError, ResponseCounter
from tandemq.load.wire.sockets import LoadConnection, connect

_STAMP = b"SENT-AT-NANOSECONDS:"  # Twenty bytes, replaced by the twenty digits of the clock.
_SUSPEND_MS = 15_000
_DRAIN_S = 5.0
_BURST_MAX = 64
_REFUSED_MAX = 100
_IDLE_S = 0.1
_NOT_YET = 1 << 63
_MEASURED_GROUPS = 10
_OPAQUE = re.compile(rb'"opaque":(\d+)')


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """Options of a latency run."""

    address: str
    topic: str
    rate: float = 1_000.0  # Messages per second; 0: no producer.
    seconds: float = 10.0
    warmup_s: float = 2.0
    body_bytes: int = 128  # At least 20.
    queue_count: int = 4
    group: str = "load_latency"
    groups: int = 1  # Each reads all messages on a connection of its own; 0: no consumer.
    varied: bool = False
    connections: int = 1  # Of the producer, used in turn.

    @property
    def shape(self) -> SendShape:
        """Return the layout of the messages."""
        return SendShape(self.topic, self.body_bytes, self.queue_count, varied=self.varied)


@dataclass(frozen=True, slots=True)
class LatencyResult:
    """Time from the send call to the return of the long-poll pull that brought the message."""

    latency: LatencySummary
    acknowledged: LatencySummary  # From the send call to its response.
    sent: int
    refused: int  # Sends that were not answered with SUCCESS.
    received: int  # By all groups.
    lag_max_ms: float  # Maximum delay of the generator itself with a send.
    cpu_share: float


class _Sender:
    """One connection of the producer."""

    __slots__ = ("link", "responses", "tail")

    def __init__(self, link: LoadConnection) -> None:
        self.link = link
        self.responses = ResponseCounter()
        self.tail = b""  # The part of a response at the end of the last read.


class _Producer:
    """Sends by the clock, and measures every response."""

    def __init__(self, options: LatencyOptions, epoll: select.epoll) -> None:
        self.frames = SendFrames(options.shape, identity=random.getrandbits(32), wall_ms=_wall_ms(), body_start=_STAMP)
        senders = [_Sender(LoadConnection(options.address, epoll)) for _ in range(options.connections)]
        self.senders = {sender.link.fd: sender for sender in senders}
        self.in_turn = senders
        self.sent_at: dict[int, int] = {}  # Requests in flight, by opaque.
        self.sent = self.answered = self.stored = 0
        self.warm_from_ns = 0
        self.measured_from_ns = _NOT_YET  # When the first message due after the warm-up was sent.
        self.lag_max_ns = 0
        self.acks = latency_histogram()

    def send(self, due_ns: int, now_ns: int) -> None:
        """Send one message that is due."""
        data = bytes(self.frames.take(1, _wall_ms()))
        sent_at = time.perf_counter_ns()
        if due_ns >= self.warm_from_ns:
            self.measured_from_ns = min(self.measured_from_ns, sent_at)
            self.lag_max_ns = max(self.lag_max_ns, now_ns - due_ns)
        self.sent_at[self.frames.first_opaque()] = sent_at
        sender = self.in_turn[self.sent % len(self.in_turn)]
        sender.link.send(data.replace(_STAMP, b"%020d" % sent_at, 1))
        self.sent += 1

    def take(self, sender: _Sender) -> None:
        """Count and measure the responses that have arrived.

        Raises:
            LoadError: nothing but refusals.
        """
        data = sender.link.receive()
        now_ns = time.perf_counter_ns()
        count, good = sender.responses.feed(data)
        self.answered += count
        self.stored += good
        if not self.stored and self.answered > _REFUSED_MAX:
            raise LoadError(f"every send is refused; {sender.responses.first_refusal}")
        whole = sender.tail + data
        # What follows the opaque has arrived when the response is complete.
        found = [match for match in _OPAQUE.finditer(whole) if match.end() < len(whole)]
        for match in found:
            sent_at = self.sent_at.pop(int(match[1]), 0)
            if sent_at >= self.measured_from_ns:
                self.acks.add(now_ns - sent_at)
        sender.tail = whole[found[-1].end() :] if found else whole


class _Group:
    """One group's connection, and its offset in each queue."""

    __slots__ = ("frames", "link", "measured", "offsets", "reader")

    def __init__(self, link: LoadConnection, frames: PullFrames, offsets: list[int], measured: bool) -> None:
        self.link, self.frames, self.offsets, self.measured = link, frames, offsets, measured
        self.reader = PullReader()

    def pull(self, queue_id: int) -> None:
        self.link.send(self.frames.frame(queue_id, self.offsets[queue_id], queue_id))


class _Consumers:
    """Groups that read what arrives."""

    def __init__(self, options: LatencyOptions, epoll: select.epoll, ends: list[int]) -> None:
        self.groups: dict[int, _Group] = {}
        self.received = 0
        self.ages: list[tuple[int, int]] = []  # Moment of the send call and age, nanoseconds.
        for number in range(options.groups):
            name = options.group if options.groups == 1 else f"{options.group}_{number}"
            frames = PullFrames(options.topic, group=name, suspend_ms=_SUSPEND_MS)
            link = LoadConnection(options.address, epoll)
            self.groups[link.fd] = group = _Group(link, frames, ends.copy(), number < _MEASURED_GROUPS)
            for queue_id in range(options.queue_count):
                group.pull(queue_id)

    def take(self, group: _Group) -> None:
        for response in group.reader.read(group.link):
            if response.code == FOUND:
                if group.measured:
                    self.measure(response, group.reader.buffer)
                else:
                    self.received += response.next_offset - group.offsets[response.opaque]
            group.offsets[response.opaque] = response.next_offset
            group.pull(response.opaque)

    def measure(self, response: PullResponse, buffer: bytearray) -> None:
        now_ns = time.perf_counter_ns()
        position = response.records_start
        while position < response.records_end:
            body = body_position(buffer, position)
            stamp = bytes(buffer[body : body + len(_STAMP)])
            # The message that created the topic has no timestamp; it arrives too if its queue was built late.
            if stamp.isdigit():
                self.received += 1
                self.ages.append((int(stamp), now_ns - int(stamp)))
            position += record_size(buffer, position)


class _Run:
    def __init__(self, options: LatencyOptions) -> None:
        assert options.body_bytes >= len(_STAMP) and options.rate >= 0
        self.options = options
        self.epoll = select.epoll()
        ends = self.prepare()
        self.producer = _Producer(options, self.epoll) if options.rate else None
        self.consumers = _Consumers(options, self.epoll, ends)

    def prepare(self) -> list[int]:
        """Create the topic if needed, and return the ends of its queues."""
        options = self.options
        create_topics(options.address, options.shape)
        with connect(options.address) as broker:
            response = send_one(broker, options.shape)
            if response.code != 0:
                raise LoadError(f"a send was refused with code {response.code}: {response.remark}")
            return [max_offset(broker, options.topic, queue_id) for queue_id in range(options.queue_count)]

    def receive(self, wait_s: float) -> None:
        """Wait up to `wait_s` (to the microsecond, which epoll alone cannot) and process what has arrived."""
        if wait_s > 0:
            select.select([self.epoll.fileno()], [], [], wait_s)
        for fd, event in self.epoll.poll(0):
            group = self.consumers.groups.get(fd)
            sender = self.producer.senders[fd] if group is None and self.producer is not None else None
            link = group.link if group is not None else sender.link if sender is not None else None
            if link is not None and event != select.EPOLLIN:
                link.ready(event)
            if not event & ~select.EPOLLOUT:
                continue
            if group is not None:
                self.consumers.take(group)
            elif sender is not None and self.producer is not None:
                self.producer.take(sender)

    def run(self) -> Elapsed:
        """Send by the clock, if at all, until the time is up; return the measured seconds and the CPU share."""
        options, producer = self.options, self.producer
        begun_ns = due_ns = time.perf_counter_ns()
        warm_from_ns = begun_ns + int(options.warmup_s * 1e9)
        end_ns = warm_from_ns + int(options.seconds * 1e9)
        interval_ns = int(1e9 / options.rate) if producer is not None else int(_IDLE_S * 1e9)
        if producer is not None:
            producer.warm_from_ns = warm_from_ns
        watch = Stopwatch()
        while due_ns < end_ns:
            now_ns = time.perf_counter_ns()
            for _ in range(_BURST_MAX):
                if due_ns > now_ns or due_ns >= end_ns:
                    break
                if producer is not None:
                    producer.send(due_ns, now_ns)
                due_ns += interval_ns
            self.receive(max(0.0, (due_ns - time.perf_counter_ns()) / 1e9))
        result = watch.read()
        if producer is not None:
            self.drain(producer)
        self.measured_from_ns = producer.measured_from_ns if producer is not None else warm_from_ns
        return result

    def drain(self, producer: _Producer) -> None:
        end = time.perf_counter() + _DRAIN_S
        groups = self.options.groups
        while time.perf_counter() < end:
            if producer.answered == producer.sent and self.consumers.received >= producer.stored * groups:
                return
            self.receive(0.05)

    def close(self) -> None:
        self.epoll.close()
        for group in self.consumers.groups.values():
            group.link.close()
        for sender in self.producer.in_turn if self.producer is not None else ():
            sender.link.close()

    def result(self, cpu_share: float) -> LatencyResult:
        ages = latency_histogram()
        for sent_at, age in self.consumers.ages:
            if sent_at >= self.measured_from_ns:
                ages.add(age)
        producer = self.producer
        return LatencyResult(
            latency=summarize(ages),
            acknowledged=summarize(producer.acks if producer is not None else latency_histogram()),
            sent=producer.sent if producer is not None else 0,
            refused=producer.sent - producer.stored if producer is not None else 0,
            received=self.consumers.received,
            lag_max_ms=round(producer.lag_max_ns / 1e6, 3) if producer is not None else 0.0,
            cpu_share=cpu_share,
        )


def measure_latency(options: LatencyOptions, when_open: Callable[[], None] | None = None) -> LatencyResult:
    """Send at the given rate, receive by long poll, and return the ages of the messages on arrival.

    `when_open` is called when the first pulls have been sent.

    Raises:
        NotConnected: no connection.
        LoadError: a refusal.
    """
    run = _Run(options)
    try:
        if when_open is not None:
            when_open()
        elapsed = run.run()
        return run.result(elapsed.cpu_share)
    finally:
        run.close()


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.latency_load", description=__doc__)
    add_options(
        parser,
        topic="latency",
        rate=1000.0,
        seconds=10.0,
        warmup=2.0,
        body=128,
        queues=4,
        group="load_latency",
        groups=1,
        connections=1,
    )
    parser.add_argument("--lengths", choices=("one", "varied"), default="one", help="varied: --body does not matter")
    parser.set_defaults(run=_run)
    return parser


def _run(args: argparse.Namespace, _: object) -> LatencyResult:
    options = LatencyOptions(
        args.address,
        args.topic,
        args.rate,
        args.seconds,
        args.warmup,
        args.body,
        args.queues,
        args.group,
        args.groups,
        args.lengths == "varied",
        args.connections,
    )
    return measure_latency(options, None if args.rate else say_open)


if __name__ == "__main__":
    sys.exit(run_parsed(_parser().parse_args()))
