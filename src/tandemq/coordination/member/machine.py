"""One broker as a member of its group: the state machine of serving, takeover and handover.

    registry responses, events ─► receive ─┐
    connections, reports, heartbeats ─► on_… ──► MemberMachine ─► next_effects: RegistryRequest, BecomeMaster, …
    operator: switch, force_master ────────┘          └─────────► may_read, may_write, may_commit (when answering)

Every input ends with one round of decisions, in a fixed order:

    RecordFollower    the stage that the record gives this member        Founding    a missing record
    OlderRecord       an older copy of the record
    Takeover          a failed holder                                    Handover    orderly handovers
    OffsetCopies      offsets of a reader, for the case that it does not return
    RecordProposals   claims and in-sync changes                         RecordFollower.assign_role
    ServiceState      what clients may do until when

Rules from which all others follow:

1. A member that serves holds a lease, and checks the clock when it answers.
2. A permission is gained by an own write of the record, never by reading it; also after a restart, after a new session,
   and after a handover that was given up. Any older write in flight then fails.
3. A member with a write in flight that could make it the holder grants no lease.

Owner: the broker's `RegistryRole`. Drive it with every event, then take `next_effects`; call `tick` by `deadline_ms`.
Source: docs/internals/failover.md; requirements F09-F33, V17-V19, R11.
"""

from tandemq.boundary import Now
from tandemq.codec.ha import Heartbeat
from tandemq.coordination.lease import Timing
from tandemq.coordination.liveness import GroupPeer, TableProgress
from tandemq.coordination.member.copied_offsets import OffsetCopies
from tandemq.coordination.member.diagnosis import Diagnosis
from tandemq.coordination.member.facts import LogState, MemberFacts
from tandemq.coordination.member.follower import RecordFollower
from tandemq.coordination.member.founding import Founding
from tandemq.coordination.member.handover import Handover
from tandemq.coordination.member.heartbeats import HeartbeatExchange
from tandemq.coordination.member.older_record import OlderRecord
from tandemq.coordination.member.orders import (
    CommandResult,
    Effect,
    MemberSettings,
    MemberStage,
    PermittedUntil,
    Status,
)
from tandemq.coordination.member.outputs import MemberOutputs
from tandemq.coordination.member.proposals import RecordProposals
from tandemq.coordination.member.service import ServiceState
from tandemq.coordination.member.status import status_of
from tandemq.coordination.member.takeover import Takeover
from tandemq.coordination.registry.interface import Confirmed, RegistryEvent, SessionLost, SessionUp
from tandemq.coordination.registry.records import CopiedOffsets, GroupMember, GroupState, Mode

ROUND_MS = 250
"""Decisions are made at least this often."""


