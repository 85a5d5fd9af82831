"""Mutations of groups with a registry.

Some seed from `simulation.GROUP_SEEDS` on must fail under each. The mutations of a member's own rules run in
tests/unit/coordination too; here whole brokers run with them.
"""

# ruff: noqa: ARG005  # a replacement has the signature of what it replaces
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from msgspec import structs

from tandemq.boundary import Turn
from tandemq.broker.features.pulls import processor as pull
from tandemq.broker.features.pulls import queue_entries, slave_reads
from tandemq.broker.ha import lost_tail
from tandemq.broker.ha import master as masterside
from tandemq.broker.ha import service as replicate
from tandemq.broker.ha import slave as slaveside
from tandemq.broker.kernel import acknowledgements, shared_tables
from tandemq.broker.kernel.role import HeartbeatReceived
from tandemq.broker.kernel.serving import NO_LIMIT, OldReads, Serving
from tandemq.broker.roles import old_reads, registry_role
from tandemq.broker.roles.offset_handover import OffsetHandover
from tandemq.broker.state import consumer_offsets as offsets
from tandemq.client.core import availability, routes
from tandemq.client.producer import fault_strategy as targets
from tandemq.codec.record.entries import QUEUE_ENTRY_BYTES
from tandemq.coordination import in_sync as insync
from tandemq.coordination import lease
from tandemq.coordination.member import facts, handover, held_lease, service, takeover
from tandemq.coordination.permission import granted_permission
from tandemq.coordination.registry import view
from tandemq.coordination.registry.records import BrokerPermission, GroupMode, GroupState
from tandemq.replication import master
from tests.mutations.access import ACCESS_GROUP_MUTATIONS, LIMIT_GROUP_MUTATIONS
from tests.mutations.patch import Mutation, both, patched
from tests.mutations.static_topics import STATIC_TOPIC_GROUP_MUTATIONS
from tests.mutations.transactions import TRANSACTION_GROUP_MUTATIONS


@contextmanager
def _always(owner: type, name: str, value: object) -> Iterator[None]:
    """Make an attribute constant for all instances, whatever is assigned to it."""
    setattr(owner, name, property(lambda self: value, lambda self, _: None))
    try:
        yield
    finally:
        delattr(owner, name)


def _serving(changes: Callable[[Serving], dict[str, object]]) -> AbstractContextManager[Any]:
    """Change what the role says."""
    decide = registry_role.RegistryRole.serving

    def serving(self: registry_role.RegistryRole, now: Any) -> Serving:
        decided = decide(self, now)
        return structs.replace(decided, **changes(decided))

    return patched(registry_role.RegistryRole, "serving", serving)


def epoch_not_begun() -> AbstractContextManager[Any]:
    """A new master does not record where its epoch begins."""

    original = replicate.Replication.lead

    def lead(self: replicate.Replication, now: Any, *, epoch: int, **facts: Any) -> None:
        original(self, now, epoch=0 if self.generations else epoch, **facts)

    return patched(replicate.Replication, "lead", lead)


def damage_not_awaited() -> AbstractContextManager[Any]:
    """A master takes messages while damage that its start found waits for its repair."""
    return patched(lost_tail.LostTail, "_await_repair", lambda self: None)


def older_record_taken() -> AbstractContextManager[Any]:
    """A member follows the registry's record although it has seen a newer one."""
    return patched(view, "continues", lambda state, seen: True)


def tail_not_cut() -> AbstractContextManager[Any]:
    """A slave keeps what its master asks it to truncate."""

    def keep(self: slaveside.SlaveSide, hello: Any, turn: Turn, now: Any) -> bool:
        self._generations.set(hello.generations)
        return True

    return patched(slaveside.SlaveSide, "_welcomed", keep)


def promise_always() -> AbstractContextManager[Any]:
    """Heartbeats are echoed by a member that is about to take over."""
    take = registry_role.RegistryRole.report

    def echo(self: registry_role.RegistryRole, report: Any, now: Any) -> int:
        number = take(self, report, now)
        return report.heartbeat.number if isinstance(report, HeartbeatReceived) else number

    return patched(registry_role.RegistryRole, "report", echo)


def unsafe_is_shown() -> AbstractContextManager[Any]:
    """Consumers receive messages that are not on every member in sync."""
    return _serving(lambda serving: {"visible_end": NO_LIMIT})


def unsafe_entries_are_shown() -> AbstractContextManager[Any]:
    """Queue entries include those of messages that are not on every member in sync."""
    read = queue_entries.QueueEntryReads._on_entries

    def show(self: queue_entries.QueueEntryReads, *arguments: Any) -> Any:
        with patched(type(self._pulls), "visible_end", lambda _, queue: queue.max_offset):
            return read(self, *arguments)

    return patched(queue_entries.QueueEntryReads, "_on_entries", show)


