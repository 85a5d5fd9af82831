"""Done records: which timed messages were delivered, dropped or stored again, in the queue of a topic of its own.

One is written behind the messages of each turn that delivers some. Its body has their queue offsets in the wheel topic,
its property `TANDEM_TIMERS` what a reader of the log needs to know which messages still wait. RocketMQ relies on a file
for that (`timercheck`), which may be older or newer than the log.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tandemq.model.message import TAGS, encode_properties

DONE_TAG = "d"
PROGRESS = "TANDEM_TIMERS"
OFFSETS_MAX = 4_096
"""Maximum number of messages in one record."""


class TimerProgress(NamedTuple):
    """Messages that are over at a done record, besides those named by the records from `since` on."""

    before_ms: int
    """Messages of an earlier time whose queue offset is lower than `below` are over."""
    below: int
    lowest: int
    """All messages with a lower queue offset are over."""
    since: int
    """Queue offset of the first done record that names messages which the fields above do not cover."""
    until_ms: int
    """Latest time of the messages that those records name."""


NOTHING = TimerProgress(0, 0, 0, 0, 0)
"""TimerProgress before the first done record."""


class DoneRecord(NamedTuple):
    """A done record as read."""

    offsets: list[int]
    progress: TimerProgress | None
    """None if it is malformed."""


def done_body(offsets: Iterable[int]) -> bytes:
    """Encode the body: queue offsets in ascending order, each but the first as its distance to the one before."""
    parts: list[str] = []
    before = 0
    for offset in sorted(offsets):
        parts.append(str(offset - before))
        before = offset
    return ",".join(parts).encode()


def done_properties(progress: TimerProgress) -> bytes:
    """Encode the properties."""
    numbers = ",".join(map(str, progress))
    return encode_properties({TAGS: DONE_TAG, "WAIT": "true", PROGRESS: numbers}).encode()


def read_done(body: bytes, properties: dict[str, str]) -> DoneRecord:
    """Decode a done record; parts that are no numbers are ignored."""
    offsets: list[int] = []
    before = 0
    for distance in _numbers(body.decode("ascii", "replace")):
        before += distance
        offsets.append(before)
    found = _numbers(properties.get(PROGRESS, ""))
    return DoneRecord(offsets, TimerProgress(*found) if len(found) == len(TimerProgress._fields) else None)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part.isascii() and part.isdecimal() and len(part) <= 18]
