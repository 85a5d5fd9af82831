"""I6: at most one member may be read, and at most one written, at any instant, by the brokers' own logs.

    failover: epoch=3 mono_ms=81234567 may be read and written: …

A broker logs each change of its permissions with a time of the monotonic clock, which all processes of a machine share:
the turn in which a permission began, or the end of its lease, however late the broker noticed. So spans of several
brokers can be compared to the millisecond, and a stopped process keeps its permissions until its lease ends. The span
of a killed process ends when it is seen dead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_LINE = re.compile(
    r"failover: epoch=\d+ mono_ms=(\d+) may (neither )?be (read and written|read|written|read nor written):"
)


class Span(NamedTuple):
    """Span [start, end), ms of the monotonic clock."""

    broker: str
    start: int
    end: int


def overlaps(logs: Mapping[str, Iterable[str]], deaths: Mapping[str, list[int]], now_ms: int) -> list[str]:
    """Return violations of I6, from the log lines of each broker and the times at which it was seen dead."""
    found = []
    for what in ("read", "written"):
        spans = [span for name, lines in logs.items() for span in spans_of(name, lines, what, deaths[name], now_ms)]
        spans.sort(key=lambda span: span.start)
        for at, one in enumerate(spans):
            for other in spans[at + 1 :]:
                both_ms = min(one.end, other.end) - max(one.start, other.start)
                if other.broker != one.broker and both_ms > 0:
                    found.append(
                        f"I6: {one.broker} and {other.broker} could be {what} at once for {both_ms} ms"
                        f" from mono_ms={other.start} on"
                    )
    return found


def spans_of(name: str, lines: Iterable[str], what: str, deaths: list[int], now_ms: int) -> list[Span]:
    """Return the spans in which a broker could be "read" or "written"; a current permission ends at `now_ms`."""
    spans: list[Span] = []
    begun: int | None = None

    def close(at: int) -> None:
        nonlocal begun
        if begun is not None and begun < at:
            spans.append(Span(name, begun, at))
        begun = None

    for line in lines:
        match = _LINE.search(line)
        if match is None:
            continue
        at = int(match[1])
        died = next((death for death in deaths if begun is not None and begun < death < at), None)
        if died is not None:
            close(died)
        if match[2] is not None or what not in match[3]:
            close(at)
        elif begun is None:
            begun = at
    close(next((death for death in deaths if begun is not None and begun < death), now_ms))
    return spans