def entries_of_other_places() -> AbstractContextManager[Any]:
    """Queue entries are those of the places behind the requested ones."""
    read = queue_entries.QueueEntryReads._on_entries

    def shift(self: queue_entries.QueueEntryReads, *arguments: Any) -> Any:
        answer = read(self, *arguments)
        if answer is not None and len(answer.body) > QUEUE_ENTRY_BYTES:
            answer.body = answer.body[QUEUE_ENTRY_BYTES:]
        return answer

    return patched(queue_entries.QueueEntryReads, "_on_entries", shift)


def ack_alone() -> AbstractContextManager[Any]:
    """A message is acknowledged when only the master has it."""
    return _serving(lambda serving: {"copied_to": NO_LIMIT})


def ack_when_copies_leave() -> AbstractContextManager[Any]:
    """A waiting send is acknowledged when the members it waited for have left."""
    copies = registry_role.RegistryRole._copies

    def ends(self: registry_role.RegistryRole) -> Any:
        code, copied_to = copies(self)
        return code, self.confirm_offset if self.is_elect else copied_to

    return patched(registry_role.RegistryRole, "_copies", ends)


def sent_counts_as_copied() -> AbstractContextManager[Any]:
    """Bytes sent to a slave count as reported by it."""
    reported = masterside.MasterSide._reported

    def ahead(self: Any, link: int, session: master.MasterSession, _acked: int, number: int, now: Any) -> None:
        reported(self, link, session, self._store.log.written_end, number, now)

    return patched(masterside.MasterSide, "_reported", ahead)


def slave_reports_unsynced() -> AbstractContextManager[Any]:
    """A slave with SYNC_FLUSH reports bytes that are not on its device."""
    return patched(slaveside.SlaveSide, "_safe_end", lambda self: self._store.log.written_end)


def copies_not_merged() -> AbstractContextManager[Any]:
    """A master takes reading back without the offsets that the reader had copied to the registry."""

    def merge(self: Any, copied: Any, member: Any, now: Any) -> None:
        member.on_merged(copied, now, is_saved=True)

    return patched(OffsetHandover, "merge", merge)


def hand_over_not_merged() -> AbstractContextManager[Any]:
    """Offsets of a handover are acknowledged and dropped."""
    return both(
        patched(offsets.ConsumerOffsets, "merge_positions", lambda self, raw: None),
        patched(shared_tables.OffsetsTable, "take", lambda self, table, payload: None),
    )


def offsets_replaced() -> AbstractContextManager[Any]:
    """Offsets of a handover replace all others, higher or not, and are one too low."""

    def merge(self: offsets.ConsumerOffsets, raw: Any) -> None:
        for key, queues in offsets.parse_offsets(raw).items():
            self.table[key] = {queue_id: max(0, offset - 1) for queue_id, offset in queues.items()}
        self._dirty = True

    return patched(offsets.ConsumerOffsets, "merge_positions", merge)


def refused_pulls_served() -> AbstractContextManager[Any]:
    """A member without permission answers pulls."""
    return _serving(lambda serving: {"read": None})


def refused_sends_served() -> AbstractContextManager[Any]:
    """A member without permission accepts messages."""
    return _serving(lambda serving: {"sends": None})


def refused_commits_served() -> AbstractContextManager[Any]:
    """A member without permission accepts commits."""
    return patched(Serving, "refusal", lambda self, code: None)


def held_pulls_kept() -> AbstractContextManager[Any]:
    """Held pulls stay held when the permission to be read ends, and are answered with messages."""

    def blind(name: str) -> AbstractContextManager[Any]:
        original = getattr(pull.PullPath, name)

        def serve(self: pull.PullPath, *arguments: Any) -> Any:
            turn = self._turn
            serving, turn.serving = turn.serving, structs.replace(turn.serving, read=None)
            try:
                return original(self, *arguments)
            finally:
                turn.serving = serving

        return patched(pull.PullPath, name, serve)

    return both(
        patched(pull.PullPath, "_refuse", lambda self, why, turn: None),
        *(blind(name) for name in ("begin_turn", "waiting_ms", "answer_woken", "run_due")),
    )


def loss_forgotten() -> AbstractContextManager[Any]:
    """A member that lost part of its log becomes the leader."""
    return _always(facts.LogState, "is_whole", True)


def lease_for_ever() -> AbstractContextManager[Any]:
    """A lease never ends."""
    return patched(held_lease.HeldLease, "until_ms", lambda self: lease.FOREVER)


def never_gives_back() -> AbstractContextManager[Any]:
    """A slave that reads for its master does not hand reading over when the master is back."""
    return patched(handover.Handover, "_may_return_reading", lambda self, now: False)


