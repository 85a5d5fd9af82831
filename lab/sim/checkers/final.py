"""Checks at the end of a run, after the faults have ended and the cluster has settled.

settled   I14  masters accept messages, slaves have caught up, delayed messages are out, consumers have everything
          I13  rejected messages were redelivered or are dead letters
I1        acknowledged messages are in the log, unless their level does not survive what happened
I2 I3 I17 no log holds a message that was not sent, was sent less often, or was refused
I4        offsets follow the order of sending
I8        replicas are identical byte for byte
I9        queues and index equal a rebuild from the log
I10       no log holds damage that no fault injected
I11       transactions are over: committed once, rolled back, or given up (see `transactions`)
I12       delayed and timed messages arrived once and not early, recalled ones not after their recall
I16       malformed requests created no topic or group
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from lab.sim.checkers.access import GUARDED_TOPIC, AccessChecks
from lab.sim.checkers.always import ContinuousChecks, says_flushed
from lab.sim.checkers.deliveries import RECONSUME_MAX, REJECTING_GROUP, is_out_of_reach
from lab.sim.checkers.derived import judge_derived
from lab.sim.checkers.limits import FREE_TOPIC, LIMITED_TOPIC, POPPING_GROUP, LimitChecks
from lab.sim.checkers.logs import InvalidRange, LoggedMessage, read_log, walk, without_filler
from lab.sim.checkers.model import (
    CYCLE_PREFIX,
    POP_GROUP,
    STATIC_TOPIC,
    TOPICS,
    Attempt,
    ExpectedState,
    QueuePlace,
    SentMessage,
)
from lab.sim.checkers.pops import PopChecks
from lab.sim.checkers.transactions import TransactionLog
from lab.sim.world.cluster import Cluster, Host
from lab.sim.world.plan import DELAYS, GroupPlan
from lab.sim.world.world import MS, SECOND, Violation, World
from tandemq.broker.features.delay.service import DelayedMessages
from tandemq.broker.features.scrub.scrubber import Scrubber
from tandemq.broker.features.timers.service import TimedMessages
from tandemq.broker.features.transactions.service import Transactions
from tandemq.codec.record.record import property_value
from tandemq.model.pop import TopicKind, pop_retry_topic, revive_topic
from tandemq.model.topic import (
    CHECK_MAX_TIME_TOPIC,
    DELETION_TOPIC,
    DLQ_PREFIX,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    REVIVE_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_DONE_TOPIC,
    TIMER_TOPIC,
)

DELAYS_US = [int(text.removesuffix("s")) * SECOND for text in DELAYS.split()]
_LIMITED_TOPICS = (
    LIMITED_TOPIC,
    FREE_TOPIC,
    f"{RETRY_PREFIX}{POPPING_GROUP}",
    pop_retry_topic(POPPING_GROUP, LIMITED_TOPIC, TopicKind.RETRY_V1),
)
PRECISION_MS = 1_000
"""The unit of time of timed messages."""


class _TimedKey(NamedTuple):
    """A timed message with its time; attempts to send it that were stored in different units of time are apart."""

    key: str
    out_ms: int


class FinalChecks:
    """The checks at the end of one run."""

    def __init__(
        self, world: World, cluster: Cluster, expected: ExpectedState, checks: ContinuousChecks, groups: tuple[str, ...]
    ) -> None:
        """`groups`: the consumer groups."""
        self._world = world
        self._cluster = cluster
        self._expected = expected
        self._checks = checks
        self._consumer_groups = groups
        self.selections: dict[str, Callable[[SentMessage], bool]] = {}
        """Consumer group to its filter, for groups that select messages by a rule of their own."""
        self.pops: PopChecks | None = None
        """The checks of the group that pops, if there is one."""
        self.access: AccessChecks | None = None
        """The checks of access control, if it is on."""
        self.limits: LimitChecks | None = None
        """The checks of limits, if there are any."""
        self._has_one_master = True
        """Whether the master of a group is the same all the time."""
        self._found: dict[str, list[LoggedMessage]] = {}
        self._walked: dict[tuple[int, int, bytes], tuple[list[LoggedMessage], InvalidRange | None]] = {}
        """Results of `walk` by its arguments: the bytes of replicas are the same."""
        self._settling_ms: dict[str, int] = {}
        """Host to the time by its wall clock when it was first looked at, all faults over."""
        self._whole: dict[str, bytes] = {}
        """Host to the bytes of its log when they were free of damage."""

    # Waiting until the cluster has settled.

    def unsettled(self) -> Violation | None:
        """Return the violation that the cluster's state would be if it stayed so; None if everything has settled."""
        what = self._unsettled()
        if what:
            return Violation("I14", what)
        what = self._unfinished()
        if what:
            return Violation("I13", what)
        what = self._open_transactions()
        if what:
            return Violation("I11", what)
        what = "" if self.pops is None else self.pops.missing()
        if what:
            return Violation("I25", what)
        for checks in (self.access, self.limits):
            if checks is not None and (found := checks.unsettled()) is not None:
                return found
        return None if self._checks.logical is None else self._checks.logical.unsettled(self.records)

    def _unsettled(self) -> str:
        for host in self._cluster.hosts:
            if host.broker is None:
                return f"{host.name} is down"
        for group in self._cluster.plan.groups:
            what = self._unsettled_group(group)
            if what:
                return what
        return self._undelivered()

    def _unsettled_group(self, group: GroupPlan) -> str:
        master, *slaves = self._cluster.members(group)
        assert master.broker is not None, "it runs"
        for host in (master, *slaves):
            what = self._unrepaired(host) or self._unscrubbed(host)
            if what:
                return what
        what = self._undeleted(group)
        if what:
            return what
        end = master.broker.store.log.written_end
        if master.broker.puts.refusal is not None:
            return f"{master.name} refuses: {master.broker.puts.refusal[1]}"
        if len(master.broker.acknowledgements.waiters):
            return f"{master.name}: answers wait"
        for slave in slaves:
            assert slave.broker is not None, "it runs"
            if slave.broker.store.log.written_end != end:
                return f"{slave.name} has its log up to {slave.broker.store.log.written_end}, its master up to {end}"
        for level in range(len(DELAYS_US)):
            if not master.broker.features.find(DelayedMessages).is_drained(level + 1):
                return f"{master.name}: messages of delay level {level + 1} wait"
        if (TIMER_TOPIC, 0) in master.broker.store.queues:
            table = master.broker.features.find(TimedMessages).table
            first_ms = None if table is None else table.first()
            # After a clock went back a message rightly waits longer than the run lasts.
            if table is None or (first_ms is not None and first_ms < master.machine.now().wall_ms):
                return f"{master.name}: timed messages wait"
        return ""

    def _undeleted(self, group: GroupPlan) -> str:
        """Return a member that has a topic whose deletion was confirmed; "" if none has."""
        members = self._cluster.members(group)
        since_us = max([when for host in members for when in host.losses_us], default=-1)
        if any(path.startswith("config/") for host in members for path, _ in host.flips):
            return ""
        for (name, topic), at_us in self._expected.deletions.items():
            for host in members if name == group.name and at_us > since_us else ():
                if host.broker is not None and topic in host.broker.topics.table:
                    return f"{host.name} has {topic}, whose deletion was confirmed"
        return ""

    def _unrepaired(self, host: Host) -> str:
        """Return the injected damage of a log that is not repaired yet; "" if there is none."""
        if not host.flips:
            return ""
        assert host.broker is not None, "it runs"
        start, segment = self._start(host), host.config.segment_bytes
        data = read_log(host.machine.disk, start, host.broker.store.log.written_end, segment)
        listed = [damage for damage in host.broker.kernel.damages.ranges if damage.end > start]
        if listed:
            return f"{host.name} lists damage: {listed}"
        if self._whole.get(host.name) == data:
            return ""
        _, damage = walk(data, start, segment)
        if damage is None:
            self._whole[host.name] = data
        return "" if damage is None else f"{host.name} has damage at {damage.log_offset}: {damage.reason}"

    def _unscrubbed(self, host: Host) -> str:
        """Return whether a member with damaged queues was not scrubbed since the faults ended; "" if it was."""
        if not any(path.startswith("consumequeue/") for path, _ in host.flips):
            return ""
        assert host.broker is not None, "it runs"
        since_ms = self._settling_ms.setdefault(host.name, host.machine.now().wall_ms)
        done = host.broker.features.find(Scrubber).last_pass
        return "" if done.began_ms >= since_ms else f"{host.name} has not verified its queues since the faults"

    def _start(self, host: Host) -> int:
        """Return the first byte of a host's log to check: damage that no replica's log covers cannot be repaired."""
        assert host.broker is not None, "it runs"
        own = host.broker.store.log.start
        if not host.flips:
            return own
        master, *slaves = self._cluster.members(host.group)
        starts = [other.broker.store.log.start for other in (slaves if host is master else [master]) if other.broker]
        return max(own, min(starts, default=own))

    def _undelivered(self) -> str:
        for consumer_group in self._consumer_groups:
            given = self._expected.delivered_keys[consumer_group]
            for group in self._cluster.plan.groups:
                master = self._cluster.master(group)
                if master.losses_us:
                    continue  # the queue may have reused offsets that consumers had already passed
                for found in self.records(master):
                    is_wanted = found.topic in TOPICS and found.key not in given
                    if (
                        is_wanted
                        and self._is_for(consumer_group, found.key)
                        and not self._is_out_of_reach(master, found)
                    ):
                        where = f"{group.name} {found.topic}/{found.record.queue_id}@{found.record.queue_offset}"
                        return f"{consumer_group} did not get {where}"
        return ""

    def _is_out_of_reach(self, host: Host, found: LoggedMessage) -> bool:
        return is_out_of_reach(host, found, self._expected.messages.get(found.key))

    def _is_for(self, consumer_group: str, key: str) -> bool:
        message = self._expected.messages.get(key)
        if consumer_group in self.selections:
            return message is None or self.selections[consumer_group](message)
        return consumer_group == REJECTING_GROUP or message is None or message.tag in ("A", "B")

    def _unfinished(self) -> str:
        """Return a rejected message that was neither redelivered nor is a dead letter; "" if there is none."""
        given = self._expected.delivered_keys[REJECTING_GROUP]
        finished = self._expected.finished[REJECTING_GROUP]
        dead = {found.key for found in self._all() if found.topic.startswith(DLQ_PREFIX)}
        lost = any(
            host.losses_us or host.flips or (host.broker is not None and host.broker.store.log.start > 0)
            for host in self._cluster.hosts
            if host.is_master
        )
        for key in given:
            message = self._expected.messages[key]
            if message.rejections and key not in finished and key not in dead and not lost:
                return (
                    f"the rejected message {key} ({message.rejections} times) neither came again nor is a dead letter"
                )
            if message.rejections <= RECONSUME_MAX and key in dead and key not in finished:
                return f"the message {key} is a dead letter after {message.rejections} rejections"
        return ""

    def _open_transactions(self) -> str:
        """Describe a transaction that has not ended; "" if there is none."""
        for group in self._cluster.plan.groups:
            master, *slaves = self._cluster.members(group)
            assert master.broker is not None, "it runs"
            table = master.broker.features.find(Transactions).table
            if table is None:
                return f"{master.name} has not read its open transactions"
            if len(table):
                return f"{master.name} has {len(table)} open transactions: {list(table.entries.items())[:3]}"
            for slave in slaves:
                if slave.broker is not None and slave.broker.features.find(Transactions).table is not None:
                    return f"{slave.name} is no master and has open transactions"
        return ""

    def _judge_transactions(self) -> None:
        masters = [self._cluster.members(group)[0] for group in self._cluster.plan.groups]
        hosts = self._cluster.hosts
        logs = [
            TransactionLog(
                host.name,
                self.records(host),
                self._start(host),
                is_unharmed=not any(member.flips for member in hosts if member.group is host.group),
            )
            for host in masters
        ]
        committed = {key for log in logs for key, _ in log.commits}
        may_lose = any(host.losses_us or host.flips for host in hosts)
        for host, log in zip(masters, logs, strict=True):
            log.judge(self._expected, committed, host.config.transaction_checks_max, may_lose=may_lose)

    def records(self, host: Host) -> list[LoggedMessage]:
        """Return all records of a host's log, read from its disk; cached while the log's end stays."""
        assert host.broker is not None, "it runs"
        store_log = host.broker.store.log
        known = self._found.get(f"{host.name} {store_log.written_end}")
        if known is None:
            start, segment = self._start(host), host.config.segment_bytes
            data = read_log(host.machine.disk, start, store_log.written_end, segment)
            known, damage = self._walk(data, start, segment)
            if damage is not None:
                if not host.flips:
                    raise Violation(
                        "I10", f"{host.name} has damage that no fault injected at {damage.log_offset}: {damage.reason}"
                    )
                return known  # it will be repaired
            self._found[f"{host.name} {store_log.written_end}"] = known
        return known

    def _walk(self, data: bytes, start: int, segment_bytes: int) -> tuple[list[LoggedMessage], InvalidRange | None]:
        key = start, segment_bytes, data
        if key not in self._walked:
            self._walked[key] = walk(data, start, segment_bytes)
        return self._walked[key]

    def _all(self) -> list[LoggedMessage]:
        return [found for group in self._cluster.plan.groups for found in self.records(self._cluster.master(group))]

    # Checking.

    def judge(self) -> None:
        """Raise the first violation, if there is one."""
        self._judge_refused()
        for group in self._cluster.plan.groups:
            self._judge_replicas(group)
        for host in self._cluster.hosts:
            self._judge_places(host)
            judge_derived(host, self.records(host), self._start(host))
            self._judge_topics(host)
        for group in self._cluster.plan.groups:
            self._judge_order(group)
        self._judge_transactions()
        self._judge_copies()
        self._judge_kept()
        self._judge_delays()
        if self._checks.logical is not None:
            self._checks.logical.judge(self.records)

    def judge_safety(self) -> None:
        """Check what holds even if faults exceed what the groups tolerate: damage was not copied to other members.

        Raises:
            Violation: I10.
        """
        for host in self._cluster.hosts:
            if host.broker is not None and not host.harms_us and not host.losses_us:
                start, segment = host.broker.store.log.start, host.config.segment_bytes
                data = read_log(host.machine.disk, start, host.broker.store.log.written_end, segment)
                _, damage = self._walk(data, start, segment)
                if damage is not None:
                    raise Violation("I10", f"{host.name} has damage that no fault injected at {damage}")

    def _judge_refused(self) -> None:
        for checks in (self.access, self.limits):
            if checks is not None:
                checks.judge(self.records)

    def _judge_places(self, host: Host) -> None:
        for found in self.records(host):
            record = found.record
            if found.key:
                place = QueuePlace(host.group.name, found.topic, record.queue_id, record.queue_offset)
                self._checks.note(place, found.key, record.log_offset, host.name)

    def _judge_replicas(self, group: GroupPlan) -> None:
        master, *slaves = self._cluster.members(group)
        assert master.broker is not None, "it runs"
        end = master.broker.store.log.written_end
        for slave in slaves:
            assert slave.broker is not None, "it runs"
            start = max(master.broker.store.log.start, slave.broker.store.log.start)
            ours = read_log(master.machine.disk, start, end, master.config.segment_bytes)
            theirs = read_log(slave.machine.disk, start, end, slave.config.segment_bytes)
            if self._world.faults["flip-in-flight"] or master.flips or slave.flips:
                # Filler at the end of a file may be anything, so a flipped bit there goes unnoticed.
                ours, theirs = (without_filler(data, start, master.config.segment_bytes) for data in (ours, theirs))
            if ours != theirs:
                index = next(
                    (index for index, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(theirs)
                )
                raise Violation("I8", f"{slave.name} differs from its master at {start + index}")

    def _judge_topics(self, host: Host) -> None:
        assert host.broker is not None, "it runs"
        known = {
            *TOPICS,
            *((STATIC_TOPIC,) if self._checks.logical is not None else ()),
            *((GUARDED_TOPIC,) if self.access is not None else ()),
            *(_LIMITED_TOPICS if self.limits is not None else ()),
            *(f"{prefix}{group}" for prefix in (RETRY_PREFIX, DLQ_PREFIX) for group in self._consumer_groups),
            *(pop_retry_topic(POP_GROUP, topic, TopicKind.RETRY_V1) for topic in TOPICS),
        }
        fresh = {name for name in host.broker.topics.table if name not in known and not name.startswith(CYCLE_PREFIX)}
        system = {
            "SELF_TEST_TOPIC",
            "TBW102",
            "BenchmarkTest",
            host.config.cluster,
            host.group.name,
            "OFFSET_MOVED_EVENT",
            SCHEDULE_TOPIC,
            f"{host.config.cluster}_REPLY_TOPIC",
            "RMQ_SYS_TRANS_HALF_TOPIC",
            OP_HALF_TOPIC,
            CHECK_MAX_TIME_TOPIC,
            TIMER_TOPIC,
            TIMER_DONE_TOPIC,
            revive_topic(host.config.cluster),
        }
        if fresh - system:
            raise Violation("I16", f"{host.name} has topics that were not requested: {sorted(fresh - system)}")

    # Messages.

    def _judge_copies(self) -> None:
        for group in self._cluster.plan.groups:
            master = self._cluster.master(group)
            counts: Counter[str] = Counter()
            for found in self._messages_of(master):
                message = self._expected.messages.get(found.key)
                if message is None or found.body != message.body:
                    raise Violation("I2", f"{master.name} holds a message that was not sent: {found.record}")
                stored_in = message.topic if message.is_half else message.first_topic
                if found.topic == stored_in and not (is_rolled(found) or is_sent_back(found)):
                    counts[found.key] += 1
            failed = any(
                kind.startswith(("failing", "disk-full", "killed-at", "power-lost-at")) for kind in self._world.faults
            )
            for key, count in counts.items():
                attempts = [a for a in self._expected.messages[key].attempts if a.group == group.name]
                possible = [a for a in attempts if a.is_stored or a.code is None or failed]
                if count > len(attempts):
                    raise Violation("I3", f"{group.name} holds {key} {count} times, it was sent {len(attempts)} times")
                if count > len(possible):
                    raise Violation(
                        "I17",
                        f"{group.name} holds {key} {count} times, and refused it {len(attempts) - len(possible)} times",
                    )

    def _judge_kept(self) -> None:
        where: dict[tuple[str, str], set[int]] = {}
        starts: dict[str, int] = {}
        for group in self._cluster.plan.groups:
            master = self._cluster.master(group)
            assert master.broker is not None, "it runs"
            starts[group.name] = self._start(master)
            for found in self.records(master):
                where.setdefault((group.name, found.key), set()).add(found.record.log_offset)
        for attempt in self._expected.attempts:
            if attempt.is_stored:
                for message, log_offset in zip(attempt.messages, attempt.log_offsets, strict=True):
                    if log_offset >= starts[attempt.group] and log_offset not in where.get(
                        (attempt.group, message.key), ()
                    ):
                        self._lost(attempt, message, log_offset)
        self._judge_commits(starts)

    def _judge_commits(self, starts: dict[str, int]) -> None:
        """Check that messages are there whose commit a broker confirmed."""
        for group in self._cluster.plan.groups:
            master = self._cluster.master(group)
            there = {found.key for found in self.records(master) if found.topic in TOPICS}
            for attempt in self._expected.confirmed_commits:
                if attempt.group == group.name and not starts[group.name] and attempt.messages[0].key not in there:
                    self._lost(attempt, attempt.messages[0], -1)

    def _lost(self, attempt: Attempt, message: SentMessage, log_offset: int) -> None:
        group = next(group for group in self._cluster.plan.groups if group.name == attempt.group)
        master, *slaves = self._cluster.members(group)
        if master.flips or any(slave.flips for slave in slaves):
            return
        lost_since = [host for host in (master, *slaves) if any(when >= attempt.sent_us for when in host.losses_us)]
        flushed = says_flushed(attempt, master)
        copied = group.role == "SYNC_MASTER" and attempt.waits and attempt.code == 0
        wiped = {host.name for host in (master, *slaves) if any(when >= attempt.sent_us for when in host.wipes_us)}
        master_lost = master in lost_since and not (flushed and master.name not in wiped)
        slaves_lost = [
            slave
            for slave in slaves
            if slave in lost_since and not (flushed and attempt.code == 0 and slave.name not in wiped)
        ]
        if not master_lost or (copied and len(slaves_lost) < group.copies - 1):
            raise Violation(
                "I1",
                f"{message.key} was answered {attempt.code} at {log_offset} of {group.name} ({group.level}) at "
                f"{attempt.answered_us / SECOND:.3f} s, and is not there",
            )

    def _judge_order(self, group: GroupPlan) -> None:
        previous: dict[tuple[tuple[str, int], str, int], int] = {}
        queues: dict[tuple[str, int], list[Attempt]] = {}
        for attempt in self._expected.attempts:
            first = attempt.messages[0]
            if attempt.group != group.name or attempt.queue_offset < 0 or first.is_late or first.is_half:
                continue
            place = (attempt.link, first.topic, attempt.queue_id)
            if attempt.queue_offset <= previous.get(place, -1):
                raise Violation("I4", f"{group.name} {place}: {attempt.queue_offset} after {previous[place]}")
            previous[place] = attempt.queue_offset
            queues.setdefault((first.topic, attempt.queue_id), []).append(attempt)
        if any(host.losses_us for host in self._cluster.members(group)):
            return
        for name, attempts in queues.items():
            by_answer = sorted(attempts, key=lambda attempt: attempt.answered_us)
            highest, index = -1, 0
            for attempt in attempts:
                while index < len(by_answer) and by_answer[index].answered_us < attempt.sent_us:
                    highest = max(highest, by_answer[index].queue_offset)
                    index += 1
                if attempt.queue_offset <= highest:
                    raise Violation(
                        "I4", f"{group.name} {name}: {attempt.queue_offset} was sent after {highest} was answered"
                    )

    def _judge_delays(self) -> None:
        first: dict[tuple[str, str], int] = {}
        for given in self._expected.given:
            if given.topic in TOPICS:
                first.setdefault((given.group, given.key), given.at_us)
        for (name, key), at_us in first.items():
            message = self._expected.messages[key]
            if message.is_late:
                group = next(group for group in self._cluster.plan.groups if group.name == name)
                sent_us = min(attempt.sent_us for attempt in message.attempts if attempt.group == name)
                jumps = self._cluster.master(group).machine.jumps
                ahead = sum(max(0, ms) * MS for when, ms in jumps if sent_us <= when <= at_us)
                delay = message.timer_ms * MS or DELAYS_US[message.delay_level - 1]
                if at_us - sent_us + ahead < delay - 2 * MS:
                    raise Violation(
                        "I12", f"{key} came after {(at_us - sent_us) / SECOND:.3f} s of {delay / SECOND:.3f} s"
                    )
        self._judge_visible()
        for group in self._cluster.plan.groups:
            self._judge_timed(self._cluster.master(group))

    def _judge_visible(self) -> None:
        for group in self._cluster.plan.groups:
            master = self._cluster.master(group)
            stored: Counter[str] = Counter()
            visible: Counter[str] = Counter()
            for found in self._messages_of(master):
                message = self._expected.messages.get(found.key)
                if message is not None and message.delay_level and not is_sent_back(found):
                    (stored if found.topic == SCHEDULE_TOPIC else visible)[found.key] += found.topic in (
                        SCHEDULE_TOPIC,
                        *TOPICS,
                    )
            assert master.broker is not None, "it runs"
            is_whole = master.broker.store.log.start == 0
            quiet = is_whole and not (master.kills or master.losses_us or master.flips)
            for key, count in stored.items():
                if visible[key] < count and not master.losses_us and not master.flips:
                    raise Violation(
                        "I12", f"{group.name}: {key} was stored {count} times and came {visible[key]} times"
                    )
                self._expected.duplicates += max(0, visible[key] - count)
                if visible[key] > count and quiet:
                    raise Violation(
                        "I12", f"{group.name}: {key} was stored {count} times and came {visible[key]} times"
                    )

    def _judge_timed(self, master: Host) -> None:
        """Check in the log that each timed message was delivered as often as stored, after the time in its record.

        One that was recalled is not delivered after its recall. Unlike delay levels, timed messages are not repeated
        after kills and losses: the log says what is over.
        """
        assert master.broker is not None, "it runs"
        stored: Counter[_TimedKey] = Counter()
        visible: Counter[_TimedKey] = Counter()
        recalled: dict[_TimedKey, int] = {}
        for found in self.records(master):
            message = self._expected.messages.get(found.key)
            if message is None or not message.timer_ms or found.topic not in (TIMER_TOPIC, *TOPICS):
                continue
            out_ms = int(property_value(found.record.properties, b"TIMER_OUT_MS") or 0)
            timed = _TimedKey(found.key, out_ms)
            if is_recall(found):
                recalled.setdefault(timed, found.record.log_offset)
            elif found.topic == TIMER_TOPIC:
                stored[timed] += not is_rolled(found)
            else:
                visible[timed] += 1
                if found.record.store_ms < out_ms + PRECISION_MS:
                    raise Violation(
                        "I12", f"{master.name}: {found.key} of {out_ms} was delivered at {found.record.store_ms}"
                    )
                if found.record.log_offset > recalled.get(timed, found.record.log_offset):
                    raise Violation("I12", f"{master.name}: {found.key} of {out_ms} was delivered after its recall")
        if master.flips:
            return
        is_whole = master.broker.store.log.start == 0
        wall_ms = master.machine.now().wall_ms
        for timed in stored | visible:
            is_missing = visible[timed] < stored[timed] and timed not in recalled and timed.out_ms < wall_ms
            if is_missing or (visible[timed] > stored[timed] and is_whole):
                raise Violation(
                    "I12",
                    f"{master.name}: {timed} was stored {stored[timed]} times and delivered {visible[timed]} times",
                )
        self._judge_recalls(master, recalled)

    def _judge_recalls(self, master: Host, recalled: Mapping["_TimedKey", int]) -> None:
        """Check that the log has the recalls that were confirmed."""
        assert master.broker is not None, "it runs"
        if master.losses_us or master.broker.store.log.start > 0 or not self._has_one_master:
            return
        for recall in self._expected.recalls:
            if recall.group == master.group.name and _TimedKey(recall.key, recall.out_ms) not in recalled:
                raise Violation("I1", f"{master.name} has not the recall of {recall.key} that it confirmed")

    def _messages_of(self, host: Host) -> Iterator[LoggedMessage]:
        """Yield the records of messages, without the broker's own records of ended, recalled and popped messages."""
        own = (OP_HALF_TOPIC, TIMER_DONE_TOPIC, DELETION_TOPIC)
        return (
            found
            for found in self.records(host)
            if found.topic not in own and not is_recall(found) and not is_of_pops(found)
        )


def is_rolled(found: LoggedMessage) -> bool:
    """Return whether a record is a waiting message that the broker stored again."""
    return found.topic == TIMER_TOPIC and property_value(found.record.properties, b"TIMER_ROLL_TIMES") is not None


def is_sent_back(found: LoggedMessage) -> bool:
    """Return whether a record is a message that a consumer sent back, perhaps with a delay."""
    return property_value(found.record.properties, b"ORIGIN_MESSAGE_ID") is not None


def is_recall(found: LoggedMessage) -> bool:
    """Return whether a record is a request not to deliver a timed message."""
    return found.topic == TIMER_TOPIC and property_value(found.record.properties, b"TIMER_DEL_UNIQKEY") is not None


def is_of_pops(found: LoggedMessage) -> bool:
    """Return whether a record says what was popped or acknowledged, now or once it is due."""
    topic = property_value(found.record.properties, b"REAL_TOPIC") if found.topic == TIMER_TOPIC else None
    return (topic or found.topic.encode()).startswith(REVIVE_TOPIC_PREFIX.encode())
