"""Committed offsets of consumer groups.

    commit confirmed, offset reported ─► floor rises        commit of less, reset, fault ─► floor sinks

Rule: offset-back, a report below the floor at its request and at its response.
"""

from __future__ import annotations

from typing import NamedTuple

from judge.anomalies import Findings
from judge.history import Line, Promises
from judge.messages import broker_of


class Floor(NamedTuple):
    """An offset below which none may be reported, and the line that proves it."""

    offset: int
    line: int


_NONE = Floor(-1, 0)


class Offsets:
    """The floors of all groups and queues."""

    def __init__(self, promises: Promises, findings: Findings) -> None:
        self._is_judged = promises.offsets == "monotonic"
        self._findings = findings
        self._floors: dict[tuple[str, str], Floor] = {}
        self._open: dict[tuple[str, int], tuple[tuple[str, str], Floor, int]] = {}
        """Operation to its group and queue, the floor at its beginning, and the offset that it commits."""

    def commit(self, number: int, line: Line) -> None:
        """Record a commit, or its outcome."""
        key = line["p"], line["op"]
        if line["type"] == "invoke":
            place, offset = (line["group"], line["q"]), int(line["offset"])
            self._sink(place, offset, number)
            self._open[key] = place, _NONE, offset
            return
        started = self._open.pop(key, None)
        if started is not None and line["type"] == "ok":
            # Another commit of less may have been in flight: the floor rises with a report.
            place, _, offset = started
            if not any(other[0] == place and other[2] >= 0 for other in self._open.values()):
                self._rise(place, offset, number)

    def reset(self, number: int, line: Line) -> None:
        """Record that an administrator sets an offset."""
        if line["type"] == "invoke":
            self._sink((line["group"], line["q"]), int(line["offset"]), number)

    def offset(self, number: int, line: Line) -> None:
        """Judge a reported offset."""
        key = line["p"], line["op"]
        if line["type"] == "invoke":
            place = line["group"], line["q"]
            self._open[key] = place, self._floors.get(place, _NONE), -1
            return
        started = self._open.pop(key, None)
        if started is None or line["type"] != "ok":
            return
        place, before, _ = started
        floor = min(before, self._floors.get(place, _NONE))
        if line["offset"] < floor.offset and self._is_judged:
            text = f"{place[0]} at {place[1]} is at {line['offset']} after {floor.offset}"
            self._findings.add("offset-back", text, floor.line, number)
            self._floors[place] = Floor(int(line["offset"]), number)
        self._rise(place, int(line["offset"]), number)

    def fault(self, _number: int, line: Line) -> None:
        """Forget the floors of a broker that may have lost offsets."""
        for place in [place for place in self._floors if broker_of(place[1]) == line["broker"]]:
            del self._floors[place]
        self._open.clear()

    def _rise(self, place: tuple[str, str], offset: int, number: int) -> None:
        if offset > self._floors.get(place, _NONE).offset:
            self._floors[place] = Floor(offset, number)

    def _sink(self, place: tuple[str, str], offset: int, number: int) -> None:
        if offset < self._floors.get(place, _NONE).offset:
            self._floors[place] = Floor(offset, number)
