"""Checks at the end of a run of groups with a registry.

settled   I14  every group has an active master, all members are in sync, consumers have everything
I1 I5     every claim of durability holds in the master's log; all logs agree on every place
I2 I3     no log holds a message that was not sent, or was sent less often
I12       timed messages arrived once and not early, recalled ones not after their recall
I8 I9     replicas are identical byte for byte; queues and index equal a rebuild from the log
"""

from collections import Counter

from lab.sim.checkers.derived import judge_derived
from lab.sim.checkers.final import FinalChecks, is_rolled, is_sent_back
from lab.sim.checkers.groups import GroupChecks
from lab.sim.checkers.model import TOPICS, ExpectedState
from lab.sim.world.cluster import Host
from lab.sim.world.groups import GroupCluster, mode_of, stage_of, state_of
from lab.sim.world.plan import GroupPlan
from lab.sim.world.world import Violation, World
from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.registry.records import NOBODY, GroupMode, Mode


class GroupFinalChecks(FinalChecks):
    """The checks at the end of one run."""

    def __init__(
        self, world: World, cluster: GroupCluster, expected: ExpectedState, checks: GroupChecks, groups: tuple[str, ...]
    ) -> None:
        """`groups`: the consumer groups."""
        super().__init__(world, cluster, expected, checks, groups)
        self._group_checks = checks
        self._groups = cluster
        self._has_one_master = False

    def describe(self, group: GroupPlan) -> str:
        """Return the state of a group's members as text."""
        return "; ".join(self._describe_host(host) for host in self._cluster.members(group))

    def _describe_host(self, host: Host) -> str:
        broker, state = host.broker, state_of(host)
        if broker is None:
            return f"{host.name} is down"
        if broker.failover is None:
            return f"{host.name} static, refuses: {broker.puts.refusal}"
        member = broker.failover.member
        return (
            f"{host.name} {member.stage.value} epoch {broker.failover.epoch} log {broker.store.log.written_end}"
            f" whole {member.is_log_whole}: {member.why}; refuses {broker.puts.refusal}; {state}"
        )

    def _unsettled_group(self, group: GroupPlan) -> str:
        leader = self._groups.leader(group)
        if leader is None:
            return f"{group.name} has no master: {self.describe(group)}"
        state = state_of(leader)
        if mode_of(group) is not Mode.STATIC:
            if state is None or stage_of(leader) is not MemberStage.SERVING or state.mode is not GroupMode.NORMAL:
                return f"{group.name} is not as it should be: {self.describe(group)}"
            if len(state.in_sync) != group.slaves + 1:
                return f"{group.name} has {state.in_sync} in sync: {self.describe(group)}"
            if (successor := self._group_checks.configurations.successor(leader)) != NOBODY:
                return f"{group.name} is configured with master {successor}: {self.describe(group)}"
        return super()._unsettled_group(group)

    def _undeleted(self, group: GroupPlan) -> str:
        is_loss_accepted = group.name in self._group_checks.accepted_us
        return "" if is_loss_accepted else super()._undeleted(group)

    def _undelivered(self) -> str:
        for consumer_group in self._consumer_groups:
            given = self._expected.delivered_keys[consumer_group]
            for group in self._cluster.plan.groups:
                members = self._cluster.members(group)
                if any(host.losses_us for host in members):
                    continue
                # Consumers were sent past what a full disk took from a former master.
                kept = max(host.broker.store.log.start for host in members if host.broker is not None)
                passed = self._group_checks.lost_ends(group.name)
                for found in self.records(members[0]):
                    is_wanted = found.topic in ("Orders", "Late") and found.record.log_offset >= kept
                    if found.record.queue_offset < passed.get((found.topic, found.record.queue_id), 0):
                        continue
                    if is_wanted and found.key not in given and not self._is_out_of_reach(members[0], found):
                        where = f"{group.name} {found.topic}/{found.record.queue_id}@{found.record.queue_offset}"
                        return f"{consumer_group} did not get {where}"
        return ""

    def _unfinished(self) -> str:
        return ""  # I13 is checked with fixed roles

    def judge(self) -> None:
        """Raise the first violation, if there is one."""
        self._judge_refused()
        for group in self._cluster.plan.groups:
            leader = self._cluster.members(group)[0]
            if mode_of(group) is Mode.ELECT:
                self._group_checks.judge_log(leader, "has it in the end")
        for group in self._cluster.plan.groups:
            self._judge_replicas(group)
        self._judge_transactions()
        for host in self._cluster.hosts:
            self._judge_places(host)
            judge_derived(host, self.records(host), self._start(host))
            self._judge_topics(host)
        for group in self._cluster.plan.groups:
            self._judge_sent(self._cluster.members(group)[0])
            self._judge_confirmed(self._cluster.members(group)[0])
            self._judge_timed(self._cluster.members(group)[0])
            if mode_of(group) is not Mode.ELECT:
                self._group_checks.judge_log(self._cluster.members(group)[0], "has it in the end")
        if self._checks.logical is not None:
            self._checks.logical.judge(self.records)

    def _judge_confirmed(self, host: Host) -> None:
        """Check that messages are there whose commit was confirmed."""
        if self._start(host):
            return
        there = {found.key for found in self.records(host) if found.topic in TOPICS}
        for attempt in self._expected.confirmed_commits:
            key = attempt.messages[0].key
            if attempt.group == host.group.name and key not in there:
                claim = self._group_checks.commit_claims.get((host.group.name, key))
                if not self._group_checks.is_excused(host, claim):
                    raise Violation("I1", f"{host.name} confirmed the commit of {key}, and does not have it: {claim}")

    def _judge_sent(self, host: Host) -> None:
        counts: Counter[str] = Counter()
        for found in self._messages_of(host):
            message = self._expected.messages.get(found.key)
            if message is None or found.body != message.body:
                raise Violation("I2", f"{host.name} holds a message that was not sent: {found.record}")
            stored_in = message.topic if message.is_half else message.first_topic
            if found.topic == stored_in and not (is_rolled(found) or is_sent_back(found)):
                counts[found.key] += 1
        for key, count in counts.items():
            sent = sum(attempt.group == host.group.name for attempt in self._expected.messages[key].attempts)
            if count > sent:
                raise Violation("I3", f"{host.name} holds {key} {count} times, it was sent {sent} times")
