"""What must hold in groups with a registry, looked at while it happens.

    I1   what was acknowledged, or a consumer has seen, is in the log of every later master, unless all members that
         were in sync then have lost bytes since or were taken out, or an operator accepted a loss
    I5   one (topic, queue, offset) never names two messages a consumer has seen or a producer was told are stored
    I6   see `permissions`, and `configchecks` for this, I14 and I17 while configurations change
    I7   a commit that was answered is not undone by a hand-back or a switch; offsets are ones a consumer committed
    I19  what a consumer of an elect group sees lies on every member in sync
    I17  each status is true when it is heard: as many members as asked have the bytes, on the device if it says so

In an `elect` group only SEND_OK counts: what was answered otherwise may be cut.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from tandemq.broker.node import Broker
from tandemq.codec.record.record import parse_record, property_value
from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.sim.checkers.always import ContinuousChecks, Place, offsets_in, says_flushed
from tandemq.sim.checkers.configuration import Configurations
from tandemq.sim.checkers.logs import read_log, walk
from tandemq.sim.checkers.model import STORED, Attempt, Given, Shadow
from tandemq.sim.checkers.permissions import COMMIT, READ, WRITE, Permissions
from tandemq.sim.world.cluster import Host
from tandemq.sim.world.groups import DRIFT_PPM, GroupCluster, epoch_of, mode_of, stage_of
from tandemq.sim.world.world import SECOND, Violation, World

PULLED = (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
COMMIT_OFFSET = 1
"""In a pull's sysFlag: it tells an offset too."""
SENDS = (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE)
ORDERLY = ("handed its offsets back", "switch from broker")
"""In the record's reason, when reading moved with all offsets."""
FORCED = "an operator's order"
"""In it, when a member was made to serve that may lack something."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Somebody was told that a message is at a place: who held it then, by what they agreed on."""

    since_us: int
    holders: frozenset[str]
    is_flushed: bool


