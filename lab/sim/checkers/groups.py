"""Checks of groups with a registry during a run.

    I1   an acknowledged or delivered message is in the log of every later master, unless all members in sync then have
         lost bytes since or were removed, or an operator accepted a loss
    I5   one (topic, queue, offset) never refers to two different messages that were delivered or acknowledged
    I6   see `permissions`; and `configuration` for this, I14 and I17 while configurations change
    I7   an offset handover or a switch keeps every acknowledged commit; consumers committed all offsets; a master that
         takes reading back from a reader which is gone has all that this one had copied to the registry
    I19  a message delivered to a consumer of an elect group is on every member in sync
    I17  a send status is true when the producer receives it: as many members as required have the bytes, on the
         device if it says so

In an `elect` group only SEND_OK counts: other messages may be truncated.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from lab.sim.checkers.always import ContinuousChecks, offsets_in, says_flushed
from lab.sim.checkers.configuration import Configurations
from lab.sim.checkers.logs import read_log, walk
from lab.sim.checkers.model import STORED, Attempt, DeliveredMessage, ExpectedState, QueuePlace
from lab.sim.checkers.older_registry import OlderRegistryChecks
from lab.sim.checkers.permissions import COMMIT, READ, WRITE, Permissions
from lab.sim.world.cluster import Host
from lab.sim.world.groups import DRIFT_PPM, GroupCluster, epoch_of, mode_of, stage_of, state_of
from lab.sim.world.world import SECOND, Violation, World
from tandemq.broker.node import Broker
from tandemq.broker.roles.copied_offsets import decode
from tandemq.broker.state.consumer_offsets import FILE as OFFSETS
from tandemq.broker.state.consumer_offsets import RESETS, parse_offsets
from tandemq.codec.record.record import parse_record, property_value
from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

PULLED = (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
COMMIT_OFFSET = 1
"""Bit of a pull's sysFlag: the request commits an offset too."""
CHANGES = (Code.CONSUMER_SEND_MSG_BACK, Code.END_TRANSACTION)
SLAVE_RATIO = 10
"""Percent of the memory by which a slave's share is smaller than a master's."""
SENDS = (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE)
UNCLEAN = "takes reading back from"
"""Reason in the record when a master does not wait for its reader any longer."""
ORDERLY = ("handed its offsets over", "switch from broker")
"""Reasons in the record when reading moved with all offsets."""
IN_FLIGHT_US = 10 * SECOND
"""Maximum time for which a response is in flight to a consumer."""
FORCED = "an operator's order"
"""Reason in the record when an operator made a member active that may lack something."""


@dataclass(frozen=True, slots=True)
class DurabilityClaim:
    """A message was reported at a place; `holders` are the members that had to hold it then."""

    since_us: int
    holders: frozenset[str]
    is_flushed: bool


