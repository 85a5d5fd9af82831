"""The administrator of the static topic, who creates it and moves its logical queues between the groups.

    351 of all masters ─► new mapping, with a higher epoch
      1  513 to the groups that get queues: new segments without an offset, which take messages
      2  513 to those that lose some: they take no more
      3  202 of these: the ends of the old segments, and so the offsets of the new ones
      4  513 to the groups that get queues, with the offsets

The tool dies after one of the first three steps, and another one repeats them. After a move a broker gets an older or
contradictory mapping, which it has to refuse.

Source: RocketMQ MQAdminUtils.remappingStaticTopic.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from random import Random
from typing import Any, NamedTuple

from chaos.logical_history import LogicalHistory
from chaos.requests import QUEUES, RETRY_S, TOPIC, Requests, wall_ms
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command

_MOVE_S = (0.5, 4.0)
_BLOCK = 1_000
"""blockSeqSize of the tool, 10,000 by default."""
_DEATH = 0.15
"""Share of the steps after which the tool dies."""
_CONTRADICTIONS = 0.6
"""Share of the moves after which a broker gets a mapping that it has to refuse."""
Segments = list[dict[str, Any]]


class _Part(NamedTuple):
    """What one broker has, or is to have: number of its queues, epoch, and segments by logical queue."""

    queues: int
    epoch: int
    hosted: dict[int, Segments]


class Administrator:
    """Creates the topic and moves its queues between the groups."""

    def __init__(self, name_server: str, groups: tuple[str, str], history: LogicalHistory, random: Random) -> None:
        self._requests = Requests(name_server)
        self._groups = groups
        self._history = history
        self._random = random

    def create(self) -> None:
        """Create the topic; returns when all brokers have confirmed it."""
        hosted: dict[str, dict[int, Segments]] = {group: {} for group in self._groups}
        for number in range(QUEUES):
            group = self._groups[number % len(self._groups)]
            queue_id = len(hosted[group])
            self._history.opened(number, 0, group, queue_id, 0)
            hosted[group][number] = [_segment(0, group, queue_id, 0)]
        for group in self._groups:
            self._insist(group, _Part(len(hosted[group]), wall_ms(), hosted[group]), has_places=True)

    def run(self, is_over: threading.Event) -> None:
        """Move queues; the last move ends after `is_over`."""
        while not is_over.wait(self._random.uniform(*_MOVE_S)):
            self._move()
            self._history.moves += 1
        self._requests.close()

    def _move(self) -> None:
        before = {group: self._read(group) for group in self._groups}
        epoch = max([wall_ms(), *(part.epoch + 1_000 for part in before.values())])
        parts = {group: _Part(part.queues, epoch, dict(part.hosted)) for group, part in before.items()}
        moved = sorted(self._random.sample(range(QUEUES), self._random.choice((1, 1, 2))))
        for number in moved:
            last = self._history.segments[number][-1]
            target = next(group for group in self._groups if group != last.group)
            queue_id = parts[target].queues
            segments = [*before[last.group].hosted[number], _segment(last.gen + 1, target, queue_id, -1)]
            for group in self._groups:
                parts[group].hosted[number] = segments
            parts[target] = parts[target]._replace(queues=queue_id + 1)
            self._history.opened(number, last.gen + 1, target, queue_id, -1)
        gains = {self._history.segments[number][-1].group for number in moved}
        order = sorted(self._groups, key=lambda group: group not in gains)
        while not self._carry_out(order, gains, moved, parts):
            time.sleep(RETRY_S)
        if self._random.random() < _CONTRADICTIONS:
            self._contradict(before, parts, moved)

    def _carry_out(self, order: list[str], gains: set[str], moved: list[int], parts: dict[str, _Part]) -> bool:
        """Carry out all steps of a move; returns False if the tool died."""
        for group in order:
            self._insist(group, parts[group])
            if self._dies():
                return False
        ends: dict[int, tuple[int, int]] = {}
        for number in moved:
            old = self._history.segments[number][-2]
            end = self._end_of(old.group, old.queue_id)
            ends[number] = (end, _round_up(old.start + end))
            self._history.placed(number, ends[number][1])
        if self._dies():
            return False
        for group in sorted(gains):
            hosted = {
                number: _with_place(segments, *ends[number]) if number in ends else segments
                for number, segments in parts[group].hosted.items()
            }
            self._insist(group, parts[group]._replace(hosted=hosted), has_places=True)
        return True

    def _dies(self) -> bool:
        return self._random.random() < _DEATH

    def _insist(self, group: str, part: _Part, *, has_places: bool = False) -> None:
        """Write a broker's part until its master confirms it."""
        while not self._is_taken(group, part):
            time.sleep(RETRY_S)
        self._history.confirmed(group, time.monotonic(), has_places=has_places)

    def _is_taken(self, group: str, part: _Part) -> bool:
        answer = self._write(group, part)
        return answer is not None and answer.code == ResponseCode.SUCCESS

    def _write(self, group: str, part: _Part) -> Command | None:
        """Send a broker its part of the mapping."""
        body = {
            "topic": TOPIC,
            "scope": "__global__",
            "totalQueues": QUEUES,
            "bname": group,
            "epoch": part.epoch,
            "dirty": False,
            "currIdMap": {},
            "hostedQueues": {str(number): segments for number, segments in part.hosted.items()},
        }
        fields = {
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "readQueueNums": part.queues,
            "writeQueueNums": part.queues,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": "false",
            "force": "false",
        }
        return self._ask_master(group, RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, fields, dumps(body))

    def _ask_master(self, group: str, code: int, fields: Mapping[str, object], body: bytes = b"") -> Command | None:
        address = self._requests.masters().get(group)
        return None if address is None else self._requests.ask(address, code, fields, body)

    def _until_answered(self, group: str, code: int, fields: Mapping[str, object]) -> Command:
        while True:
            answer = self._ask_master(group, code, fields)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                return answer
            time.sleep(RETRY_S)

    def _read(self, group: str) -> _Part:
        """Return what a group's master has: all that was confirmed, else it is that of a former master."""
        while True:
            body = json.loads(
                self._until_answered(group, RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC, "lo": "true"}).body
            )
            detail = body.get("mappingDetail") or {"epoch": -1, "hostedQueues": {}}
            hosted = {int(number): segments for number, segments in detail["hostedQueues"].items()}
            part = _Part(body["writeQueueNums"], detail["epoch"], hosted)
            if all(_leader_in(part, number) == place for number, place in self._led_by(group).items()):
                return part
            time.sleep(RETRY_S)

    def _led_by(self, group: str) -> dict[int, tuple[int, int]]:
        leaders = {number: segments[-1] for number, segments in self._history.segments.items()}
        return {number: (one.queue_id, one.start) for number, one in leaders.items() if one.group == group}

    def _end_of(self, group: str, queue_id: int) -> int:
        body = self._until_answered(group, RequestCode.GET_TOPIC_STATS_INFO, {"topic": TOPIC}).body
        for key, entry in loads(body, is_trusted=True)["offsetTable"].items():
            if json.loads(key)["queueId"] == queue_id:
                return int(entry["maxOffset"])
        return 0

    def _contradict(self, before: dict[str, _Part], parts: dict[str, _Part], moved: list[int]) -> None:
        """Send a broker what it had before, or its queues without the last segment of one that moved."""
        group = self._random.choice(self._groups)
        part = before[group]._replace(queues=parts[group].queues)
        if self._random.random() < 0.5:
            segments = parts[group].hosted[moved[0]][:-1]
            part = parts[group]._replace(hosted=parts[group].hosted | {moved[0]: segments})
        answer = self._write(group, part)
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self._history.wrongly_taken(group)
        elif answer is not None:
            self._history.refused += 1


def _segment(gen: int, group: str, queue_id: int, logic_offset: int) -> dict[str, Any]:
    return {
        "gen": gen,
        "queueId": queue_id,
        "bname": group,
        "logicOffset": logic_offset,
        "startOffset": 0,
        "endOffset": -1,
        "timeOfStart": -1,
        "timeOfEnd": -1,
    }


def _with_place(segments: Segments, end: int, start: int) -> Segments:
    """Return the segments with the end of the last but one, and the start of the last one."""
    *older, former, last = segments
    closed = former | {"endOffset": end} if end > former["startOffset"] else former
    return [*older, closed, last | {"logicOffset": start}]


def _leader_in(part: _Part, number: int) -> tuple[int, int] | None:
    segments = part.hosted.get(number)
    return (segments[-1]["queueId"], segments[-1]["logicOffset"]) if segments else None


def _round_up(offset: int) -> int:
    """Return the next offset at which a segment may start, at least half a block ahead."""
    whole, rest = divmod(offset, _BLOCK)
    return (whole + (1 if rest < _BLOCK // 2 else 2)) * _BLOCK
