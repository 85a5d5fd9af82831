"""Logical queues of the static topic: the places of their messages, by the moves that the administrator has confirmed.

I23  a message has one place in its logical queue, which grows and does not overlap when the queue moves: every response
     and every delivery has the offset that the segments assign; a queue is delivered in order and whole; an offset that
     was committed is found again, wherever the queue is
I24  a mapping whose change was confirmed is not replaced by an older one; a broker that has confirmed that a queue
     moved away takes no message for it; replicas have the master's mapping

The segments are those that the administrator made, not those that brokers report.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lab.sim.checkers.logs import LoggedMessage
from lab.sim.checkers.model import STATIC_TOPIC, Attempt, ExpectedState
from lab.sim.world.cluster import Cluster, Host
from lab.sim.world.world import SECOND, Violation, World
from tandemq.codec.record.record import Record
from tandemq.model.message import StoredMessage
from tandemq.model.queue_mapping import QueueMapping

LOGICAL_GROUP = "GL"
"""The consumer group of the static topic."""
QUEUES = 3
"""Number of logical queues."""
POLL_US = SECOND
LATE_US = 20 * SECOND
"""How much later than its successors a commit may arrive, on a connection that was abandoned."""
Records = Callable[[Host], Sequence[LoggedMessage]]
"""Returns the records in the log of a broker."""


@dataclass(slots=True, eq=False)
class LogicalSegment:
    """A part of a logical queue, in one queue of a broker group; `start` is -1 until the administrator knows it."""

    number: int
    gen: int
    group: str
    queue_id: int
    start: int = -1
    placed_us: int | None = None
    """When its broker confirmed `start`."""
    closed_us: int | None = None
    """When its broker confirmed that it takes no more messages."""


@dataclass(slots=True, eq=False)
class _Commit:
    """The last confirmed commit of a logical queue; `disturbances`: of the masters, when it was sent."""

    offset: int
    sent_us: int
    disturbances: int


class LogicalQueues:
    """The segments of all logical queues, and the checks of what brokers and clients report about them."""

    def __init__(self, world: World, cluster: Cluster, expected: ExpectedState, *, has_one_master: bool) -> None:
        """No segment exists. `has_one_master`: whether the master of a group is the same all the time."""
        self._world = world
        self._cluster = cluster
        self._expected = expected
        self._has_one_master = has_one_master
        self._hosts = [host for host in cluster.hosts if host.is_master or not has_one_master]
        """Brokers that may be masters."""
        self.was_forced: Callable[[], bool] = lambda: False
        """Return whether an operator accepted the loss of messages and mappings: then nothing is checked any more."""
        self.segments: dict[int, list[LogicalSegment]] = {number: [] for number in range(QUEUES)}
        self._by_place: dict[tuple[str, int], LogicalSegment] = {}
        self._epochs: dict[str, int] = {}
        """Broker group to the highest epoch that its master has confirmed."""
        self._commits: dict[int, dict[int, int]] = {number: {} for number in range(QUEUES)}
        """Logical queue to committed offsets, each with its last commit's time."""
        self._confirmed: dict[int, _Commit] = {}
        self._passed: list[tuple[LogicalSegment, int]] = []
        """Segments that the consumer read to their ends, and these ends in the broker's queue."""
        expected.delivered_keys.setdefault(LOGICAL_GROUP, {})
        world.after(POLL_US, self._poll)

    # The administrator's changes.

    def opened(self, number: int, gen: int, group: str, queue_id: int, start: int) -> None:
        """Note a segment, before any broker receives it."""
        segment = LogicalSegment(number, gen, group, queue_id, start)
        assert (group, queue_id) not in self._by_place, "a queue of a broker is used once"
        self._by_place[group, queue_id] = segment
        self.segments[number].append(segment)

    def placed(self, number: int, start: int) -> None:
        """Note the logical offset of the last segment of a queue, before its broker receives it."""
        segment = self.segments[number][-1]
        assert segment.start in (-1, start), f"segment {segment} was to start at {start}"
        segment.start = start

    def confirmed(self, group: str, epoch: int, placed: Collection[int]) -> None:
        """Note that a master confirmed the last segments of an epoch; `placed`: queues for which it has the offset."""
        now_us = self._world.now_us
        self._epochs[group] = max(epoch, self._epochs.get(group, 0))
        for segments in self.segments.values():
            for segment in segments:
                if segment.group != group:
                    continue
                if segment is not segments[-1] and segment.closed_us is None:
                    segment.closed_us = now_us
                if segment is segments[-1] and segment.number in placed and segment.placed_us is None:
                    segment.placed_us = now_us

    def epoch_of(self, group: str) -> int:
        """Return the highest epoch that a master of a group has confirmed; 0: none."""
        return self._epochs.get(group, 0)

    def placed_in(self, group: str) -> set[int]:
        """Return the logical queues whose last segment is in a group that has confirmed its offset."""
        newest = (segments[-1] for segments in self.segments.values())
        return {segment.number for segment in newest if segment.group == group and segment.placed_us is not None}

    # Sends and deliveries.

    def stored(self, attempt: Attempt, index: int, record: Record) -> None:
        """Check the response about a message, by the record that it names.

        Raises:
            Violation: I17, I23 or I24.
        """
        message = attempt.messages[index]
        if self.was_forced():
            return
        if message.is_late:
            raise Violation("I17", f"{attempt.group} stored {message.key} in a logical queue, which is due later")
        segment = self._by_place.get((attempt.group, record.queue_id))
        where = f"{message.key} in {attempt.group}/{record.queue_id}@{record.queue_offset}"
        if segment is None or segment.number != attempt.queue_id:
            raise Violation("I23", f"{where} was sent to logical queue {attempt.queue_id}; that queue is {segment}")
        if attempt.queue_offset < 0:
            if segment.placed_us is not None and segment.placed_us < attempt.sent_us:
                raise Violation("I23", f"{where} was answered without an offset, of {segment}")
        elif segment.start < 0 or segment.start + record.queue_offset != attempt.queue_offset + index:
            raise Violation("I23", f"{where} was answered with offset {attempt.queue_offset + index}, of {segment}")
        if segment.closed_us is not None and segment.closed_us < attempt.sent_us:
            raise Violation("I24", f"{where} was stored after the queue had moved away: {segment}")

    def delivered(self, number: int, message: StoredMessage, group: str, offset: int, expected: int) -> None:
        """Check a message that a consumer of a logical queue received.

        Args:
            number: the logical queue.
            message: as the response has it, with its place in a broker's queue.
            group: of that broker.
            offset: logical offset, by the response.
            expected: logical offset that the consumer has read up to.

        Raises:
            Violation: I23.
        """
        if self.was_forced():
            return
        segment = self._by_place.get((group, message.queue_id))
        where = f"{group}/{message.queue_id}@{message.queue_offset} was delivered as {number}@{offset}"
        if segment is None or segment.number != number or segment.start < 0:
            raise Violation("I23", f"{where}, of {segment}")
        if segment.start + message.queue_offset != offset:
            raise Violation("I23", f"{where}, of {segment}")
        self._judge_end(segment, offset, where)
        if self._is_whole(group) and offset != max(expected, segment.start):
            raise Violation("I23", f"{where}, and it had been read up to {expected}")

    def passed(self, number: int, offset: int, following: int) -> None:
        """Note that a broker sent the consumer, which had read up to `offset`, on to a later one."""
        segment = [candidate for candidate in self.segments[number] if 0 <= candidate.start <= offset][-1]
        if segment is not self.segments[number][-1] and following > offset:
            self._passed.append((segment, offset - segment.start))

    def _is_whole(self, group: str) -> bool:
        """Return whether a group's master has lost no message, and deleted none."""
        return not self._has_lost(group) and not self._world.faults["disk-full"]

    def _has_lost(self, group: str) -> bool:
        return any(host.losses_us or host.flips for host in self._hosts if host.group.name == group)

    def _judge_end(self, segment: LogicalSegment, offset: int, where: str) -> None:
        following = next(
            (candidate for candidate in self.segments[segment.number] if candidate.gen > segment.gen), None
        )
        if following is not None and 0 <= following.start <= offset:
            raise Violation("I23", f"{where}, and the next segment starts at {following.start}")

    # Commits.

    @property
    def disturbances(self) -> int:
        """Return how often masters have lost bytes or their process."""
        return sum(host.kills + len(host.losses_us) for host in self._hosts)

    @property
    def has_losses(self) -> bool:
        """Return whether a master has lost bytes."""
        return self.was_forced() or any(host.losses_us or host.flips for host in self._hosts)

    def committing(self, number: int, offset: int) -> None:
        """Note that the consumer commits an offset of a logical queue."""
        self._commits[number][offset] = self._world.now_us

    def commit_confirmed(self, number: int, offset: int, sent_us: int, disturbances: int) -> None:
        """Note that a commit was confirmed; `disturbances` when it was sent."""
        self._confirmed[number] = _Commit(offset, sent_us, disturbances)

    def found(self, number: int, offset: int | None) -> None:
        """Check the offset that a broker reports for a logical queue; None: it has none.

        Raises:
            Violation: I23.
        """
        confirmed, commits = self._confirmed.get(number), self._commits[number]
        if self.has_losses:
            return  # an offset beyond the end of its queue was set to that end
        if offset is not None and offset not in commits:
            raise Violation("I23", f"logical queue {number} is said to be at {offset}, and nobody committed that")
        if confirmed is None or confirmed.disturbances != self.disturbances:
            return
        if offset is None and self._is_forgotten(number, confirmed.offset):
            return
        recent = [committed for committed, at_us in commits.items() if at_us >= confirmed.sent_us - LATE_US]
        if offset is None or offset < min(recent, default=confirmed.offset):
            raise Violation("I23", f"logical queue {number} is at {offset}, {confirmed.offset} was committed")

    def _is_forgotten(self, number: int, offset: int) -> bool:
        """Return whether the leader of a logical queue has removed the segment of an offset, which had no messages."""
        segment = [candidate for candidate in self.segments[number] if 0 <= candidate.start <= offset][-1]
        for mapping in map(self.mapping_of, self._hosts):
            if mapping is not None and mapping.leads(number):
                kept = {(hosted.bname, hosted.queue_id) for hosted in mapping.queues[number].segments}
                return (segment.group, segment.queue_id) not in kept
        return False

    def physical_commits(self, group: str, queue_id: int) -> dict[int, int]:
        """Return the offsets of a broker's queue that the consumer has committed, with the times of the commits."""
        segment = self._by_place.get((group, queue_id))
        if segment is None or segment.start < 0:
            return {}
        return {max(0, offset - segment.start): at_us for offset, at_us in self._commits[segment.number].items()}

    # Mappings.

    def mapping_of(self, host: Host) -> QueueMapping | None:
        """Return the mapping that a running broker has."""
        return None if host.broker is None else host.broker.topics.mappings.table.get(STATIC_TOPIC)

    def _poll(self) -> None:
        for group, confirmed in self._epochs.items() if not self.was_forced() else ():
            host = self._cluster.master(next(planned for planned in self._cluster.plan.groups if planned.name == group))
            process = host.process
            if host.broker is None or process is None or process.paused_until_us >= self._world.now_us:
                continue  # a paused one does not know yet that another member serves
            if not (self._has_one_master or host.broker.puts.refusal is None):
                continue
            mapping = self.mapping_of(host)
            if mapping is None or mapping.epoch < confirmed:
                raise Violation(
                    "I24", f"epoch {confirmed} was confirmed, and {host.name} has {mapping and mapping.epoch}"
                )
        self._world.after(POLL_US, self._poll)

    # At the end.

    def unsettled(self, records: Records) -> Violation | None:
        """Return the violation that the present state would be at the end; None if there is none."""
        if self.was_forced():
            return None
        given = self._expected.delivered_keys[LOGICAL_GROUP]
        for group in self._cluster.plan.groups:
            master, *slaves = self._cluster.members(group)
            for slave in slaves:
                if self.mapping_of(slave) != self.mapping_of(master):
                    return Violation("I24", f"{slave.name} has not the mapping of its master")
            if master.losses_us or not (self._has_one_master or self._is_whole(group.name)):
                continue  # the queue may have reused offsets that the consumer had already passed
            for found in self._records(records(master)):
                if found.key not in given:
                    where = f"{group.name}/{found.record.queue_id}@{found.record.queue_offset}"
                    return Violation("I23", f"{LOGICAL_GROUP} did not get {found.key} in {where}")
        return None

    def judge(self, records: Records) -> None:
        """Check the logs, and the order of the sends, when everything has settled.

        Raises:
            Violation: I23 or I24.
        """
        for group in self._cluster.plan.groups if not self.was_forced() else ():
            master = self._cluster.master(group)
            for found in self._records(records(master)):
                record = found.record
                segment = self._by_place.get((group.name, record.queue_id))
                where = f"{group.name}/{record.queue_id}@{record.queue_offset}"
                if segment is None:
                    raise Violation("I23", f"{where} has a message, and is no part of a logical queue")
                if segment.start >= 0:
                    self._judge_end(segment, segment.start + record.queue_offset, where)
            self._judge_mapping(group.name, self.mapping_of(master))
            if self._is_whole(group.name):
                self._judge_passed(group.name, records(master))
        if not self.has_losses:
            self._judge_order()

    def _judge_passed(self, group: str, records: Sequence[LoggedMessage]) -> None:
        """Check that the consumer was sent to the next segment at the end of each, not before."""
        ends = {found.record.queue_id: found.record.queue_offset + 1 for found in self._records(records)}
        for segment, end in self._passed:
            if segment.group == group and end != ends.get(segment.queue_id, 0):
                raise Violation("I23", f"the consumer was sent on at {end} of {segment}, with {ends} in the log")

    def _records(self, found: Sequence[LoggedMessage]) -> Iterator[LoggedMessage]:
        return (message for message in found if message.topic == STATIC_TOPIC)

    def _judge_mapping(self, group: str, mapping: QueueMapping | None) -> None:
        """Check that a mapping has the leaders, queues and start offsets that the administrator has set."""
        wanted = {
            number: (segments[-1].queue_id, segments[-1].start)
            for number, segments in self.segments.items()
            if segments and segments[-1].group == group
        }
        held: Mapping[int, tuple[int, int]] = {}
        if mapping is not None:
            held = {
                number: (queue_id, mapping.queues[number].leader.logic_offset)
                for number, queue_id in mapping.led().items()
            }
        if held != wanted:
            raise Violation("I24", f"{group} leads {held}, by the administrator {wanted}")

    def _judge_order(self) -> None:
        """Check that a message sent after another was answered is behind it, in whichever group each is."""
        highest: dict[int, int] = {}
        events: list[tuple[int, int, Attempt]] = []
        for attempt in self._expected.attempts:
            is_firm = self._has_one_master or (attempt.code == 0 and attempt.waits)  # others may be truncated
            if attempt.is_logical and attempt.queue_offset >= 0 and is_firm:
                events.append((attempt.sent_us, 0, attempt))
                events.append((attempt.answered_us, 1, attempt))
        before: dict[int, int] = {}
        for _, is_answer, attempt in sorted(events, key=lambda event: event[:2]):
            if not is_answer:
                before[attempt.number] = highest.get(attempt.queue_id, -1)
                continue
            if attempt.queue_offset <= before[attempt.number]:
                raise Violation(
                    "I23",
                    f"logical queue {attempt.queue_id}: {attempt.queue_offset} was sent after "
                    f"{before[attempt.number]} was answered",
                )
            highest[attempt.queue_id] = max(attempt.queue_offset, highest.get(attempt.queue_id, -1))