class GroupChecks(ContinuousChecks):
    """The checks that run while one seed runs."""

    def __init__(self, world: World, cluster: GroupCluster, expected: ExpectedState) -> None:
        super().__init__(world, cluster, expected)
        self._groups = cluster
        self.permissions = Permissions(world, cluster)
        self.configurations = Configurations(world, cluster)
        self.older = OlderRegistryChecks(world)
        self.permissions.may_be_unaware = self.older.may_lack
        self.accepted_us = self.configurations.forced_until_us
        """Group to the time when an operator last accepted a loss."""
        self._claims: dict[QueuePlace, DurabilityClaim] = {}
        self.commit_claims: dict[tuple[str, str], DurabilityClaim] = {}
        """(broker group, unique key) of messages whose commit was confirmed."""
        expected.on_committed = self._committed_transaction
        self._hosts = {host.address: host for host in cluster.hosts}
        self._epochs: dict[str, int] = {}
        self._masters: dict[str, int] = {}
        """Host to the master of its group, as it knew it last: its responses arrive after it was killed, too."""
        self._in_sync: dict[str, frozenset[str]] = {}
        """Master to the members that must hold acknowledged messages; `_decided`: the members in the record."""
        self._decided: dict[str, frozenset[str]] = {}
        self._commits: dict[tuple[str, str, int], tuple[int, str]] = {}
        """(broker group, "topic@group", queue id) to the offset acknowledged last, and the member that did."""
        self._answered: set[tuple[str, str, int]] = set()
        """Keys of `_commits` whose last commit was a request of its own; pulls that carry one are answered at once."""
        self._handed: dict[str, dict[tuple[str, int], int]] = {}
        """Host to ("topic@group", queue id) to the offset that was handed over to it, and therefore saved."""
        self._generations: dict[str, int] = {}
        self._readings: dict[str, int] = {}
        """Broker group to the version of its record by which its reader took over last."""
        self.on_handed: Callable[[Host], None] = lambda _: None
        """Called with the member that took over reading after an orderly handover of all offsets."""

    # Turns.

    def _look_at(self, host: Host, broker: Broker) -> None:
        state = state_of(host)
        if state is not None:
            self._masters[host.name] = state.master
            if state.reading_since:
                self._readings[host.group.name] = max(state.reading_since, self._readings.get(host.group.name, 0))
        count = len(self.permissions.changes)
        self.older.turned(host)
        self.permissions.turned(host)
        self.configurations.turned(host, broker)
        if len(self.permissions.changes) > count:
            self._moved(host, *self.permissions.changes[-1][2:])
        if mode_of(host.group) is Mode.ELECT:
            self._look_at_elected(host, broker)
        else:
            self._look_for_losses(host, broker)
        if broker.failover is not None and broker.failover.is_master:
            self._judge_epoch(host, broker)

    def _look_at_rights(self, host: Host) -> None:
        state = state_of(host)
        if state is not None:
            self._masters[host.name] = state.master
        self.permissions.turned(host)

    def _look_at_elected(self, host: Host, broker: Broker) -> None:
        assert broker.failover is not None, "it is of a group with a registry"
        if not broker.failover.is_master:
            self._decided.pop(
                host.name, None
            )  # of old messages that it delivers as a slave its last record says nothing
            return
        member = broker.failover.member
        members = [broker_id for broker_id in member.must_ack if self.configurations.names(host, broker_id)]
        self._in_sync[host.name] = self._names(host, members)
        state = member.view.state
        decided = state.in_sync if state is not None and state.master == host.broker_id else ()
        self._decided[host.name] = self._names(host, decided)

    def _judge_epoch(self, host: Host, broker: Broker) -> None:
        """Check the log of a master that begins an epoch."""
        epoch = epoch_of(broker)
        if stage_of(host) is MemberStage.SERVING and self._epochs.get(host.group.name, 0) < epoch:
            self._epochs[host.group.name] = epoch
            if self.older.may_lack(host):
                self.accepted_us[host.group.name] = self._world.now_us
            self.judge_log(host, f"begins epoch {epoch}")

    def _names(self, host: Host, numbers: Collection[int]) -> frozenset[str]:
        return frozenset([f"{host.group.name}/{number}" for number in numbers])

    def _look_for_losses(self, host: Host, broker: Broker) -> None:
        """Drop the messages beyond the log end of a fixed master that lost its tail: it starts a generation."""
        if mode_of(host.group) is Mode.SLAVE_CONSUME and host.group.role == "SYNC_MASTER":
            return  # there a slave returns the tail, or an operator accepts the loss
        pairs = broker.replication.generations
        if broker.is_master and len(pairs) > self._generations.get(host.group.name, 0):
            if host.group.name in self._generations and host.losses_us:
                self._forget(host, pairs[-1][1])
            self._generations[host.group.name] = len(pairs)

    def judge_log(self, host: Host, what: str) -> None:
        """Check that every claim holds in the log of a host."""
        assert host.broker is not None, "it serves"
        store_log, segment = host.broker.store.log, host.config.segment_bytes
        data = read_log(host.machine.disk, store_log.start, store_log.written_end, segment)
        found, _ = walk(data, store_log.start, segment)
        keys = {each.record.log_offset: each.key for each in found}
        for place, (key, log_offset) in list(self._ledger.items()):
            if place[0] != host.group.name or log_offset < store_log.start or keys.get(log_offset) == key:
                continue
            if not self._is_excused(host, place):
                claim = self._claims.get(place)
                raise Violation(
                    "I1",
                    f"{host.name} {what}, and has {keys.get(log_offset)} at {log_offset}, where "
                    f"{place} was reported as {key}: {claim}",
                )
            del self._ledger[place]
            self._claims.pop(place, None)
            self._lost.add((place, key, log_offset))

    def lost_ends(self, group: str) -> dict[tuple[str, int], int]:
        """Return the ends of the queues of messages that an operator gave up, by topic and queue id: consumers had
        read up to there, and messages that got these offsets since are not delivered to them."""
        ends: dict[tuple[str, int], int] = {}
        if group in self.accepted_us:
            for place, _, _ in self._lost:
                if place.group == group:
                    queue = place.topic, place.queue_id
                    ends[queue] = max(ends.get(queue, 0), place.queue_offset + 1)
        return ends

    def _is_excused(self, host: Host, place: QueuePlace) -> bool:
        return self.is_excused(host, self._claims.get(place))

    def is_excused(self, host: Host, claim: DurabilityClaim | None) -> bool:
        """Return whether all holders of a message may have lost it since, or a loss was accepted."""
        if claim is None:
            return True
        if self.accepted_us.get(host.group.name, -1) >= claim.since_us or any(
            member.flips for member in self._cluster.members(host.group)
        ):
            return True
        holders = [member for member in self._cluster.members(host.group) if member.name in claim.holders]
        return all(
            any(when >= claim.since_us for when in (member.wipes_us if claim.is_flushed else member.losses_us))
            or self.configurations.was_out(member, claim.since_us)
            for member in holders
        )

    # Claims of durability.

    def note(self, place: QueuePlace, key: str, log_offset: int, who: str) -> None:
        """Record that `who` reports a message at a place.

        Raises:
            Violation: I5, another message is known there and was not lost.
        """
        known = self._ledger.setdefault(place, (key, log_offset))
        if known != (key, log_offset):
            host = next(host for host in self._cluster.hosts if host.group.name == place[0])
            if not self._is_excused(host, place):
                raise Violation("I5", f"{place} is {known} for one and {(key, log_offset)} for {who}")
            self._lost.add((place, *known))
            self._ledger[place] = (key, log_offset)
            self._claims.pop(place, None)

    def _holders(self, host: Host) -> frozenset[str]:
        if mode_of(host.group) is Mode.ELECT:
            return self._in_sync.get(host.name, frozenset({host.name}))
        return self._names(host, (self._masters.get(host.name, 0),))

    def given(self, given: DeliveredMessage) -> None:
        """Check a message delivered to a consumer."""
        place = QueuePlace(given.group, given.topic, given.queue_id, given.queue_offset)
        if (place, given.key, given.log_offset) in self._lost:
            return  # a response in flight when the broker lost the message in a power loss
        host = self._hosts[given.broker]
        has_just_lost = any(when > self._world.now_us - IN_FLIGHT_US for when in host.losses_us)
        if has_just_lost and self._is_replaced_or_gone(host, place, given):
            self._lost.add((place, given.key, given.log_offset))
            return  # so was this one, and nothing had been reported of its message
        self.note(place, given.key, given.log_offset, f"{given.broker}, read by a consumer")
        self._claims.setdefault(
            place, DurabilityClaim(self._world.now_us - SECOND, self._holders(host), is_flushed=False)
        )
        self.shown(given.broker, given.log_offset)

    def _is_replaced_or_gone(self, host: Host, place: QueuePlace, given: DeliveredMessage) -> bool:
        known, log_offset = self._ledger.get(place), given.log_offset
        if known is None:
            return not any(read_log(host.machine.disk, log_offset, log_offset + 4, host.config.segment_bytes))
        return known != (given.key, log_offset) and not self._is_excused(host, place)

    def shown(self, address: str, log_offset: int) -> None:
        """I19: check that a message of an elect group, shown to a client, is on every member in sync."""
        host, since_us = self._hosts[address], self._world.now_us - 10 * SECOND
        for name in self._decided.get(host.name, ()) if mode_of(host.group) is Mode.ELECT else ():
            member = next(member for member in self._cluster.hosts if member.name == name)
            if (
                member.harms_us
                or any(when >= since_us for when in member.losses_us)
                or (member.broker is None or member.broker.store.log.start > log_offset)
            ):
                continue
            if not any(read_log(member.machine.disk, log_offset, log_offset + 4, host.config.segment_bytes)):
                raise Violation("I19", f"{host.name} showed a message at {log_offset}, and {name}, in sync, lacks it")

    # Responses.

    def responded(self, address: str, command: Command, sent_us: int, answer: Command) -> None:
        """Check a response that a client received."""
        host = self._hosts[address]
        if command.code in SENDS:
            if answer.code in STORED:
                self.permissions.answered(host, WRITE, sent_us)
        elif command.code in (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE):
            if answer.code == ResponseCode.SUCCESS and not self._is_old(host, answer):
                self.permissions.answered(host, READ, sent_us)
            comes_with_offset = answer.code in PULLED and int(command.fields["sysFlag"]) & COMMIT_OFFSET
            if comes_with_offset and not self._is_replaced(host, command):
                self._answered.discard(self._committed(host, command))
        elif command.code == Code.UPDATE_CONSUMER_OFFSET and answer.code == ResponseCode.SUCCESS:
            self.permissions.answered(host, COMMIT, sent_us)
            self._answered.add(self._committed(host, command))
        elif command.code in CHANGES and answer.code == ResponseCode.SUCCESS:
            self.permissions.answered(host, WRITE, sent_us)

    def _is_old(self, host: Host, answer: Command) -> bool:
        """Return whether a slave may deliver these messages for the master: they are far behind the end of its log.

        The log end of a killed broker is unknown; its deliveries were judged after its turn.
        """
        if not host.config.slave_read_enable:
            return False
        broker = host.broker
        if broker is None:
            return True
        share = max(host.config.memory_ratio_max - SLAVE_RATIO, 0)
        far_bytes = self._cluster.plan.memory_bytes * share // 100
        first = parse_record(answer.body, 0, len(answer.body))
        return not isinstance(first, str) and broker.store.log.written_end - first.log_offset > far_bytes

    def _is_replaced(self, host: Host, command: Command) -> bool:
        """Return whether the broker holds a lower offset than a pull carried: a held pull may arrive late."""
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
        """Check the offsets when reading moved to another member."""
        broker = host.broker
        assert broker is not None and broker.failover is not None, "it may be read"
        state = broker.failover.member.view.state
        if state is not None and UNCLEAN in state.reason:
            self._judge_copied(host, before)
        is_orderly = state is not None and any(text in state.reason for text in ORDERLY)
        if state is None or not (is_orderly or (broker.failover.is_elect and FORCED not in state.reason)):
            return
        if self.older.may_lack(host):  # it was active before, and by the registry's older copy it still is
            self.accepted_us[host.group.name] = self._world.now_us
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
            if found is not None:  # a member that lost power may have had less to hand over
                self._handed.setdefault(host.name, {})[key, queue_id] = min(found, offset)
        self.on_handed(host)

    def _judge_copied(self, host: Host, before: str) -> None:
        """Check that a master which takes reading back has the offsets that the reader had copied."""
        copied, broker = self._groups.copied_offsets(host.group), host.broker
        if copied is None or broker is None or f"{host.group.name}/{copied.reader}" != before:
            return
        if copied.reading_since != self._readings.get(host.group.name):
            return
        table = decode(copied.table)
        resets = parse_offsets(table, RESETS)
        for key, queues in parse_offsets(table).items():
            for queue_id, offset in queues.items():
                has = broker.offsets.table.get(key, {}).get(queue_id, -1)
                is_reset = broker.offsets.resets.get(key, {}).get(queue_id, 0) > resets.get(key, {}).get(queue_id, 0)
                if has < offset and not is_reset and has != self._end_of(host, key, queue_id):
                    raise Violation(
                        "I7",
                        f"{host.name} takes reading back from {before} with {has} for {key}/{queue_id}, where the "
                        f"registry has {offset}",
                    )

    def _lost_since(self, host: Host) -> bool:
        """Whether a member lost power, or has read an older table of offsets because the last one is damaged."""
        members = self._cluster.members(host.group)
        return any(
            member.losses_us or any(path.startswith(OFFSETS.path) for path, _ in member.flips) for member in members
        )

    def acked(self, attempt: Attempt) -> None:
        """Check that a message reported as stored is stored, as safely as the status says."""
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
        for index, log_offset in enumerate(attempt.log_offsets):
            message = attempt.messages[index]
            data = self._record_on(host, log_offset, attempt, safe=False)
            if data is None:
                continue
            record = parse_record(data, 0, len(data))
            if isinstance(record, str) or property_value(record.properties, b"UNIQ_KEY") != message.key.encode():
                if not waits:
                    continue  # sent without waiting: another master may have truncated it before the response arrived
                raise Violation(
                    "I17", f"{host.name} answered {attempt.code} for {message.key}; at {log_offset} it has {record}"
                )
            if waits or not is_elect:
                self._place(attempt, index, record)
                place = QueuePlace(attempt.group, record.topic.decode(), record.queue_id, record.queue_offset)
                holders = self._holders(host)
                if copied and not is_elect:
                    holders |= self._copies(host, log_offset, data)
                self._claims.setdefault(place, DurabilityClaim(attempt.sent_us, holders, flushed))
            if flushed:
                self._judge_flush(host, log_offset, data, attempt)
            if copied:
                self._judge_members(host, log_offset, data, attempt, safe=flushed)

    def _copies(self, master: Host, log_offset: int, data: bytes) -> frozenset[str]:
        """Return the slaves that have a record."""
        segment = master.config.segment_bytes
        return frozenset(
            member.name
            for member in self._cluster.members(master.group)
            if member is not master
            and read_log(member.machine.disk, log_offset, log_offset + len(data), segment) == data
        )

    def _committed_transaction(self, attempt: Attempt) -> None:
        """Note the claim of a confirmed commit."""
        host = self._hosts[attempt.address]
        flushed = says_flushed(attempt, host, ahead_ppm=2 * DRIFT_PPM)
        self.commit_claims.setdefault(
            (attempt.group, attempt.messages[0].key), DurabilityClaim(attempt.sent_us, self._holders(host), flushed)
        )

    def _judge_time(self, attempt: Attempt, master: Host) -> None:
        took_us = attempt.answered_us - attempt.sent_us
        attempt.answered_us += took_us * 2 * DRIFT_PPM // 1_000_000  # brokers' clocks may run ahead as much
        super()._judge_time(attempt, master)
        attempt.answered_us = attempt.sent_us + took_us

    def _judge_members(self, host: Host, log_offset: int, data: bytes, attempt: Attempt, *, safe: bool) -> None:
        """Check replicas by the configurations that the master knew since the request.

        In `elect` fewer members need fewer replicas.
        """
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
        """Note the state of a broker whose process is about to end."""
        super().stopped(host)
        self._note_corrections(host)  # other members may have copied them
        self._forget_unsaved_commits(host)
        present = offsets_in(host)
        for key, queues in self._saved[host.name].items():
            for (
                queue_id,
                offset,
            ) in queues.items():  # an offset from the master after the last save counts, even a lower one
                queues[queue_id] = min(offset, present.get((key, queue_id), offset))
        self.permissions.stopped(host)
        self.configurations.stopped(host)

    def _forget_unsaved_commits(self, host: Host) -> None:
        """Forget offsets that came with pulls and that the disk did not take: no answer had promised them."""
        if host.broker is not None and host.broker.offsets.is_unnoted:
            self._commits = {
                key: commit for key, commit in self._commits.items() if commit[1] != host.name or key in self._answered
            }

    def started(self, host: Host) -> None:
        """Check a broker whose process has started."""
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
        for member in self._cluster.members(host.group):  # Other members may have copied a corrected offset already.
            self._note_corrections(member)
        super()._look_at_offsets(host)
        table = host.broker.offsets.table
        self._note_offsets(
            host, {(key, queue_id): offset for key, queues in table.items() for queue_id, offset in queues.items()}
        )

    def _note_corrections(self, host: Host) -> None:
        if host.broker is not None:
            corrected = host.broker.offsets.corrected
            self._corrected.setdefault(host.group.name, set()).update(
                (key, log_offset, now) for key, log_offset, _, now in corrected
            )

    def _copied(self, host: Host, key: str, queue_id: int, offset: int) -> bool:
        had = self._had.get((host.group.name, key, queue_id), {})
        return had.get(offset, -20 * SECOND) >= self._world.now_us - 20 * SECOND
