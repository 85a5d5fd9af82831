"""A Java client under way while brokers die and come back: a producer that never pauses and a consumer that lags.

    backlog   1,000 messages in the queue of broker-a, before anything else
    producer  one message each 50 ms, into whichever group takes it, until the end; the client's own retries
    reader    push consumer; needs about 15 s for the backlog, so that there is something to read at any time

Both are unmodified clients, with `ClientSettings`, but that little is fetched ahead: what is consumed after a kill was
pulled after it. Times are milliseconds since 1970, all of one machine.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from tests.interop.checks import Events, bodies, invent_one, messages, prove, sent
from tests.interop.driver import Event, JavaDriver, Running
from tests.interop.java import wait_until

GROUP = "broker-a"
"""The group whose brokers die."""

BACKLOG = 1000
AHEAD = 40
"""More messages than a client holds that it has pulled and not yet consumed."""

_ACKNOWLEDGED = {"SEND_OK", "SLAVE_NOT_AVAILABLE"}
_CLIENT_POLLS_S = 30


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of a Java producer and consumer that decide how soon they follow a failover."""

    name: str
    poll_ms: int
    """`pollNameServerInterval`: between two queries of the routes."""
    heartbeat_ms: int
    """`heartbeatBrokerInterval`: a new master serves a consumer after its first heartbeat there."""
    pull_error_ms: int
    """`pullTimeDelayMillsWhenException`: pause after a pull that failed."""
    timeout_ms: int
    """`sendMsgTimeout`: for all attempts of a message together."""
    attempt_ms: int
    """`sendMsgMaxTimeoutPerRequest`, of 5.x only: for one attempt; -1: as `timeout_ms`."""
    retries: int
    """`retryTimesWhenSendFailed`: an attempt at an address that refuses connections takes less than a millisecond."""


DEFAULTS = ClientSettings("defaults", 30_000, 2_000, 3_000, 3_000, -1, 2)
"""The clients' own, except for heartbeats, as in all tests here: see driver/Order.java."""
FOR_FAILOVER = ClientSettings("for failover", 1_000, 1_000, 500, 10_000, 3_000, 1_000_000)
"""What docs/guides/java-clients.md recommends."""


def now_ms() -> int:
    """The clock that stands in the events."""
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Flight:
    """Producer and consumer of one client version, on a topic of their own."""

    java: JavaDriver
    topic: str
    settings: ClientSettings
    backlog: Running
    producer: Running | None = None
    reader: Running | None = None

    @staticmethod
    def begin(java: JavaDriver, topic: str, settings: ClientSettings) -> Flight:
        """Begin to send the backlog; the topic has one queue in each group."""
        backlog = java.begin("produce", topic=topic, count=BACKLOG, queue=0, broker=GROUP, prefix="early")
        return Flight(java, topic, settings, backlog)

    def take_off(self) -> None:
        """Begin to send and to consume as soon as the backlog is stored."""
        self.backlog.result(within_s=90)
        settings = self.settings
        intervals = {"poll_ms": settings.poll_ms, "heartbeat_ms": settings.heartbeat_ms}
        self.producer = self.java.begin(
            "produce",
            topic=self.topic,
            prefix="late",
            interval_ms=50,
            timeout_ms=settings.timeout_ms,
            attempt_ms=settings.attempt_ms,
            retries=settings.retries,
            **intervals,
        )
        self.reader = self.java.begin(
            "push",
            topic=self.topic,
            group=f"readers-{self.topic}",
            cache=8,
            consume_ms=10,
            threads=1,
            deadline_ms=600_000,
            pull_error_ms=settings.pull_error_ms,
            **intervals,
        )

    def wait_stored(
        self, since_ms: int, status: str = "", group: str = "", within_s: float = 3 * _CLIENT_POLLS_S
    ) -> None:
        """Wait until a message has been answered since then, with this status, by this group."""
        assert self.producer is not None
        self.producer.wait_for(
            lambda event: (
                event["event"] == "sent"
                and event["at_ms"] > since_ms
                and status in ("", event["status"])
                and group in ("", event["broker"])
            ),
            within_s=within_s,
        )

    def wait_read(
        self, since_ms: int, stored_ms: int = 0, count: int = AHEAD, within_s: float = 3 * _CLIENT_POLLS_S
    ) -> None:
        """Wait until `count` deliveries came from broker-a since then, of messages stored after `stored_ms`."""
        assert self.reader is not None
        self.reader.wait_for(
            lambda event: _is_read(event) and event["at_ms"] > since_ms and event["storeTimestamp"] >= stored_ms,
            within_s=within_s,
            count=count,
        )

    def read_since(self, since_ms: int) -> int:
        """Deliveries from broker-a since then."""
        assert self.reader is not None
        return sum(_is_read(event) and event["at_ms"] > since_ms for event in self.reader.events())

    def land(self) -> tuple[Events, Events]:
        """Stop sending, wait until everything acknowledged was consumed; (answers to sends, deliveries), proven."""
        assert self.producer is not None and self.reader is not None
        reader, answers = self.reader, self.producer.end()
        wanted = _acknowledged("early", self.backlog.events()) | _acknowledged("late", answers)
        sends = ("early", self.backlog.events()), ("late", answers)
        tried = {f"{prefix}-{event['index']}" for prefix, events in sends for event in events if "index" in event}
        wait_until(
            lambda: wanted <= set(bodies(reader.events())), what=f"all of {self.topic} read", within_s=90, every_s=0.5
        )
        deliveries = reader.end()

        def check(events: Events) -> None:
            """Everything acknowledged came, and nothing that nobody sent."""
            found = set(bodies(events))
            assert wanted <= found <= tried, (sorted(wanted - found), sorted(found - tried))

        some = min(wanted), max(wanted)
        prove(
            check, deliveries, lambda events: _lose(events, some[0]), lambda events: _lose(events, some[1]), invent_one
        )
        return answers, deliveries


