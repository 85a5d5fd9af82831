"""Sends, or whole transactions, as fast as the broker acknowledges: connections × window.

Every connection keeps `window` requests in flight. The requests acknowledged by one read are replaced by the next send
call, in one piece. Latency is sampled: up to eight connections measure one request at a time each, the first of a send
call; with one connection and a window of 1 that is every request. It ends with the epoll round that reported the
response.

With half messages a request in flight is a transaction: its commit is sent when the half message is stored, and the
response to the commit counts. Java's clients do not wait for that response; then nothing would keep the number of
commits that wait at the broker within limits.

One process, one epoll loop. At 16 × 32 a frame costs the generator well under 1 µs, sockets included.
"""

from __future__ import annotations

import random
import re
import select
import time
from dataclasses import dataclass
from struct import Struct, pack

from tandemq.load.results.report import OnProgress, ProduceResult, Stopwatch, Ticker, latency_histogram, summarize
from tandemq.load.wire.frames import EndFrames, SendFrames, SendShape
from tandemq.load.wire.probe import create_topics
from tandemq.load.wire.responses import LoadError, ResponseCounter
from tandemq.load.wire.sockets import LoadConnection

_DRAIN_S = 10.0
_SILENCE_S = 30.0
_REFUSED_MAX = 1_000
_POLL_S = 0.1
_PACED_POLL_S = 0.001
_TAIL_BYTES = 24
_RESPONSE_FLAG = 1
_SAMPLED_MAX = 8
_END_OPAQUES = 1_010_000_000
"""Added to the opaque of a half message for its commit."""
_length_at = Struct(">I").unpack_from
_OPAQUE = re.compile(rb'"opaque":(\d+)')
_OFFSET_ID = re.compile(rb'"msgId":"([0-9A-F]{32})"')
_QUEUE_OFFSET = re.compile(rb'"queueOffset":"(\d+)"')
_TRANSACTION_ID = re.compile(rb'"transactionId":"([^"]+)"')


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    """Options of a produce run."""

    address: str  # host:port of the broker.
    shape: SendShape
    connections: int = 16
    window: int = 32  # Requests in flight per connection.
    seconds: float = 5.0  # Measured time; ignored if `count` is set.
    count: int = 0  # Send this many messages and stop; 0: send for `seconds`.
    warmup_s: float = 1.0  # Same load before the measured time; none when `count` is set.
    rate: float = 0.0  # Messages per second at most; 0: as fast as they are acknowledged.


class _Sender:
    """One connection: its requests in flight and its sampled one."""

    __slots__ = ("link", "open", "responses", "sampled", "tail", "watched", "watched_since")

    def __init__(self, link: LoadConnection, sampled: bool) -> None:
        self.link = link
        self.sampled = sampled  # Whether this connection measures latency.
        self.responses = ResponseCounter()
        self.open = 0
        self.watched: tuple[bytes, ...] = ()  # The opaque as the response may contain it.
        self.watched_since = 0
        self.tail = b""  # The end of the last read: the watched opaque may be split.