class MemberMachine:
    """One broker's part in its group. Every input may change the effects and the permissions."""

    def __init__(
        self,
        settings: MemberSettings,
        now: Now,
        *,
        log_end: int,
        log_epoch: int,
        is_log_whole: bool,
        held: tuple[int, int] = (0, 0),
        seen: GroupState | None = None,
    ) -> None:
        """A broker that has just recovered its store.

        Args:
            settings: identity, addresses and times.
            now: this moment.
            log_end: end of its log, bytes.
            log_epoch: last epoch in its epoch table, 0 if it is empty.
            is_log_whole: False if the log may lack bytes that were reported or acknowledged (the machine crashed, the
                store is empty or another one); the broker then becomes master only after it has copied them again.
            held, seen: the last values of the properties of these names, saved by the broker.
        """
        self.id = settings.broker_id
        log = LogState(log_end, log_epoch, held, is_whole=is_log_whole)
        self._facts = facts = MemberFacts(settings, now, log, seen)
        self.view = facts.view
        self._outputs = outputs = MemberOutputs(facts)
        self._founding = founding = Founding(facts, outputs)
        self._older = older = OlderRecord(facts, outputs)
        self._diagnosis = diagnosis = Diagnosis(facts, founding, older)
        self._service = service = ServiceState(facts, outputs, diagnosis, now)
        self._copies = copies = OffsetCopies(facts, outputs)
        self._takeover = takeover = Takeover(facts, outputs, older, copies)
        self._handover = handover = Handover(facts, outputs, service, older)
        self._heartbeats = HeartbeatExchange(facts, handover)
        self._proposals = RecordProposals(facts, outputs, service, founding, handover, older)
        self._follower = RecordFollower(facts, outputs, service, takeover, handover, older)
        self._decided_ms = now.mono_ms
        outputs.publish_live_node()

    # Permissions at the moment of answering. Cheap: checked for every message.

    def may_read(self, now_ms: int) -> bool:
        """Whether a pull may be answered now, by the monotonic clock."""
        return now_ms < self._service.permitted_until.read

    def may_write(self, now_ms: int) -> bool:
        """Whether a send may be stored and acknowledged now."""
        return now_ms < self._service.permitted_until.write

    def may_commit(self, now_ms: int) -> bool:
        """Whether an offset commit or an acknowledgement may be taken now; in a handover longer than `may_read`."""
        return now_ms < self._service.permitted_until.commit

    def permit(self, now: Now) -> None:
        """Recompute the permissions; call it when one of `permitted_until` has passed."""
        self._service.update(now)

    @property
    def permitted_until(self) -> PermittedUntil:
        """When each permission ends, unless the lease is renewed."""
        return self._service.permitted_until

    @property
    def why(self) -> str:
        """Why clients may or may not be served, for refusals."""
        return self._service.why

    # Facts about this member.

    @property
    def stage(self) -> MemberStage:
        """The stage of this member."""
        return self._service.stage

    @property
    def mode(self) -> Mode | None:
        """The failover mode that is in force; None before the configuration was read."""
        return self._facts.membership.mode

    @property
    def own(self) -> GroupMember | None:
        """This broker in the group's configuration."""
        return self._facts.membership.own

    def own_of(self, broker_id: int) -> GroupMember | None:
        """A member in the group's configuration."""
        return self._facts.membership.own_of(broker_id)

    @property
    def log_end(self) -> int:
        """End of the log, bytes, by the last `on_log`."""
        return self._facts.log.end

    @property
    def is_log_whole(self) -> bool:
        """Whether the log has all bytes that were reported or acknowledged."""
        return self._facts.log.is_whole

    @property
    def held(self) -> tuple[int, int]:
        """Epoch and version of the last record that named this member the holder. To be saved when it changes: if the
        registry loses the record, the last holder is known by it."""
        return self._facts.log.held

    @property
    def seen(self) -> GroupState | None:
        """The newest record of the group that this broker has seen. To be saved when it changes (`on_saved`): after a
        restart a record that does not continue this one is an older copy, and is refused."""
        return self.view.seen

    @property
    def is_record_older(self) -> bool:
        """Whether this broker, or another live member, has seen a record that the registry's does not continue."""
        return self._older.is_found

    @property
    def is_loss_accepted(self) -> bool:
        """Whether missing bytes of the log stay lost: an operator accepted that, or no member can have more."""
        return self._facts.log.is_loss_accepted

    @property
    def timing(self) -> Timing:
        """The group's times, by the timeout of the present session."""
        return self._facts.lease.timing

    @property
    def heartbeat_ms(self) -> int:
        """The longest interval between heartbeats on every replication connection."""
        return self._facts.lease.timing.heartbeat_ms

    def peer(self, broker_id: int) -> GroupPeer:
        """Return the state of a member as this broker's own connections show it."""
        return self._facts.peers.get(broker_id)

    def problem(self, now_ms: int) -> str:
        """Problems with the registry and their remedies; "" if there are none."""
        return self._diagnosis.problem(now_ms)

    def status(self, now: Now) -> Status:
        """The status for operators, at this moment."""
        return status_of(self._facts, self._service, self._diagnosis, self._takeover.took_ms_ago(now), now)

    # Acknowledgements, for the master of an `elect` group.

    @property
    def must_ack(self) -> frozenset[int]:
        """Ids of all members that must have a record before it is acknowledged, this one included. While a change of
        the in-sync set is undecided, those of both sets."""
        return self._facts.in_sync.must_ack

    @property
    def switch_target(self) -> int | None:
        """The next master while a switch is in progress."""
        return self._handover.target

    @property
    def awaits_tables(self) -> bool:
        """Whether the target of a switch lacks metadata that it needs before the switch."""
        target = self._handover.target
        return target is not None and not self._facts.peers.get(target).has_tables

    @property
    def in_sync_count(self) -> int:
        """Members certainly in sync; with fewer than minInSyncReplicas writes are refused before they are stored."""
        return self._facts.in_sync.count(self.view.config)

    @property
    def confirm_offset(self) -> int:
        """Log offset, bytes, up to which every member of `must_ack` has the log: records below may be acknowledged and
        shown to consumers. On a slave: as reported by its master and copied."""
        return self._facts.in_sync.confirm_offset

    # Inputs.

    def receive(self, event: RegistryEvent, now: Now) -> None:
        """Take a response of the registry or an event of the session."""
        before = self.view.session_id
        if isinstance(event, SessionUp):
            self._outputs.publish_live_node()
        self.view.receive(event, now.mono_ms)
        if isinstance(event, Confirmed):
            self._facts.lease.grants.confirmed(event.sent_ms)
            self._service.update(now)
            return
        if isinstance(event, SessionUp):
            self._facts.lease.session_granted(event.timeout_ms)
        if isinstance(event, SessionUp | SessionLost) and self.view.session_id != before:
            self._facts.lease.grants.drop_registry()
        self._decide(now)

    def on_log(self, log_end: int, log_epoch: int) -> None:
        """The log ends here; call it after each commit and truncation. Updates `confirm_offset`."""
        self._facts.log.end, self._facts.log.epoch = log_end, log_epoch
        self._facts.in_sync.confirm(log_end, self._facts.peers.known)

    def on_saved(self, now: Now, *, is_saved: bool) -> None:
        """The present values of `held` and `seen` are on the disk, or cannot be saved yet; then this broker takes and
        acknowledges no messages, and does the rest as before."""
        if is_saved is not self._service.is_saved:
            self._service.is_saved = is_saved
            self._service.update(now)

    def on_link(self, peer: int, now: Now, *, is_up: bool) -> None:
        """A replication connection with a member is ready (handshake done, histories agreed) or closed."""
        found = self._facts.peers.get(peer)
        found.is_linked, found.acked = is_up, -1
        if is_up:
            found.heard_ms = now.mono_ms
        self._decide(now)

    def on_heard(self, peer: int, now: Now) -> None:
        """Bytes arrived from a member."""
        self._facts.peers.get(peer).heard_ms = now.mono_ms

    def on_report(self, peer: int, acked: int, echo: int, now: Now, tables: TableProgress) -> None:
        """Take a member's report on this epoch's connection: `acked`, its log end (never beyond what was sent),
        `echo`, the number of the last heartbeat by which it grants a lease or 0, and what `tables` it has saved."""
        self._heartbeats.take_report(peer, acked, now, tables)
        if echo:
            self._facts.lease.grants.echoed(peer, echo)
            self._service.update(now)
        self._facts.in_sync.confirm(self._facts.log.end, self._facts.peers.known)
        if self._handover.progress is not None or peer not in self._facts.in_sync.decided:
            self._decide(now)

    def on_heartbeat(self, peer: int, heartbeat: Heartbeat, now: Now) -> int:
        """Take the heartbeat of a serving member. Return the number to echo with the next report, which grants a lease;
        0 if this member cannot grant one."""
        return self._heartbeats.take_heartbeat(peer, heartbeat, now)

    def heartbeat(self, now: Now) -> Heartbeat | None:
        """Return the next heartbeat for all connections, to be sent at once behind log bytes; None while this member
        serves no clients."""
        is_holding = self.stage in (MemberStage.SERVING, MemberStage.HANDING)
        return self._heartbeats.next_heartbeat(now) if is_holding else None

    def on_ready(self, epoch: int, log_end: int, now: Now) -> None:
        """BecomeMaster is carried out: the epoch's entry is on disk, the log ends here, all queues are built."""
        self._facts.log.prepared(epoch, log_end)
        self._facts.in_sync.serve(log_end, self._facts.in_sync.confirm_offset, now.mono_ms)
        self._decide(now)

    def on_drained(self, now: Now) -> None:
        """In a handover, after pulls stopped: every consumer has committed or disconnected."""
        self._handover.drained(now)
        self._decide(now)

    def on_handed(self, token: int, now: Now, *, is_stored: bool) -> None:
        """HandOffsets is answered: the other member has merged and saved the offsets, or not."""
        self._handover.handed(token, now, is_stored=is_stored)
        self._decide(now)

    def may_take_offsets(self, giver: int, token: int) -> bool:
        """Whether offsets that a member hands over may be merged and saved."""
        return self._handover.may_take(giver, token)

    def on_taken(self, giver: int, token: int, now: Now) -> None:
        """The offsets are merged and saved; only now the member may be answered."""
        self._handover.took(giver, token)
        self._decide(now)

    def copy_offsets(self, table: bytes, now: Now) -> None:
        """Take the offsets committed here since this broker became the reader, for the registry."""
        self._copies.copy(table)
        self._decide(now)

    def on_merged(self, copied: CopiedOffsets, now: Now, *, is_saved: bool) -> None:
        """MergeOffsets is carried out: the offsets are saved, or could not be."""
        self._copies.merged(copied, is_saved=is_saved)
        self._decide(now)

    def doubt_log(self, why: str, now: Now, *, is_final: bool = False) -> None:
        """The log may have lost acknowledged messages: a flush failed, or a check found damage.

        The master of an `elect` group stops at once and resigns in favour of an in-sync member; a slave becomes master
        only after it has copied everything again. The caller stores it for `is_log_whole` of the next start.
        `is_final`: copying does not help before that start.
        """
        self._facts.log.doubt(is_final=is_final)
        if self._facts.membership.is_elect:
            self._facts.log.ready_epoch = 0
            if self.stage in (MemberStage.PREPARING, MemberStage.SERVING):
                self._service.reclaim(f"the log may lack bytes: {why}", now)
            self._service.claim_above = self.view.version + (self.view.pending is not None)  # one in flight is no claim
        self._decide(now)

    def refuse_log(self, now: Now) -> None:
        """The device has failed: the log takes no record before the next start, and lacks none.

        The master of an `elect` group hands over to an in-sync member, as soon as there is one.
        """
        if not self._facts.log.is_refused:
            self._facts.log.is_refused = True
            self._decide(now)

    def switch(self, target: int, now: Now, *, why: str = "by an operator") -> CommandResult:
        """Carry out an order to make `target` the master (V18). `why`: who gave it, for the record."""
        result = self._handover.switch(target, now, why=why)
        self._decide(now)
        return result

    def force_master(self, now: Now, *, is_preview: bool = False) -> CommandResult:
        """Carry out an operator's order that this broker serves although messages may be lost or delivered again (F30).
        A preview only states what may be lost."""
        if self._older.is_mine:
            result = self._older.force(now, is_preview=is_preview)
        elif self.stage is MemberStage.CLAIMING and not self._facts.log.is_whole:
            self._facts.log.is_loss_accepted |= not is_preview
            result = CommandResult(True, True, f"what broker {self.id} lost of its log stays lost")
        elif self.own is not None and self.view.is_record_missing:
            result = self._founding.force(is_preview=is_preview)
        else:
            result = self._takeover.force(now, is_preview=is_preview)
        self._decide(now)
        return result

    def tick(self, now: Now) -> None:
        """Time has passed."""
        self.view.tick(now.mono_ms)
        self._decide(now)

    # Outputs.

    def deadline_ms(self) -> int:
        """When `tick` is needed next, monotonic."""
        times = [
            self._decided_ms + ROUND_MS,
            self._takeover.checks.next_ms,
            self._handover.deadline_ms(),
            self._copies.deadline_ms(),
            self.view.deadline_ms(),
            self.permitted_until.next_end_ms(self._decided_ms),
        ]
        return max(min(time for time in times if time is not None), self._decided_ms + 1)

    @property
    def has_effects(self) -> bool:
        """Whether there are effects to carry out."""
        return bool(self._outputs)

    def next_effects(self) -> list[Effect]:
        """Return the effects to carry out, in order."""
        return self._outputs.take()

    def _decide(self, now: Now) -> None:
        """Make all decisions from the present state."""
        self._decided_ms = now.mono_ms
        self._facts.peers.watch(self.view, self._facts.in_sync.decided, now)
        self._follower.follow(now)
        self._founding.tick(now)
        self._older.tick(now)
        self._takeover.tick(now)
        self._handover.tick(now)
        self._copies.tick(now)
        self._proposals.tick(now)
        self._follower.assign_role()
        self._service.update(now)
        self._outputs.add(*self.view.next_requests())