@dataclass(frozen=True, slots=True)
class FlightFigures:
    """What one client version saw of a kill and a return. Seconds."""

    version: str
    kill_read_s: float
    """Longest time with something to read and nothing read, from the kill on."""
    kill_write_s: float
    """Longest time without a stored message, from the kill on."""
    return_read_s: float
    """Longest time with something to read and nothing read, from the return on."""
    return_write_s: float
    """From the start of the process until its group stores a message."""
    failed_sends: int
    stored: int
    duplicates: int

    def __str__(self) -> str:
        return (
            f"Java {self.version}: killed: nothing read for {self.kill_read_s:.1f} s, nothing stored for "
            f"{self.kill_write_s:.1f} s; returned: nothing read for {self.return_read_s:.1f} s, stored there after "
            f"{self.return_write_s:.1f} s; {self.failed_sends} sends failed, {self.stored} stored, "
            f"{self.duplicates} read twice"
        )


def figures(flight: Flight, answers: Events, deliveries: Events, killed_ms: int, returned_ms: int) -> FlightFigures:
    """The figures of a flight that has landed."""
    reads = [event for event in deliveries if _is_read(event)]
    soon = sum(event["at_ms"] <= killed_ms for event in reads) + AHEAD
    away = [event for event in answers if event["at_ms"] <= returned_ms]
    back = [event for event in answers if event["at_ms"] > returned_ms]
    stored = next(event["at_ms"] for event in sent(back) if event["broker"] == GROUP)
    return FlightFigures(
        flight.java.version,
        _still_s(reads[:soon], killed_ms),
        _gap_s(sent(away), killed_ms),
        _still_s(reads, returned_ms),
        (stored - returned_ms) / 1000,
        _failed(answers, killed_ms),
        len(sent(answers)),
        sum(count - 1 for count in Counter(bodies(deliveries)).values()),
    )


def _failed(answers: Events, since_ms: int) -> int:
    return sum(event["event"] == "failed" and event["at_ms"] > since_ms for event in answers)


def _gap_s(answers: Events, start_ms: int) -> float:
    """The longest time between two answers, from the last one before the start on, in seconds."""
    pairs = zip(answers, answers[1:], strict=False)
    longest_ms: int = max(later["at_ms"] - earlier["at_ms"] for earlier, later in pairs if later["at_ms"] > start_ms)
    return longest_ms / 1000


def _still_s(reads: Events, start_ms: int) -> float:
    """The longest time after the start in which there was something to read, and nothing was, in seconds."""
    longest_ms: int = max(
        event["at_ms"] - max(before["at_ms"], event["storeTimestamp"])
        for before, event in zip(reads, reads[1:], strict=False)
        if event["at_ms"] > start_ms
    )
    return longest_ms / 1000


def _acknowledged(prefix: str, answers: Events) -> set[str]:
    return {f"{prefix}-{event['index']}" for event in sent(answers) if event["status"] in _ACKNOWLEDGED}


def _is_read(event: Event) -> bool:
    return bool(event["event"] == "message" and event["broker"] == GROUP)


def _lose(events: Events, body: str) -> None:
    for event in [event for event in messages(events) if event["body"] == body]:
        events.remove(event)
