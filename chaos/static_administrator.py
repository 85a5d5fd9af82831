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

import threading
import time
from collections.abc import Callable
from random import Random

from chaos.logical_history import LogicalHistory
from chaos.requests import QUEUES, RETRY_S, TOPIC, Requests, wall_ms
from lab.sim.workload.static_topic_requests import (
    Segments,
    TopicPart,
    end_in,
    ends_request,
    mapping_body,
    next_start,
    part_in,
    read_request,
    segment,
    update_request,
)
from tandemq.errors import LocalError
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

PATIENCE_S = 100.0
"""How long a master may take to carry out a request; less than the clients' threads get to end."""
_MOVE_S = (0.5, 4.0)
_DEATH = 0.15
"""Share of the steps after which the tool dies."""
_CONTRADICTIONS = 0.6
"""Share of the moves after which a broker gets a mapping that it has to refuse."""


class Administrator:
    """Creates the topic and moves its queues between the groups."""

    def __init__(
        self,
        requests: Requests,
        groups: tuple[str, str],
        history: LogicalHistory,
        random: Random,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`patience_s`: after that time without success a request is given up."""
        self._requests = requests
        self._groups = groups
        self._history = history
        self._random = random
        self._patience_s = patience_s

    def create(self) -> None:
        """Create the topic; returns when all brokers have confirmed it.

        Raises:
            LocalError: one has not within the patience.
        """
        hosted: dict[str, dict[int, Segments]] = {group: {} for group in self._groups}
        for number in range(QUEUES):
            group = self._groups[number % len(self._groups)]
            queue_id = len(hosted[group])
            self._history.opened(number, 0, group, queue_id, 0)
            hosted[group][number] = [segment(0, group, queue_id, 0)]
        for group in self._groups:
            self._write(group, TopicPart(len(hosted[group]), wall_ms(), hosted[group]), has_places=True)

    def run(self, is_over: threading.Event) -> None:
        """Move queues; the last move ends after `is_over`.

        Raises:
            LocalError: a broker has not carried out a request within the patience.
        """
        try:
            while not is_over.wait(self._random.uniform(*_MOVE_S)):
                self._move()
                self._history.moves += 1
        finally:
            self._requests.close()

    def _move(self) -> None:
        before = {group: self._read(group) for group in self._groups}
        epoch = max([wall_ms(), *(part.epoch + 1_000 for part in before.values())])
        parts = {group: TopicPart(part.queues, epoch, dict(part.hosted)) for group, part in before.items()}
        moved = sorted(self._random.sample(range(QUEUES), self._random.choice((1, 1, 2))))
        for number in moved:
            last = self._history.segments[number][-1]
            target = next(group for group in self._groups if group != last.group)
            queue_id = parts[target].queues
            segments = [*before[last.group].hosted[number], segment(last.gen + 1, target, queue_id, -1)]
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

    def _carry_out(self, order: list[str], gains: set[str], moved: list[int], parts: dict[str, TopicPart]) -> bool:
        """Carry out all steps of a move; returns False if the tool died."""
        for group in order:
            self._write(group, parts[group])
            if self._dies():
                return False
        ends: dict[int, tuple[int, int]] = {}
        for number in moved:
            old = self._history.segments[number][-2]
            end = self._end_of(old.group, old.queue_id)
            ends[number] = (end, next_start(old.start + end))
            self._history.placed(number, ends[number][1])
        if self._dies():
            return False
        for group in sorted(gains):
            hosted = {
                number: _with_place(segments, *ends[number]) if number in ends else segments
                for number, segments in parts[group].hosted.items()
            }
            self._write(group, parts[group]._replace(hosted=hosted), has_places=True)
        return True

    def _dies(self) -> bool:
        return self._random.random() < _DEATH

    def _write(self, group: str, part: TopicPart, *, has_places: bool = False) -> None:
        """Write a broker's part."""
        self._insist(group, _update(group, part))
        self._history.confirmed(group, time.monotonic(), has_places=has_places)

    def _read(self, group: str) -> TopicPart:
        """Return what a group's master has: all that was confirmed, else it is that of a former master."""
        return part_in(self._insist(group, read_request(TOPIC), lambda answer: self._is_present(group, answer)))

    def _is_present(self, group: str, answer: Command) -> bool:
        part = part_in(answer)
        return all(_leader_in(part, number) == place for number, place in self._led_by(group).items())

    def _insist(self, group: str, request: Command, suits: Callable[[Command], bool] = lambda _: True) -> Command:
        """Ask a group's master until it answers with a success that suits.

        Raises:
            LocalError: it has not within the patience.
        """
        until_s = time.monotonic() + self._patience_s
        while True:
            answer = self._ask_master(group, request)
            if answer is not None and answer.code == ResponseCode.SUCCESS and suits(answer):
                return answer
            if time.monotonic() >= until_s:
                last = "none" if answer is None else f"code {answer.code} {answer.remark}".rstrip()
                raise LocalError(
                    f"the master of {group} has not carried out request {int(request.code)} for static topic {TOPIC} "
                    f"within {self._patience_s:g} s; its last response: {last}"
                )
            time.sleep(RETRY_S)

    def _ask_master(self, group: str, request: Command) -> Command | None:
        address = self._requests.masters().get(group)
        return None if address is None else self._requests.ask(address, request.code, request.fields, request.body)

    def _led_by(self, group: str) -> dict[int, tuple[int, int]]:
        leaders = {number: segments[-1] for number, segments in self._history.segments.items()}
        return {number: (one.queue_id, one.start) for number, one in leaders.items() if one.group == group}

    def _end_of(self, group: str, queue_id: int) -> int:
        return end_in(self._insist(group, ends_request(TOPIC)), queue_id) or 0

    def _contradict(self, before: dict[str, TopicPart], parts: dict[str, TopicPart], moved: list[int]) -> None:
        """Send a broker what it had before, or its queues without the last segment of one that moved."""
        group = self._random.choice(self._groups)
        part = before[group]._replace(queues=parts[group].queues)
        if self._random.random() < 0.5:
            segments = parts[group].hosted[moved[0]][:-1]
            part = parts[group]._replace(hosted=parts[group].hosted | {moved[0]: segments})
        answer = self._ask_master(group, _update(group, part))
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self._history.wrongly_taken(group)
        elif answer is not None:
            self._history.refused += 1


def _update(group: str, part: TopicPart) -> Command:
    """Return the request that writes a broker's part."""
    mapping = mapping_body(TOPIC, group, part.hosted, epoch=part.epoch, total_queues=QUEUES)
    return update_request(mapping, part.queues)


def _with_place(segments: Segments, end: int, start: int) -> Segments:
    """Return the segments with the end of the last but one, and the start of the last one."""
    *older, former, last = segments
    closed = former | {"endOffset": end} if end > former["startOffset"] else former
    return [*older, closed, last | {"logicOffset": start}]


def _leader_in(part: TopicPart, number: int) -> tuple[int, int] | None:
    segments = part.hosted.get(number)
    return (segments[-1]["queueId"], segments[-1]["logicOffset"]) if segments else None