def waiting_is_stored() -> AbstractContextManager[Any]:
    """A former master acknowledges the sends that wait for slaves."""

    def tell(self: acknowledgements.Acknowledgements, _error: Exception, turn: Turn) -> None:
        for link, answers in self.waiters.take_all():
            turn.send(link, answers)

    return patched(acknowledgements.Acknowledgements, "drop", tell)


def permission_not_looked_up() -> AbstractContextManager[Any]:
    """The active member has every permission, whatever is configured."""

    def full(_configured: BrokerPermission, broker_id: int, state: Any) -> BrokerPermission:
        return granted_permission(BrokerPermission.FULL, broker_id, state)

    return patched(service, "granted_permission", full)


def taken_out_serves() -> AbstractContextManager[Any]:
    """A member that the configuration no longer names goes on serving."""
    own_of = facts.Membership.own_of

    def keep(self: facts.Membership, broker_id: int) -> Any:
        found = own_of(self, broker_id)
        if broker_id != self.id:
            return found
        kept = self.__dict__["once"] = found or self.__dict__.get("once")
        return kept

    return patched(facts.Membership, "own_of", keep)


def taken_out_stays_in_sync() -> AbstractContextManager[Any]:
    """A member that the configuration no longer names stays in sync."""
    original = insync.InSync.next_members

    def keep(self: insync.InSync, now_ms: int, peers: Any, *, candidates: Any, **rest: Any) -> Any:
        return original(self, now_ms, peers, candidates={*candidates, *self.decided}, **rest)

    return patched(insync.InSync, "next_members", keep)


def taken_out_counts() -> AbstractContextManager[Any]:
    """The replica of a slave that the configuration no longer names counts."""
    return patched(masterside.MasterSide, "_is_member", lambda self, session: True)


def anybody_is_elected() -> AbstractContextManager[Any]:
    """A member takes over without permission to be written, or reads for a master without permission to be read."""
    eligible = takeover.Takeover._is_eligible

    def may(self: takeover.Takeover, state: Any, holder: int, now: Any) -> bool:
        with patched(self._facts.membership, "permission_of", lambda _: BrokerPermission.FULL):
            return eligible(self, state, holder, now)

    return patched(takeover.Takeover, "_is_eligible", may)


def switch_goes_on() -> AbstractContextManager[Any]:
    """A switch goes on when its target may no longer become master."""
    return patched(handover.Handover, "_is_forbidden", lambda self, progress: False)


def too_few_are_enough() -> AbstractContextManager[Any]:
    """Messages are accepted with too few members in sync."""
    return patched(registry_role.RegistryRole, "_too_few", lambda self: None)


def refusal_never_forgotten() -> AbstractContextManager[Any]:
    """The real client never retries a broker that refused once."""
    return both(
        patched(availability.BrokerAvailability, "mark_active", lambda self, address, now: None),
        patched(availability.BrokerAvailability, "_check_later", lambda self, doubt, now: None),
    )


def master_not_looked_for() -> AbstractContextManager[Any]:
    """The real client sends to the master it knows, and looks for another only at the regular poll of routes."""

    def known(self: targets.MQFaultStrategy, broker_name: str, *_: Any) -> list[str]:
        master = self._routes.group(broker_name).members.get(routes.MASTER_ID)
        return [] if master is None else [master]

    return both(
        patched(targets.MQFaultStrategy, "_may_become_master", known),
        patched(targets.MQFaultStrategy, "_best", lambda self, name, *_: next(iter(known(self, name)), None)),
        patched(routes.Routes, "refresh", lambda self, topic, now: None),
        patched(routes.Routes, "_search", lambda self, now: None),
    )


ANY = frozenset({"I1", "I19", "I5", "I6", "I17", "I8", "I9", "I10", "I14", "I16", "I4", "I2"})
SAFE = frozenset({"I1", "I5", "I17", "I19", "I8", "I14", "I4"})


def last_slave_leaves() -> AbstractContextManager[Any]:
    """The only slave that could serve reads leaves the in-sync set when it is disconnected."""
    return patched(insync.InSync, "_is_last", lambda *_: False)


def stale_slave_reads() -> AbstractContextManager[Any]:
    """A slave takes over reading although another one is fresher, and it has left the in-sync set."""

    def may_take_reading(state: GroupState, broker_id: int, *_: Any) -> bool:
        return state.mode is GroupMode.NORMAL and broker_id != state.master

    return patched(takeover, "may_take_reading", may_take_reading)


def configured_master_waits() -> AbstractContextManager[Any]:
    """A master that is not the configured one stays master after its start."""
    return patched(handover.Handover, "_own_targets", lambda *_: ([], ""))


