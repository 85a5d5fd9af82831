"""The administrator of a static topic, who creates it and moves its logical queues as `mqadmin` does.

    351 of all brokers ─► new mapping, with a higher epoch, in a file
      1  513 to the brokers that get queues: new segments without an offset, which take messages
      2  513 to the brokers that lose some: they take no more
      3  202 of those: the ends of the old segments, and so the offsets of the new ones
      4  513 to the brokers that get queues, with the offsets

The tool may die after any step. Then another one repeats all of them from the file, or looks first what is done
already. At the end of a move it sends brokers mappings that they have to refuse.

Source: RocketMQ MQAdminUtils.remappingStaticTopic and TopicQueueMappingUtils.remappingStaticTopic.
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from lab.sim.checkers.logical_queues import QUEUES, LogicalQueues
from lab.sim.checkers.model import STATIC_TOPIC
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
from lab.sim.workload.stepping_client import Ask, SteppingClient, Steps
from lab.sim.world.world import Violation, World
from tandemq.model.codes import ResponseCode

MOVES = (2, 3, 4)
DEATH = 0.15
"""Share of the steps after which the tool dies."""


class _Move(NamedTuple):
    """A new mapping; `gains` and `loses`: the groups that get queues, and those that lose some."""

    epoch: int
    parts: dict[str, TopicPart]
    moved: dict[int, tuple[str, str]]
    """Logical queue to the groups that it leaves and joins."""

    @property
    def gains(self) -> list[str]:
        return sorted({target for _, target in self.moved.values()})

    @property
    def loses(self) -> list[str]:
        return sorted({source for source, _ in self.moved.values()})


class StaticTopicAdministrator(SteppingClient):
    """Creates the topic, then moves queues; `is_stopped` ends it after the present move."""

    def __init__(
        self, world: World, queues: LogicalQueues, groups: list[str], master_of: Callable[[str], str], random: Random
    ) -> None:
        """`master_of`: returns the address of a group's master at this moment."""
        super().__init__("mover", random, master_of)
        self._world = world
        self._queues = queues
        self._groups = sorted(groups)
        self.on_sent: Callable[[str], None] = lambda _: None
        """Called with the group whose master is sent its part of a mapping."""
        self.on_confirmed: Callable[[str], None] = lambda _: None
        """Called with the group whose master confirmed it."""
        self.done = 0
        """Number of completed moves."""

    def work(self) -> Steps:
        """See `SteppingClient`."""
        yield self.random.randrange(500, 3_000)
        yield from self._create()
        for _ in range(self.random.choice(MOVES)):
            self.is_idle = True
            yield self.random.randrange(2_000, 12_000)
            if self.is_stopped:
                return
            self.is_idle = False
            yield from self._move()
            self.done += 1

    # Requests.

    def _update(self, group: str, part: TopicPart) -> Ask:
        """Return the request that writes a broker's part."""
        mapping = mapping_body(STATIC_TOPIC, group, part.hosted, epoch=part.epoch, total_queues=QUEUES)
        return Ask(group, update_request(mapping, part.queues))

    def _is_refused(self, group: str, part: TopicPart) -> Steps:
        """Write a broker's part; return whether that was not confirmed."""
        self.on_sent(group)
        answer = yield self._update(group, part)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return True
        self._queues.confirmed(group, part.epoch, _placed(part))
        self.on_confirmed(group)
        return False

    def _read(self, group: str) -> Steps:
        """Return the mapping of a broker; None without a response."""
        answer = yield Ask(group, read_request(STATIC_TOPIC))
        return None if answer is None or answer.code != ResponseCode.SUCCESS else part_in(answer)

    def _read_all(self) -> Steps:
        """Return the mappings of all brokers, once they answer."""
        found: dict[str, TopicPart] = {}
        while True:
            for group in self._groups:
                part = yield from self._read(group)
                if part is not None and self._is_present(group, part):
                    found[group] = part
            if len(found) == len(self._groups):
                return found
            found.clear()
            yield 700

    def _is_present(self, group: str, part: TopicPart) -> bool:
        """Whether a part has all that was confirmed; else it is that of a slave or of a former master."""
        return part.epoch >= self._queues.epoch_of(group) and self._queues.placed_in(group) <= {*_placed(part)}

    # The topic.

    def _create(self) -> Steps:
        groups = self._groups
        hosted: dict[str, dict[int, Segments]] = {group: {} for group in groups}
        for number in range(QUEUES):
            group = groups[number % len(groups)]
            queue_id = len(hosted[group])
            self._queues.opened(number, 0, group, queue_id, 0)
            hosted[group][number] = [segment(0, group, queue_id, 0)]
        for group in groups:
            part = TopicPart(len(hosted[group]), self.now.wall_ms, hosted[group])
            while (yield from self._is_refused(group, part)):
                yield 500

    # Moves.

    def _move(self) -> Steps:
        before = yield from self._read_all()
        wanted = self._draw(before)
        is_done = yield from self._carry_out(wanted)
        while not is_done:
            yield self.random.randrange(200, 6_000)
            again = self._resume if self.random.random() < 0.6 or self.is_stopped else self._carry_out
            is_done = yield from again(wanted)
        self._world.fold("moved", wanted.epoch, sorted(wanted.moved))
        if self.random.random() < 0.6:
            yield from self._contradict(before, wanted)

    def _draw(self, before: dict[str, TopicPart]) -> _Move:
        """Draw which queues move; each gets a queue of its own in the group that it joins."""
        epoch = max([self.now.wall_ms, *(part.epoch + 1_000 for part in before.values())])
        parts = {group: TopicPart(part.queues, epoch, dict(part.hosted)) for group, part in before.items()}
        moved: dict[int, tuple[str, str]] = {}
        for number in sorted(self.random.sample(range(QUEUES), self.random.choice((1, 1, 2)))):
            newest = self._queues.segments[number][-1]
            others = [group for group in self._groups if group != newest.group]
            target = self.random.choice(others or self._groups)
            queue_id = parts[target].queues
            segments = [*before[newest.group].hosted[number], segment(newest.gen + 1, target, queue_id, -1)]
            for group in (newest.group, target):
                parts[group].hosted[number] = segments
            parts[target] = parts[target]._replace(queues=queue_id + 1)
            moved[number] = (newest.group, target)
            self._queues.opened(number, newest.gen + 1, target, queue_id, -1)
        return _Move(epoch, parts, moved)

    def _carry_out(self, wanted: _Move) -> Steps:
        """Carry out all steps; return whether all were confirmed."""
        for group in (*wanted.gains, *wanted.loses):
            if (yield from self._is_refused(group, wanted.parts[group])) or self._dies():
                return False
        return (yield from self._place(wanted))

    def _resume(self, wanted: _Move) -> Steps:
        """Carry out the steps that brokers have not carried out yet; return whether all are.

        That a broker has a mapping confirms nothing: it may have been killed before its slave had it. So what it has is
        written again.
        """
        present = yield from self._read_all()
        for group in (*wanted.gains, *wanted.loses):
            part = present[group] if present[group].epoch == wanted.epoch else wanted.parts[group]
            if (yield from self._is_refused(group, part)):
                return False
        return (yield from self._place(wanted))

    def _place(self, wanted: _Move) -> Steps:
        """Carry out steps 3 and 4."""
        starts: dict[int, int] = {}
        for number, (source, _) in wanted.moved.items():
            end = yield from self._end_of(source, self._queues.segments[number][-2].queue_id)
            if end is None:
                return False
            start = next_start(self._queues.segments[number][-2].start + end)
            self._queues.placed(number, start)
            starts[number] = start
        if self._dies():
            return False
        for group in wanted.gains:
            part = wanted.parts[group]
            hosted = {
                number: [
                    *segments[:-1],
                    segments[-1] | {"logicOffset": starts.get(number, segments[-1]["logicOffset"])},
                ]
                for number, segments in part.hosted.items()
            }
            if (yield from self._is_refused(group, part._replace(hosted=hosted))):
                return False
        return not self._dies()

    def _end_of(self, group: str, queue_id: int) -> Steps:
        """Return the end of a queue; None without a response, or if it is that of a slave without the queue."""
        answer = yield Ask(group, ends_request(STATIC_TOPIC))
        return None if answer is None or answer.code != ResponseCode.SUCCESS else end_in(answer, queue_id)

    def _dies(self) -> bool:
        """Whether the administrator gives up before the next step, as if killed; not at the end of the run."""
        return self.random.random() < DEATH and not self.is_stopped

    # Mappings that have to be refused.

    def _contradict(self, before: dict[str, TopicPart], wanted: _Move) -> Steps:
        """Send a broker of the move its old mapping, or its queues without their last segment."""
        group = self.random.choice(sorted({*wanted.gains, *wanted.loses}))
        part = before[group]._replace(queues=wanted.parts[group].queues)
        if self.random.random() < 0.5:
            number = next(number for number, groups in wanted.moved.items() if group in groups)
            segments = wanted.parts[group].hosted[number][:-1]
            part = wanted.parts[group]._replace(hosted=wanted.parts[group].hosted | {number: segments})
        answer = yield self._update(group, part)
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            raise Violation("I24", f"{group} took {part} over {wanted.parts[group]}")


def _placed(part: TopicPart) -> list[int]:
    """Return the logical queues whose last segment has its offset."""
    return [number for number, segments in part.hosted.items() if segments[-1]["logicOffset"] >= 0]
