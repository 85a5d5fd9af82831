"""Message traces in flight to the trace topic: gathered, sent in the background, dropped rather than waited for.

    records ─► held, `HELD_MAX` at most ─► `RECORDS_PER_MESSAGE`, or what there is after `LINGER_MS` ─► one message
                   └► full: dropped            └► refused, no route, no answer: dropped, then a pause

No send and no consumer waits for its trace, and none fails because of it. Dropped records are counted, and logged
every `LOG_MS` at most. After a failure nothing is sent for a while, so that a cluster without the topic is not asked
for it all the time.

Owner: the node. Source: RocketMQ AsyncTraceDispatcher, which holds as many records and sends as many in one message;
it waits 5 s (4.9: 500 ms) for them.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from tandemq.boundary import Now
from tandemq.client.core.calls import Ticket, Timers
from tandemq.client.core.operations import void
from tandemq.codec.message_trace import TraceRecord, encode_trace, trace_keys
from tandemq.errors import TandemError
from tandemq.model.message import KEY_SEPARATOR, Message, SendResult

log = logging.getLogger(__name__)
HELD_MAX = 2_048
"""Maximum number of records that wait or are in flight."""
RECORDS_PER_MESSAGE = 10
LINGER_MS = 500
"""Time that a record waits for others before it is sent."""
BODY_CHARACTERS_MAX = 100_000
"""A message of the trace topic gets no more records above this size of its body."""
KEYS_BYTES_MAX = 16_000
"""Maximum size of a trace message's keys; further keys are left out, and the records are found by the others."""
PAUSE_MS = 1_000
"""Pause after a failure; doubled with each further one, up to `PAUSE_MS_MAX`."""
PAUSE_MS_MAX = 30_000
LOG_MS = 60_000
"""Shortest time between two warnings about dropped records."""

SendTrace = Callable[[Message, Now], Ticket[SendResult]]
"""Sends a message of the trace topic, itself untraced."""


class TraceDispatcher:
    """Sends the records of one client."""

    def __init__(self, topic: str, send: SendTrace, timers: Timers) -> None:
        """Nothing is held. `topic`: the trace topic."""
        self.topic = topic
        self._send = send
        self._timers = timers
        self._waiting: deque[TraceRecord] = deque()
        self._in_flight = 0
        self._is_due = False
        """Whether a timer will send what waits."""
        self._resume_ms = 0
        self._failures = 0
        """Number of pauses since the last message that was stored."""
        self._unlogged = 0
        self._reason = ""
        self._logged_ms: int | None = None
        self.dropped = 0
        """Number of records that were not sent, or perhaps not stored."""

    @property
    def held(self) -> int:
        """Number of records that wait or are in flight."""
        return len(self._waiting) + self._in_flight

    def append(self, record: TraceRecord, now: Now) -> None:
        """Send a record, soon; drop it if there are too many."""
        if self.held >= HELD_MAX:
            self._drop(1, f"{HELD_MAX} records are held already", now)
            return
        self._waiting.append(record)
        if len(self._waiting) >= RECORDS_PER_MESSAGE and now.mono_ms >= self._resume_ms:
            self._send_one(now)
        elif not self._is_due:
            self._send_later(now.mono_ms + LINGER_MS)

    def flush(self, now: Now) -> None:
        """Send all records that wait; drop them if the last attempt failed."""
        if self._failures:
            self._drop(len(self._waiting), self._reason, now)
            self._waiting.clear()
        while self._waiting:
            self._send_one(now)

    def _send_later(self, when_ms: int) -> None:
        self._is_due = True
        self._timers.at(max(when_ms, self._resume_ms), self._send_due)

    def _send_due(self, now: Now) -> None:
        self._is_due = False
        if not self._waiting:
            return
        if now.mono_ms < self._resume_ms:
            self._send_later(self._resume_ms)
            return
        self._send_one(now)
        if self._waiting:
            # Behind a message that finds out whether the trace topic accepts any.
            self._send_later(now.mono_ms + LINGER_MS)

    def _send_full(self, now: Now) -> None:
        while len(self._waiting) >= RECORDS_PER_MESSAGE and now.mono_ms >= self._resume_ms:
            self._send_one(now)

    def _send_one(self, now: Now) -> None:
        lines: list[str] = []
        records: list[TraceRecord] = []
        size = 0
        while self._waiting and len(lines) < RECORDS_PER_MESSAGE and size < BODY_CHARACTERS_MAX:
            records.append(self._waiting.popleft())
            lines.append(encode_trace(records[-1]))
            size += len(lines[-1])
        count = len(records)
        self._in_flight += count
        try:
            ticket = self._send(self._message(lines, trace_keys(records)), now)
        except TandemError as error:
            self._ended(count, error, now)
            return
        ticket.then(partial(self._on_settled, count))

    def _message(self, lines: list[str], keys: list[str]) -> Message:
        size = 0
        kept: list[str] = []
        for key in keys:
            data = key.encode("utf-8", "replace")
            size += len(data) + len(KEY_SEPARATOR)
            if size > KEYS_BYTES_MAX:
                break
            kept.append(data.decode())
        return Message(self.topic, "".join(lines).encode("utf-8", "replace"), keys=kept)

    def _on_settled(self, count: int, ticket: Ticket[SendResult]) -> None:
        error = ticket.error
        if error is None:
            self._in_flight -= count
            self._failures = 0
            if len(self._waiting) >= RECORDS_PER_MESSAGE:
                self._timers.at(0, self._send_full)
        else:
            # The callback of a ticket gets no time; that of a timer which is due at once does.
            void(self._timers.at(0, lambda now: self._ended(count, error, now)))

    def _ended(self, count: int, error: TandemError, now: Now) -> None:
        """Record a message that could not be sent."""
        self._in_flight -= count
        if now.mono_ms >= self._resume_ms:  # not again for others that were in flight with the first one
            self._failures += 1
            self._resume_ms = now.mono_ms + min(PAUSE_MS << min(self._failures - 1, 10), PAUSE_MS_MAX)
        self._drop(count, str(error), now)

    def _drop(self, count: int, reason: str, now: Now) -> None:
        self.dropped += count
        self._unlogged += count
        self._reason = reason
        if self._unlogged and (self._logged_ms is None or now.mono_ms - self._logged_ms >= LOG_MS):
            self._logged_ms = now.mono_ms
            log.warning("message traces dropped topic=%s records=%d reason=%s", self.topic, self._unlogged, reason)
            self._unlogged = 0