def slave_consume_does_not_wait() -> AbstractContextManager[Any]:
    """Messages of a slave-consume group wait for no slave, whatever the settings say."""
    return patched(registry_role.RegistryRole, "waits_for_replicas", property(lambda self: self.is_elect))


def slave_delivers_new_messages() -> AbstractContextManager[Any]:
    """A slave that does not serve reads answers pulls of new messages, as far as no failover takes them back."""
    return patched(slave_reads.SlaveReads, "may_answer", lambda *_: True)


def stale_slave_helps() -> AbstractContextManager[Any]:
    """A slave delivers old messages although it is not in sync, or while another one serves reads."""

    original = old_reads.old_reads

    def anyone(member: Any, replication: Any) -> OldReads:
        state = member.view.state
        is_slave = state is not None and state.master != member.id
        return original(member, replication)._replace(helps=is_slave)

    return patched(registry_role, "old_reads", anyone)


GROUP_MUTATIONS: dict[str, Mutation] = {
    "damage-not-awaited": Mutation(damage_not_awaited, frozenset({"I5", "I9"})),
    "epoch-not-begun": Mutation(epoch_not_begun, ANY),
    "older-record-taken": Mutation(older_record_taken, frozenset({"I1"})),
    "tail-not-cut": Mutation(tail_not_cut, ANY),
    "promise-always": Mutation(promise_always, frozenset({"I6"})),
    "unsafe-is-shown": Mutation(unsafe_is_shown, frozenset({"I19"})),
    "unsafe-entries-are-shown": Mutation(unsafe_entries_are_shown, frozenset({"I19"})),
    "entries-of-other-places": Mutation(entries_of_other_places, frozenset({"I4"})),
    "ack-alone": Mutation(ack_alone, SAFE),
    "ack-when-copies-leave": Mutation(ack_when_copies_leave, frozenset({"I17"})),
    "sent-counts-as-copied": Mutation(sent_counts_as_copied, SAFE),
    "slave-reports-unsynced": Mutation(slave_reports_unsynced, SAFE),
    "hand-over-not-merged": Mutation(hand_over_not_merged, frozenset({"I7"})),
    "copies-not-merged": Mutation(copies_not_merged, frozenset({"I7"})),
    "offsets-replaced": Mutation(offsets_replaced, frozenset({"I7"})),
    "refused-pulls-served": Mutation(refused_pulls_served, frozenset({"I6"})),
    "refused-sends-served": Mutation(refused_sends_served, frozenset({"I6"})),
    "refused-commits-served": Mutation(refused_commits_served, frozenset({"I6"})),
    "held-pulls-kept": Mutation(held_pulls_kept, frozenset({"I6"})),
    "loss-forgotten": Mutation(loss_forgotten, SAFE),
    "lease-for-ever": Mutation(lease_for_ever, frozenset({"I6"})),
    "waiting-is-stored": Mutation(waiting_is_stored, frozenset({"I1", "I17"})),
    "never-gives-back": Mutation(never_gives_back, frozenset({"I14"})),
    "permission-not-looked-up": Mutation(permission_not_looked_up, frozenset({"I6"})),
    "taken-out-serves": Mutation(taken_out_serves, frozenset({"I6"})),
    "taken-out-stays-in-sync": Mutation(taken_out_stays_in_sync, frozenset({"I14", "I17"})),
    "taken-out-counts": Mutation(taken_out_counts, frozenset({"I17"})),
    "anybody-is-elected": Mutation(anybody_is_elected, frozenset({"I6"})),
    "switch-goes-on": Mutation(switch_goes_on, frozenset({"I6"})),
    "too-few-are-enough": Mutation(too_few_are_enough, frozenset({"I17"})),
    "refusal-never-forgotten": Mutation(refusal_never_forgotten, frozenset({"I14"})),
    "last-slave-leaves": Mutation(last_slave_leaves, frozenset({"I6"})),
    "stale-slave-reads": Mutation(stale_slave_reads, frozenset({"I6"})),
    "configured-master-waits": Mutation(configured_master_waits, frozenset({"I14"})),
    "slave-consume-does-not-wait": Mutation(slave_consume_does_not_wait, frozenset({"I17", "I1"})),
    "slave-delivers-new-messages": Mutation(slave_delivers_new_messages, frozenset({"I6"})),
    "stale-slave-helps": Mutation(stale_slave_helps, frozenset({"I6"})),
    "master-not-looked-for": Mutation(master_not_looked_for, frozenset({"I14"})),
    **TRANSACTION_GROUP_MUTATIONS,
    **STATIC_TOPIC_GROUP_MUTATIONS,
    **ACCESS_GROUP_MUTATIONS,
    **LIMIT_GROUP_MUTATIONS,
}
"""Mutations by name."""