class _Run:
    """The loop and its counters."""

    def __init__(self, options: ProduceOptions, on_progress: OnProgress | None) -> None:
        self.options = options
        self.ticker = Ticker(on_progress)
        self.epoll = select.epoll()
        self.senders: dict[int, _Sender] = {}
        self.wall_offset_ns = time.time_ns() - time.perf_counter_ns()
        self.frames = SendFrames(
            options.shape,
            identity=random.getrandbits(32),
            wall_ms=self.wall_ms(time.perf_counter_ns()),
        )
        self.histogram = latency_histogram()
        self.acknowledged = 0  # Frames answered SUCCESS.
        self.answered = 0  # Frames answered with any code at the last check.
        self.answered_at = time.perf_counter()
        self.began_ns = time.perf_counter_ns()
        self.sent = 0  # Frames.
        # Frames that may still be sent; None: no limit but the time.
        self.to_send: int | None = -(-options.count // options.shape.batch) if options.count else None

    def wall_ms(self, now_ns: int) -> int:
        """Return the wall clock derived from the monotonic one: a call to either costs as much as half a frame."""
        return (now_ns + self.wall_offset_ns) // 1_000_000

    def connect(self) -> None:
        create_topics(self.options.address, self.options.shape)
        every = -(-self.options.connections // _SAMPLED_MAX)
        for number in range(self.options.connections):
            link = LoadConnection(self.options.address, self.epoll)
            self.senders[link.fd] = _Sender(link, number % every == 0)

    def send(self, sender: _Sender, count: int, wall_ms: int) -> None:
        if self.to_send is not None:
            count = min(count, self.to_send)
            self.to_send -= count
            if count <= 0:
                return
        data = self.frames.take(count, wall_ms)
        sender.open += count
        self.sent += count
        if sender.sampled and not sender.watched:
            sender.watched = self.first_opaque()
            sender.watched_since = time.perf_counter_ns()
        sender.link.send(data)

    def first_opaque(self) -> tuple[bytes, ...]:
        """Return the first opaque of the last `take` as its response may contain it."""
        opaque = self.frames.first_opaque()
        json = b'"opaque":%d' % opaque
        # A broker may answer a binary request in JSON; RocketMQ 5 does.
        return (json, pack(">ii", opaque, _RESPONSE_FLAG)) if self.options.shape.form == "binary" else (json,)

    def receive(self, sender: _Sender, now_ns: int) -> int:
        """Count the responses that have arrived; return the number of requests to replace."""
        data = sender.link.receive()
        if sender.watched:
            whole = sender.tail + data if sender.tail else data
            if any(opaque in whole for opaque in sender.watched):
                self.histogram.add(now_ns - sender.watched_since)
                sender.watched, sender.tail = (), b""
            else:
                sender.tail = data[-_TAIL_BYTES:]
        count, good = sender.responses.feed(data)
        sender.open -= count
        self.acknowledged += good
        return count

    def turn(self, sending: bool) -> float:
        """Run one round of epoll; return its start, seconds of time.perf_counter."""
        paced = sending and self.options.rate > 0
        events = self.epoll.poll(_PACED_POLL_S if paced else _POLL_S)
        now_ns = time.perf_counter_ns()
        wall_ms = self.wall_ms(now_ns)
        for fd, event in events:
            sender = self.senders[fd]
            if event != select.EPOLLIN:
                sender.link.ready(event)
            if event & ~select.EPOLLOUT:
                freed = self.receive(sender, now_ns)
                if sending and freed and not paced:
                    self.send(sender, freed, wall_ms)
        if paced:
            self.send_due(now_ns, wall_ms)
        return now_ns / 1e9

    def send_due(self, now_ns: int, wall_ms: int) -> None:
        """Send the messages that the rate allows by now, an equal part on each connection."""
        frames_per_s = self.options.rate / self.options.shape.batch
        due = int((now_ns - self.began_ns) / 1e9 * frames_per_s) - self.sent
        left = len(self.senders)
        for sender in self.senders.values():
            count = min(-(-due // left), self.options.window - sender.open)
            left -= 1
            if count > 0:
                self.send(sender, count, wall_ms)
                due -= count

    def fill_windows(self) -> None:
        if self.options.rate:
            self.began_ns, self.sent = time.perf_counter_ns(), 0
            return
        wall_ms = self.wall_ms(time.perf_counter_ns())
        for sender in self.senders.values():
            self.send(sender, self.options.window - sender.open, wall_ms)

    def until(self, end: float, phase: str) -> None:
        """Keep the windows full until `end` (time.perf_counter)."""
        while (now := self.turn(sending=True)) < end:
            if self.ticker.due(now):
                self.look(phase, now)

    def until_sent(self, phase: str) -> None:
        """Keep the windows full until the requested count is sent and answered."""
        while self.to_send or any(sender.open for sender in self.senders.values()):
            now = self.turn(sending=True)
            if self.ticker.due(now):
                self.look(phase, now)

    def look(self, phase: str, now: float) -> None:
        """Report progress; stop a run that measures nothing."""
        refused = sum(self.statuses().values())
        self.ticker.report(phase, self.acknowledged * self.options.shape.batch, now, refused)
        if refused > _REFUSED_MAX and not self.acknowledged:
            raise LoadError(f"every send is refused; {self.first_refusal()}")
        answered = self.acknowledged + refused
        if answered > self.answered:
            self.answered, self.answered_at = answered, now
        elif now - self.answered_at > _SILENCE_S:
            raise LoadError(f"no response for {_SILENCE_S:.0f} s")

    def drain(self) -> int:
        """Wait for the requests in flight; return how many stayed unanswered."""
        end = time.perf_counter() + _DRAIN_S
        while any(sender.open for sender in self.senders.values()) and self.turn(sending=False) < end:
            pass
        return sum(sender.open for sender in self.senders.values())

    def statuses(self) -> dict[int, int]:
        merged: dict[int, int] = {}
        for sender in self.senders.values():
            for code, count in sender.responses.statuses.items():
                merged[code] = merged.get(code, 0) + count
        return merged

    def first_refusal(self) -> str:
        return next((s.responses.first_refusal for s in self.senders.values() if s.responses.first_refusal), "")

    def close(self) -> None:
        for sender in self.senders.values():
            sender.link.close()
        self.epoll.close()


class _TransactionRun(_Run):
    """A run whose requests in flight are transactions."""

    def __init__(self, options: ProduceOptions, on_progress: OnProgress | None) -> None:
        super().__init__(options, on_progress)
        self.ends = EndFrames(options.shape.group)

    def first_opaque(self) -> tuple[bytes, ...]:
        return (b"%d" % self.frames.first_opaque(),)

    def receive(self, sender: _Sender, now_ns: int) -> int:
        """Commit the half messages that are stored now; return the number of transactions to replace."""
        data = sender.tail + sender.link.receive()
        at = over = 0
        commits: list[bytes] = []
        while len(data) - at >= 4 and (stop := at + 4 + _length_at(data, at)[0]) <= len(data):
            frame = data[at:stop]
            commit = self.commit(sender, frame)
            if commit:
                commits.append(commit)
            else:
                over += 1
                self.finished(sender, frame, now_ns)
            at = stop
        sender.tail = data[at:]
        if commits:
            sender.link.send(b"".join(commits))
        sender.open -= over
        return over

    def commit(self, sender: _Sender, frame: bytes) -> bytes:
        """Return the commit of the half message that a response reports as stored; empty for any other response."""
        found, queue_offset = _OFFSET_ID.search(frame), _QUEUE_OFFSET.search(frame)
        if found is None or queue_offset is None:
            return b""
        # RocketMQ 4.9 does not return the unique key; an offset id is as long.
        key = _TRANSACTION_ID.search(frame) or found
        opaque = _opaque(frame)
        if sender.watched == (b"%d" % opaque,):
            sender.watched = (b"%d" % (opaque + _END_OPAQUES),)
        log_offset = int(found[1][-16:], 16)
        return self.ends.frame(queue_offset[1].decode(), log_offset, key[1].decode(), opaque + _END_OPAQUES)

    def finished(self, sender: _Sender, frame: bytes, now_ns: int) -> None:
        """Count a transaction that is committed, or refused."""
        _, good = sender.responses.feed(frame)
        self.acknowledged += good
        opaque = _opaque(frame)
        if sender.watched in ((b"%d" % opaque,), (b"%d" % (opaque + _END_OPAQUES),)):
            sender.watched = ()
            if good:
                self.histogram.add(now_ns - sender.watched_since)


def _opaque(frame: bytes) -> int:
    found = _OPAQUE.search(frame)
    if found is None:
        raise LoadError(f"a response without an opaque: {frame[:200]!r}")
    return int(found[1])


def produce(options: ProduceOptions, on_progress: OnProgress | None = None) -> ProduceResult:
    """Put the load on the broker and return the acknowledged rates.

    Raises:
        NotConnected: no connection.
        LoadError: a connection that breaks, or nothing but refusals.
    """
    run = (_TransactionRun if options.shape.half else _Run)(options, on_progress)
    try:
        run.connect()
        run.fill_windows()
        if not options.count and options.warmup_s > 0:
            run.until(time.perf_counter() + options.warmup_s, "warm-up")
            run.histogram = latency_histogram()
        before = run.acknowledged
        watch = Stopwatch()
        if options.count:
            run.until_sent("measure")
        else:
            run.until(watch.wall + options.seconds, "measure")
        seconds, cpu_share = watch.read()
        frames = run.acknowledged - before
        unanswered = run.drain()
        return _result(run, frames, seconds, cpu_share, unanswered)
    finally:
        run.close()


def _result(run: _Run, frames: int, seconds: float, cpu_share: float, unanswered: int) -> ProduceResult:
    shape = run.options.shape
    messages = frames * shape.batch
    return ProduceResult(
        messages=messages,
        seconds=round(seconds, 3),
        messages_per_s=round(messages / seconds, 1),
        mb_per_s=round(messages * run.frames.mean_body_bytes / seconds / 1e6, 2),
        latency=summarize(run.histogram),
        refused=run.statuses(),
        first_refusal=run.first_refusal(),
        unanswered=unanswered,
        cpu_share=cpu_share,
    )