class GroupChecks(ContinuousChecks):
    """The checkers of one run."""

    def __init__(self, world: World, cluster: GroupCluster, shadow: Shadow) -> None:
        """Nothing was seen."""
        super().__init__(world, cluster, shadow)
        self._groups = cluster
        self.permissions = Permissions(world, cluster)
        self.configurations = Configurations(world, cluster)
        self.accepted_us = self.configurations.forced_until_us
        """Group to when an operator last accepted a loss there."""
        self._facts: dict[Place, Fact] = {}
        self._hosts = {host.address: host for host in cluster.hosts}
        self._epochs: dict[str, int] = {}
        self._in_sync: dict[str, frozenset[str]] = {}
        """Master to members that must hold what it acknowledges; `_decided`: those the record names."""
        self._decided: dict[str, frozenset[str]] = {}
        self._commits: dict[tuple[str, str, int], tuple[int, str]] = {}
        """(Group, "topic@group", queue id) to the offset whose commit was answered last, and by whom."""
        self._answered: set[tuple[str, str, int]] = set()
        """Of those, the ones that were answered as commits; others came with pulls, which are answered at once."""
        self._handed: dict[str, dict[tuple[str, int], int]] = {}
        """Host to ("topic@group", queue id) to the offset that was handed over to it, and saved by that."""
        self._generations: dict[str, int] = {}
        self.on_handed: Callable[[Host], None] = lambda _: None
        """Called when a member may be read to whom that, and all offsets, were handed in order."""

    # Turns.

    def _look_at(self, host: Host, broker: Broker) -> None:
        count = len(self.permissions.changes)
        self.permissions.turned(host)
        self.configurations.turned(host, broker)
        if len(self.permissions.changes) > count:
            self._moved(host, *self.permissions.changes[-1][2:])
        if mode_of(host.group) is Mode.ELECT:
            self._look_at_elected(host, broker)
        else:
            self._look_for_losses(host, broker)

    def _look_at_elected(self, host: Host, broker: Broker) -> None:
        assert broker.failover is not None, "it is of a group with a registry"
        if not broker.failover.is_master:
            return
        member = broker.failover.member
        members = [one for one in member.must_ack if self.configurations.names(host, one)]
        self._in_sync[host.name] = self._names(host, members)
        state = member.view.state
        decided = state.in_sync if state is not None and state.master == host.broker_id else ()
        self._decided[host.name] = self._names(host, decided)
        epoch = epoch_of(broker)
        if stage_of(host) is MemberStage.SERVING and self._epochs.get(host.group.name, 0) < epoch:
            self._epochs[host.group.name] = epoch
            self.judge_log(host, f"begins epoch {epoch}")

    def _names(self, host: Host, numbers: Collection[int]) -> frozenset[str]:
        return frozenset([f"{host.group.name}/{number}" for number in numbers])

    def _look_for_losses(self, host: Host, broker: Broker) -> None:
        """A master whose roles are fixed, and that lost its tail for good, begins a generation: what lay behind it
        is forgotten."""
        pairs = broker.replication.generations
        if broker.is_master and len(pairs) > self._generations.get(host.group.name, 0):
            if host.group.name in self._generations and host.losses_us:
                self._forget(host, pairs[-1][1])
            self._generations[host.group.name] = len(pairs)

    def judge_log(self, host: Host, what: str) -> None:
        """Every fact is in this log."""
        assert host.broker is not None, "it serves"
        store_log, segment = host.broker.store.log, host.config.segment_bytes
        data = read_log(host.machine.disk, store_log.start, store_log.written_end, segment)
        found, _ = walk(data, store_log.start, segment)
        keys = {each.record.log_offset: each.key for each in found}
        for place, (key, log_offset) in list(self._ledger.items()):
            if place[0] != host.group.name or log_offset < store_log.start or keys.get(log_offset) == key:
                continue
            if not self._is_excused(host, place):
                fact = self._facts.get(place)
                raise Violation(
                    "I1",
                    f"{host.name} {what}, and has {keys.get(log_offset)} at {log_offset}, where "
                    f"{place} was told to be {key}: {fact}",
                )
            del self._ledger[place]

    def _is_excused(self, host: Host, place: Place) -> bool:
        """Whether all who held a message then may have lost it since, or a loss was accepted."""
        fact = self._facts.get(place)
        if fact is None:
            return True
        if self.accepted_us.get(host.group.name, -1) >= fact.since_us or any(
            member.flips for member in self._cluster.members(host.group)
        ):
            return True
        holders = [member for member in self._cluster.members(host.group) if member.name in fact.holders]
        return all(
            any(when >= fact.since_us for when in (member.wipes_us if fact.is_flushed else member.losses_us))
            or self.configurations.was_out(member, fact.since_us)
            for member in holders
        )

    # Facts.

    def note(self, place: Place, key: str, log_offset: int, who: str) -> None:
        """Somebody says that a message is at a place."""
        known = self._ledger.setdefault(place, (key, log_offset))
        if known != (key, log_offset):
            host = next(host for host in self._cluster.hosts if host.group.name == place[0])
            if not self._is_excused(host, place):
                raise Violation("I5", f"{place} is {known} for one and {(key, log_offset)} for {who}")
            self._lost.add((place, *known))
            self._ledger[place] = (key, log_offset)
            self._facts.pop(place, None)

    def _holders(self, host: Host) -> frozenset[str]:
        if mode_of(host.group) is Mode.ELECT:
            return self._in_sync.get(host.name, frozenset({host.name}))
        return frozenset({f"{host.group.name}/0"})

    def given(self, given: Given) -> None:
        """A consumer got a message."""
        place = (given.group, given.topic, given.queue_id, given.queue_offset)
        if (place, given.key, given.log_offset) in self._lost:
            return  # an answer that was on its way when the broker lost it with its power
        host = self._hosts[given.broker]
        self.note(place, given.key, given.log_offset, f"{given.broker}, read by a consumer")
        self._facts.setdefault(place, Fact(self._world.now_us - SECOND, self._holders(host), is_flushed=False))
        self._judge_shown(host, given)

    def _judge_shown(self, host: Host, given: Given) -> None:
        """I19: what a consumer of an elect group sees lies on every member in sync."""
        since_us = self._world.now_us - 10 * SECOND
        for name in self._decided.get(host.name, ()) if mode_of(host.group) is Mode.ELECT else ():
            member = next(member for member in self._cluster.hosts if member.name == name)
            start, segment = given.log_offset, host.config.segment_bytes
            if any(when >= since_us for when in member.losses_us) or (
                member.broker is None or member.broker.store.log.start > start
            ):
                continue
            if not any(read_log(member.machine.disk, start, start + 4, segment)):
                raise Violation("I19", f"{host.name} showed {given.key} at {start}, and {name}, in sync, has it not")

    # Answers.

    def heard(self, address: str, command: Command, sent_us: int, answer: Command) -> None:
        """A client heard an answer."""
        host = self._hosts[address]
        if command.code in SENDS:
            if answer.code in STORED:
                self.permissions.answered(host, WRITE, sent_us)
        elif command.code in (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE):
            if answer.code == ResponseCode.SUCCESS:
                self.permissions.answered(host, READ, sent_us)
            comes_with_offset = answer.code in PULLED and int(command.fields["sysFlag"]) & COMMIT_OFFSET
            if comes_with_offset and not self._is_replaced(host, command):
                self._answered.discard(self._committed(host, command))
        elif command.code == Code.UPDATE_CONSUMER_OFFSET and answer.code == ResponseCode.SUCCESS:
            self.permissions.answered(host, COMMIT, sent_us)
            self._answered.add(self._committed(host, command))
        elif command.code == Code.CONSUMER_SEND_MSG_BACK and answer.code == ResponseCode.SUCCESS:
            self.permissions.answered(host, WRITE, sent_us)

    def _is_replaced(self, host: Host, command: Command) -> bool:
        """Whether a lower offset is committed than a pull brought, which may have been held while others committed."""
        fields = command.fields
        table = host.broker.offsets.table if host.broker is not None else {}
        held = table.get(f"{fields['topic']}@{fields['consumerGroup']}", {})
        return held.get(int(fields["queueId"]), 0) < int(fields["commitOffset"])

    def _committed(self, host: Host, command: Command) -> tuple[str, str, int]:
        fields = command.fields
        key = (host.group.name, f"{fields['topic']}@{fields['consumerGroup']}", int(fields["queueId"]))
        self._commits[key] = (int(fields["commitOffset"]), host.name)
        return key

    def _moved(self, host: Host, before: str, _now: str) -> None:
        """Reading moved to another member."""
        broker = host.broker
        assert broker is not None and broker.failover is not None, "it may be read"
        state = broker.failover.member.view.state
        is_orderly = state is not None and any(text in state.reason for text in ORDERLY)
        if state is None or not (is_orderly or (broker.failover.is_elect and FORCED not in state.reason)):
            return
        for (group, key, queue_id), (offset, who) in self._commits.items():
            is_promised = is_orderly or (group, key, queue_id) in self._answered
            if group != host.group.name or who != before or not is_promised:
                continue
            found = broker.offsets.table.get(key, {}).get(queue_id)
            has = found or 0
            if has < offset and not self._lost_since(host):
                raise Violation(
                    "I7",
                    f"{host.name} took over from {before} ({state.reason}) with {has} for {key}/"
                    f"{queue_id}, and {offset} was answered",
                )
            if found is not None:  # whoever lost power may have had less to hand over
                self._handed.setdefault(host.name, {})[key, queue_id] = min(found, offset)
        self.on_handed(host)

    def _lost_since(self, host: Host) -> bool:
        return any(member.losses_us for member in self._cluster.members(host.group))

    def acked(self, attempt: Attempt) -> None:
        """A producer heard that a message is stored: it must be, as safely as the status says."""
        assert attempt.code is not None, "it was answered"
        self.statuses[attempt.code] = self.statuses.get(attempt.code, 0) + 1
        host = self._hosts[attempt.address]
        is_elect = mode_of(host.group) is Mode.ELECT
        if is_elect and attempt.code != 0:
            return
        if not is_elect:
            self._judge_time(attempt, host)
        flushed = says_flushed(attempt, host, ahead_ppm=2 * DRIFT_PPM)
        waits = attempt.waits and attempt.code == 0
        copied = waits and (is_elect or host.group.role == "SYNC_MASTER")
        for at, log_offset in enumerate(attempt.log_offsets):
            message = attempt.messages[at]
            data = self._record_on(host, log_offset, attempt, safe=False)
            if data is None:
                continue
            record = parse_record(data, 0, len(data))
            if isinstance(record, str) or property_value(record.properties, b"UNIQ_KEY") != message.key.encode():
                if not waits:
                    continue  # it was not asked to be safe: another master may have cut it before this was heard
                raise Violation(
                    "I17", f"{host.name} answered {attempt.code} for {message.key}; at {log_offset} it has {record}"
                )
            if waits or not is_elect:
                self._place(attempt, at, record)
                place = (attempt.group, record.topic.decode(), record.queue_id, record.queue_offset)
                self._facts.setdefault(place, Fact(attempt.sent_us, self._holders(host), flushed))
            if flushed:
                self._judge_flush(host, log_offset, data, attempt)
            if copied:
                self._judge_members(host, log_offset, data, attempt, safe=flushed)

    def _judge_time(self, attempt: Attempt, master: Host) -> None:
        took_us = attempt.answered_us - attempt.sent_us
        attempt.answered_us += took_us * 2 * DRIFT_PPM // 1_000_000  # clocks of brokers may be as much ahead
        super()._judge_time(attempt, master)
        attempt.answered_us = attempt.sent_us + took_us

    def _judge_members(self, host: Host, log_offset: int, data: bytes, attempt: Attempt, *, safe: bool) -> None:
        """By a configuration that the master knew since it was asked; in `elect` fewer members need fewer copies."""
        known = self.configurations.known(host, attempt.sent_us)
        others = [
            member
            for member in self._cluster.members(host.group)
            if member is not host and (not known or any(config.member(member.broker_id) for config in known))
        ]
        needed = host.group.copies
        if mode_of(host.group) is Mode.ELECT:
            needed = min([needed, *(len(config.members) for config in known)])
        needed = min(needed, host.group.slaves + 1) - 1
        self._judge_copies(others, needed, log_offset, data, attempt, safe=safe)

    # Starts and stops.

    def stopped(self, host: Host) -> None:
        """A broker's process is about to be gone."""
        super().stopped(host)
        self._note_corrections(host)  # others may have copied them
        present = offsets_in(host)
        for key, queues in self._saved[host.name].items():
            for (
                queue_id,
                offset,
            ) in queues.items():  # what a master told since the table was saved counts, also if lower
                queues[queue_id] = min(offset, present.get((key, queue_id), offset))
        self.permissions.stopped(host)
        self.configurations.stopped(host)

    def started(self, host: Host) -> None:
        """A broker's process has begun."""
        broker = host.broker
        assert broker is not None, "it runs"
        self._offsets.pop(host.name, None)
        before = self._ends.get(host.name)
        if before is None or host.flips or host.wipes_us:
            return
        written, flushed, losses = before
        least = written if losses == len(host.losses_us) else flushed
        if broker.store.log.end < least:
            raise Violation(
                "I1", f"{host.name} had its log up to {least}, and after its restart up to {broker.store.log.end}"
            )
        saved = {
            (key, queue_id): offset
            for key, queues in self._saved.get(host.name, {}).items()
            for queue_id, offset in queues.items()
        }
        for what, offsets in (("saved", saved), ("been handed", self._handed.get(host.name, {}))):
            for (key, queue_id), offset in offsets.items():
                now = broker.offsets.table.get(key, {}).get(queue_id, -1)
                if now < offset and now != self._end_of(host, key, queue_id):
                    raise Violation("I7", f"{host.name} had {what} {offset} for {key}/{queue_id} and starts with {now}")

    # Committed offsets.

    def _look_at_offsets(self, host: Host) -> None:
        assert host.broker is not None, "it runs"
        for member in self._cluster.members(host.group):  # what one corrected, another may have copied already.
            self._note_corrections(member)
        super()._look_at_offsets(host)
        table = host.broker.offsets.table
        self._note_offsets(
            host, {(key, queue_id): offset for key, queues in table.items() for queue_id, offset in queues.items()}
        )

    def _note_corrections(self, host: Host) -> None:
        if host.broker is not None:
            corrected = host.broker.offsets.corrected
            self._corrected.setdefault(host.group.name, set()).update((key, at, now) for key, at, _, now in corrected)

    def _copied(self, host: Host, key: str, queue_id: int, offset: int) -> bool:
        had = self._had.get((host.group.name, key, queue_id), {})
        return had.get(offset, -20 * SECOND) >= self._world.now_us - 20 * SECOND
