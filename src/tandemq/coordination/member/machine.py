"""One broker as a member of its group: who serves, who takes over, who gives back. All else here is part of it.

    registry answers, events ─► receive ─┐
    links, reports, heartbeats ─► on_… ──┼──► Member ──► next_effects: Ask, BecomeMaster, BecomeSlave, HandOffsets, …
    operator: switch, force_master ──────┘      └──────► may_read, may_write, may_commit (at the moment of answering)

                 record names another
    UNREAD ─► SLAVE ◄──────────────────────────────┬──────────────┐
                │ record names us                  │              │
                ▼          our own write           │  log ready   │
             CLAIMING ────────────────────► PREPARING ───────► SERVING ─► HANDING ─► SLAVE
                ▲ given up                                                   │
                └────────────────────────────────────────────────────────────┘
    AWAITING: master of the record, but the slave reads; ends with the offsets handed back.

Rules, all others follow from them:

1. Who serves holds a lease (`lease`), and looks at the clock when it answers.
2. A permission is taken by a write of one's own to the record, never by reading it; also after a restart, after a
   new session, and after giving up a hand-over. Any older write that is still under way then fails.
3. Who has a write under way that could make itself the holder promises nothing.

Owner: the broker's node. Drive it with every event, then take `next_effects`; call `tick` by `deadline_ms`.
Source: docs/internals/failover.md; requirements F09-F33, V17-V19, R11.
"""

from dataclasses import replace

from tandemq.boundary import Now
from tandemq.codec.ha import Heartbeat
from tandemq.coordination.election import Candidate, place_of
from tandemq.coordination.in_sync import InSync
from tandemq.coordination.lease import FOREVER, NEVER, Lease, Timing, timing
from tandemq.coordination.liveness import GroupPeer
from tandemq.coordination.member.diagnosis import why_unread
from tandemq.coordination.member.founding import Founder
from tandemq.coordination.member.handover import Giver
from tandemq.coordination.member.orders import (
    BecomeMaster,
    BecomeSlave,
    CommandDone,
    CommandResult,
    Effect,
    MemberSettings,
    MemberStage,
    Note,
    PermissionChanged,
    Status,
)
from tandemq.coordination.member.status import status_of
from tandemq.coordination.member.takeover import Taker
from tandemq.coordination.permission import holder_of, right_of
from tandemq.coordination.registry.interface import Confirmed, RegistryEvent, SessionLost, SessionUp
from tandemq.coordination.registry.records import BrokerPermission, GroupMember, GroupMode, GroupState, LiveBroker, Mode
from tandemq.coordination.registry.view import NO_NODE, RegistryView
from tandemq.coordination.slave_consume import HandStep

THINK_MS = 250
"""A member looks around at least this often."""
SESSION_MS = 2_000
"""Taken for the session until the registry says what it granted."""

_MOVES: dict[MemberStage, frozenset[MemberStage]] = {
    MemberStage.UNREAD: frozenset({MemberStage.SLAVE, MemberStage.CLAIMING, MemberStage.AWAITING}),
    MemberStage.SLAVE: frozenset({MemberStage.UNREAD, MemberStage.CLAIMING, MemberStage.AWAITING}),
    MemberStage.CLAIMING: frozenset(
        {MemberStage.UNREAD, MemberStage.SLAVE, MemberStage.PREPARING, MemberStage.AWAITING}
    ),
    MemberStage.PREPARING: frozenset(
        {MemberStage.UNREAD, MemberStage.SLAVE, MemberStage.SERVING, MemberStage.CLAIMING, MemberStage.AWAITING}
    ),
    MemberStage.SERVING: frozenset(
        {MemberStage.UNREAD, MemberStage.SLAVE, MemberStage.HANDING, MemberStage.CLAIMING, MemberStage.AWAITING}
    ),
    MemberStage.HANDING: frozenset(
        {MemberStage.UNREAD, MemberStage.SLAVE, MemberStage.CLAIMING, MemberStage.AWAITING, MemberStage.SERVING}
    ),
    MemberStage.AWAITING: frozenset({MemberStage.UNREAD, MemberStage.SLAVE, MemberStage.CLAIMING}),
}


class MemberMachine:
    """One broker's part in its group. Every input may change what `next_effects` returns and what is permitted."""

    def __init__(self, settings: MemberSettings, now: Now, *, log_end: int, log_epoch: int, is_log_whole: bool) -> None:
        """A broker that has just recovered its store.

        Args:
            settings: who it is.
            now: this moment.
            log_end: end of its log, bytes.
            log_epoch: last epoch in its epoch table, 0 if there is none.
            is_log_whole: False if it may have lost bytes that it had reported or acknowledged (the machine went down,
                the store is empty or another one); it then leads nobody before it has copied them again.
        """
        self.settings = settings
        self.id = settings.broker_id
        self.view = RegistryView(settings.cluster, settings.broker_name, settings.broker_id)
        self.timing: Timing = self._timing(SESSION_MS)
        self.stage = MemberStage.UNREAD
        self.log_end, self.log_epoch, self.is_log_whole = log_end, log_epoch, is_log_whole
        self.mode: Mode | None = None
        """Of the configuration first read; a change of it holds from the next start."""
        self._started_ms = now.mono_ms
        self._peers: dict[int, GroupPeer] = {}
        self.lease = Lease()
        self.founder = Founder(self)
        self._taker = Taker(self)
        self._giver = Giver(self)
        self._sync = InSync(self.id, ())
        self._known: tuple[int, int, GroupMode, int] | None = None
        """Epoch, master, mode and reader of the record we act by."""
        self._claim_above = NO_NODE
        """Our own write of the record counts as a claim if it made a version above this one."""
        self._ready_epoch = 0
        self.is_loss_accepted = False
        """What our log may have lost stays lost: an operator said so, or nobody can have more."""
        self._is_doubt_final = False
        self._ordered: BecomeMaster | BecomeSlave | None = None
        self._absent_ms: dict[int, int] = {}
        self.permitted_until = (NEVER, NEVER, NEVER)
        """Until when reading, writing and committing are permitted if nothing prolongs it, monotonic ms."""
        self._told = (False, False)
        self.told_ms = now.mono_ms
        self._why = "the group's record has not been read yet"
        self._thought_ms = now.mono_ms
        self._effects: list[Effect] = []
        self.tell_registry()

    # What this broker may do, at the moment of answering. Cheap: asked for every message.

    def may_read(self, now_ms: int) -> bool:
        """Whether a pull may be answered now, by the monotonic clock."""
        return now_ms < self.permitted_until[0]

    def may_write(self, now_ms: int) -> bool:
        """Whether a send may be stored and acknowledged now."""
        return now_ms < self.permitted_until[1]

    def may_commit(self, now_ms: int) -> bool:
        """Whether an offset commit or an acknowledgement may be taken now; longer than `may_read` in a hand-over."""
        return now_ms < self.permitted_until[2]

    @property
    def why(self) -> str:
        """Why it may, or may not; for refusals."""
        if self.stage is MemberStage.SERVING and not any(self._told):
            return "lonely: neither the registry nor every member in sync confirms that nobody else serves"
        if self.stage is MemberStage.AWAITING and self.view.state is not None:
            reader = self.view.state.reader
            return f"broker {reader} is read from until it has handed its offsets back; ha force-master ends that"
        if self.stage is MemberStage.CLAIMING and self.mode is Mode.ELECT and not self.is_log_whole:
            return "the end of the log may be lost: waits for a member in sync to take over; ha force-master accepts it"
        return why_unread(self) or self._why

    @property
    def is_registering(self) -> bool:
        """Whether the name servers may show this broker as one that serves clients."""
        return self._told != (False, False)

    # What counts for acknowledgements, for the master of an `elect` group.

    @property
    def must_ack(self) -> frozenset[int]:
        """Ids of all members that must hold a record before it is acknowledged, our own among them: while a change of
        the in-sync set is undecided, those of both sets."""
        return self._sync.must_ack

    @property
    def in_sync_count(self) -> int:
        """Members in sync for certain; fewer than minInSyncReplicas: refuse the write before it is stored."""
        return self._sync.count(self.view.config)

    @property
    def confirm_offset(self) -> int:
        """Log offset below which every member of `must_ack` holds the log: records below may be acknowledged and shown
        to consumers. On a slave: as far as its master told and it has copied itself."""
        return self._sync.confirm_offset

    def permit_until_ms(self, now_ms: int) -> int:
        """When something that is permitted now ends, if nothing prolongs it."""
        return min((until for until in self.permitted_until if until > now_ms), default=FOREVER)

    @property
    def heartbeat_ms(self) -> int:
        """How often to send `heartbeat` on every link, at least."""
        return self.timing.heartbeat_ms

    # Inputs.

    def receive(self, event: RegistryEvent, now: Now) -> None:
        """What the registry says: an answer or an event of the session."""
        before = self.view.session_id
        if isinstance(event, SessionUp):
            self.tell_registry()
        self.view.receive(event, now.mono_ms)
        if isinstance(event, Confirmed):
            self.lease.confirmed(event.sent_ms)
            self.permit(now)
            return
        if isinstance(event, SessionUp):
            self.timing = self._timing(event.timeout_ms)
        if isinstance(event, SessionUp | SessionLost) and self.view.session_id != before:
            self.lease.drop_registry()
        self.think(now)

    def on_log(self, log_end: int, log_epoch: int) -> None:
        """Our log ends here; call it after each commit, and after truncation. Brings `confirm_offset` up to date."""
        self.log_end, self.log_epoch = log_end, log_epoch
        self._sync.confirm(log_end, self._peers)

    def on_link(self, peer: int, now: Now, *, is_up: bool) -> None:
        """A replication link with a member is ready (handshake done, histories agreed) or gone."""
        found = self.peer(peer)
        found.is_linked, found.acked = is_up, -1
        if is_up:
            found.heard_ms = now.mono_ms
        self.think(now)

    def on_heard(self, peer: int, now: Now) -> None:
        """Bytes came from a member, whatever they say."""
        self.peer(peer).heard_ms = now.mono_ms

    def on_report(self, peer: int, acked: int, echo: int, now: Now, *, has_tables: bool) -> None:
        """A member reported its log end on the link of this epoch, and the number of the last heartbeat it promises
        by (0: none). Reports beyond what was sent are refused before (replication.master). `has_tables`: see `Peer`."""
        found = self.peer(peer)
        found.heard_ms, found.has_tables = now.mono_ms, has_tables
        if acked >= found.end_then:
            found.caught_up_ms = now.mono_ms
        found.acked, found.end_then = acked, self.log_end
        if echo:
            self.lease.echoed(peer, echo)
            self.permit(now)
        self._sync.confirm(self.log_end, self._peers)
        if self._giver.hand is not None or peer not in self._sync.decided:
            self.think(now)

    def on_heartbeat(self, peer: int, heartbeat: Heartbeat, now: Now) -> int:
        """A member that serves sent a heartbeat. Returns the number to echo with the next report: our promise; 0 if we
        cannot promise anything."""
        found = self.peer(peer)
        found.heard_ms, found.lease_ms, found.log_end = now.mono_ms, heartbeat.lease_ms, heartbeat.log_end
        state = self.view.state
        if state is None or heartbeat.epoch != state.epoch:
            return 0
        if peer == state.master and found.is_linked and state.master != self.id:
            if self.log_end >= heartbeat.log_end and not self._is_doubt_final:
                self.is_log_whole = True
            self._sync.confirm_offset = max(self._sync.confirm_offset, min(heartbeat.confirm_offset, self.log_end))
        promises = holder_of(state) == peer and self.view.pending is None and self._giver.taken is None
        return heartbeat.number if promises else 0

    def heartbeat(self, now: Now) -> Heartbeat | None:
        """The next heartbeat for all links, behind log bytes; None while we serve nobody. Send it at once."""
        if self.stage not in (MemberStage.SERVING, MemberStage.HANDING) or self.view.state is None:
            return None
        number = self.lease.next_heartbeat(now.mono_ms)
        confirm = self._sync.confirm(self.log_end, self._peers)
        return Heartbeat(self.view.state.epoch, number, self.timing.lease_ms, self.log_end, confirm)

    def on_ready(self, epoch: int, log_end: int, now: Now) -> None:
        """BecomeMaster is carried out: the epoch's pair is on the disk, the log ends here, all queues are built."""
        self._ready_epoch, self.log_end, self.log_epoch = epoch, log_end, epoch
        self.is_log_whole, self.is_loss_accepted = True, False
        self._sync.serve(log_end, self._sync.confirm_offset, now.mono_ms)
        self.think(now)

    def on_drained(self, now: Now) -> None:
        """After pulls stopped for a hand-over: every consumer has committed, or is gone."""
        self._giver.drained(now)
        self.think(now)

    def on_handed(self, token: int, now: Now, *, is_stored: bool) -> None:
        """The answer to HandOffsets: the other member has merged and saved the offsets, or not."""
        self._giver.handed(token, now, is_stored=is_stored)
        self.think(now)

    def may_take_offsets(self, giver: int, token: int) -> bool:
        """Whether offsets that a member hands over may be merged and saved."""
        return self._giver.take(giver, token)

    def on_taken(self, giver: int, token: int, now: Now) -> None:
        """They are merged and saved; only now they may be answered."""
        self._giver.took(giver, token, now)

    def doubt_log(self, why: str, now: Now, *, is_final: bool = False) -> None:
        """Our log may have lost something that was acknowledged: a flush failed, a check found damage. The master of
        an `elect` group stops at once and leaves the mastership to a member in sync; a slave does not follow a master
        before it has copied everything again. Remember it on the disk: `is_log_whole` of the next start. `is_final`:
        no copying mends it before that."""
        self.is_log_whole = False
        self._is_doubt_final |= is_final
        if self.mode is Mode.ELECT:
            self._ready_epoch = 0
            if self.stage in (MemberStage.PREPARING, MemberStage.SERVING):
                self.reclaim(f"the log is in doubt: {why}", now)
            self._claim_above = self.view.version + (self.view.pending is not None)  # one under way is no claim
        self.think(now)

    def switch(self, target: int, now: Now) -> CommandResult:
        """An operator wants `target` to be the master (V18)."""
        return self._giver.switch(target, now)

    def force_master(self, now: Now, *, is_preview: bool = False) -> CommandResult:
        """An operator wants this broker to serve although that may lose or repeat something (F30), or to know what."""
        if self.stage is MemberStage.CLAIMING and not self.is_log_whole:
            self.is_loss_accepted |= not is_preview
            verdict = CommandResult(True, True, f"what broker {self.id} lost of its log stays lost")
        else:
            verdict = self._taker.force(now, is_preview=is_preview)
        self.think(now)
        return verdict

    def tick(self, now: Now) -> None:
        """Time passed."""
        self.view.tick(now.mono_ms)
        self.think(now)

    def deadline_ms(self) -> int:
        """When `tick` is needed next, monotonic."""
        times = [
            self._thought_ms + THINK_MS,
            self._taker.checks.next_ms,
            self._giver.deadline_ms(),
            self.view.deadline_ms(),
        ]
        times += [until for until in self.permitted_until if self._thought_ms < until < FOREVER]
        return max(min(time for time in times if time is not None), self._thought_ms + 1)

    @property
    def has_effects(self) -> bool:
        """Whether there is something to do."""
        return bool(self._effects)

    def next_effects(self) -> list[Effect]:
        """What to do, in order; registry operations are `Ask`."""
        effects, self._effects = self._effects, []
        return effects

    def think(self, now: Now) -> None:
        """Decide what follows from what is known now; every input calls it."""
        self._thought_ms = now.mono_ms
        self._watch_absent(now)
        self._follow(now)
        self.founder.tick(now)
        self._taker.tick(now)
        self._giver.tick(now)
        self._propose(now)
        self._give_role()
        self.permit(now)
        self._effects += self.view.next_asks()

    def _follow(self, now: Now) -> None:
        """Stand where the record puts us."""
        view = self.view
        if self.mode is None and view.config is not None:
            self.mode = view.config.mode
        state = view.state
        if state is None or self.own is None:
            if self.stage is not MemberStage.UNREAD:
                known = self._known  # of the same epoch when we are a member again: links and copies count on
                self._known = None if state is None or known is None else (known[0], NO_NODE - 1, known[2], known[3])
                self._giver.over()
                why = "the group's record is lost" if state is None else "we are not in the group's configuration"
                self.become(MemberStage.UNREAD, why, now)
            return
        key = (state.epoch, state.master, state.mode, state.reader)
        if key != self._known:
            is_new_epoch = self._known is None or self._known[0] != state.epoch
            self._known = key
            self._recorded(state, now, is_new_epoch=is_new_epoch)
        elif self.mode is Mode.ELECT and frozenset(state.in_sync) != self._sync.decided:
            self._effects.append(Note(state.epoch, f"in sync: {', '.join(map(str, state.in_sync))}"))
        self._sync.adopt(state.in_sync, view.pending.state.in_sync if view.pending is not None else ())
        is_claimed = view.pending is None and view.written_version > self._claim_above
        if self.stage is MemberStage.CLAIMING and is_claimed and self._may_lead():
            self.become(MemberStage.PREPARING, "the record is claimed", now)
        if self.stage is MemberStage.PREPARING and (state.master != self.id or self._ready_epoch == state.epoch):
            self.become(MemberStage.SERVING, state.reason, now)

    def _may_lead(self) -> bool:
        """Whether our log is what the group's can be; the record is written as it stood, too, while that is open."""
        return self.mode is not Mode.ELECT or self.is_log_whole or self.is_loss_accepted

    def _recorded(self, state: GroupState, now: Now, *, is_new_epoch: bool) -> None:
        if is_new_epoch:
            confirm = self._sync.confirm_offset
            self._sync = InSync(self.id, state.in_sync)
            self._sync.confirm_offset = min(confirm, self.log_end)
            self.lease.drop_peers()
            for peer in self._peers.values():  # links of another epoch count for nothing
                peer.is_linked, peer.acked = False, -1
        self._taker.settled(f"the record says: {state.reason}", is_done=holder_of(state) == self.id)
        self._giver.over()
        self._giver.taken = None
        if holder_of(state) == self.id:
            self._claim_above = self.view.version - 1
            self.become(MemberStage.CLAIMING, state.reason, now)
        else:
            self.is_loss_accepted = False
            self.become(MemberStage.AWAITING if state.master == self.id else MemberStage.SLAVE, state.reason, now)

    def become(self, stage: MemberStage, why: str, now: Now) -> None:
        """Change the stage."""
        if stage is not self.stage:
            assert stage in _MOVES[self.stage], f"{self.stage} does not become {stage}"
            self.stage = stage
        epoch = 0 if self.view.state is None else self.view.state.epoch
        self._effects.append(Note(epoch, f"{stage.value}: {why}"))
        self._why = why
        self.permit(now)

    def reclaim(self, why: str, now: Now) -> None:
        """Serve again, after the record was written anew."""
        self._claim_above = self.view.version
        self.become(MemberStage.CLAIMING, why, now)

    # Writing the record.

    def _propose(self, now: Now) -> None:
        view, state = self.view, self.view.state
        if not view.may_propose or self.own is None:
            return
        if state is None:
            self.founder.propose(now)
        elif self.stage is MemberStage.CLAIMING:
            self._claim(state, now)
        elif self.stage is MemberStage.AWAITING:
            self._giver.end_reading(now)
        elif self.stage in (MemberStage.PREPARING, MemberStage.SERVING) and view.written_session != view.session_id:
            self.propose(state, state.reason, now)
        elif self.stage is MemberStage.SERVING and state.mode is GroupMode.NORMAL:
            self._change_in_sync(state, now)

    def propose(self, state: GroupState, reason: str, now: Now) -> None:
        """Write the record, if nobody else has meanwhile."""
        if state is not self.view.state:
            state = replace(state, reason=reason, since_ms=now.wall_ms, by=self.id)
        self.view.propose(state)

    def _claim(self, state: GroupState, now: Now) -> None:
        """Write the record as it stands; a master of `elect` that lost part of its log leaves it to another."""
        others = [other for other in state.in_sync if other != self.id and self.own_of(other) is not None]
        heirs = [other for other in others if self.configured(other).may_write]
        if self.is_log_whole or self.mode is not Mode.ELECT:
            self.propose(state, state.reason, now)
        elif self.is_loss_accepted or (not others and len(self.view.config.members if self.view.config else ()) == 1):
            self.is_loss_accepted = True
            new = replace(state, epoch=state.epoch + 1, in_sync=(self.id,))
            self.propose(new, f"broker {self.id} may have lost the end of its log, and nobody has more", now)
        else:
            found = [(heir, (self.view.live or {}).get(heir)) for heir in heirs]
            candidates = [
                Candidate(heir, record.epoch, record.log_end, self.priority(heir))
                for heir, record in found
                if record is not None
            ]
            if candidates:
                heir = min(candidates, key=lambda one: place_of(one.broker_id, candidates)).broker_id
                new = replace(state, epoch=state.epoch + 1, master=heir, reader=heir, in_sync=tuple(others))
                self.propose(new, f"broker {self.id} may have lost the end of its log", now)

    def _change_in_sync(self, state: GroupState, now: Now) -> None:
        config = self.view.config
        assert config is not None, "we serve by it"
        if self.mode is Mode.ELECT:
            members = {one.broker_id for one in config.members}
            wish = self._sync.wish(
                now.mono_ms, self._peers, gone=self._gone(now), candidates=members, lag_ms_max=self.settings.lag_ms_max
            )
        else:  # who had the log and the tables once may take over reading; that does not change when it lags
            peers = ((one.broker_id, self.peer(one.broker_id)) for one in config.members)
            once = {broker_id for broker_id, peer in peers if peer.acked >= 0 and peer.has_tables}
            wish = frozenset(one for one in state.in_sync if self.own_of(one) is not None) | once
        if wish is not None and wish != frozenset(state.in_sync):
            new = replace(state, in_sync=tuple(sorted(wish)))
            self.propose(new, f"in sync: {', '.join(map(str, sorted(wish)))}", now)
            self._sync.adopt(state.in_sync, new.in_sync)

    # Permission and role.

    def permit(self, now: Now) -> None:
        """Compute until when we may do what, and tell the broker if that is news; also when a lease may be over."""
        read = write = commit = NEVER
        if self.stage in (MemberStage.SERVING, MemberStage.HANDING):
            right = right_of(self.configured(self.id), self.id, self.view.state)
            until = self.lease_until()
            if self.stage is MemberStage.SERVING:
                read = until if right.may_read else NEVER
                write = until if right.may_write else NEVER
            hand = self._giver.hand
            if self.stage is MemberStage.SERVING or (hand is not None and hand.step is HandStep.DRAIN):
                commit = until if right.may_read else NEVER
        ended_ms = min(now.mono_ms, max(self.permitted_until[:2]))
        self.permitted_until = (read, write, commit)
        may = (now.mono_ms < read, now.mono_ms < write)
        if may != self._told:
            self._told, self.told_ms = may, now.mono_ms
            at_ms = now.mono_ms if any(may) else ended_ms
            self._effects.append(PermissionChanged(*may, self.why, at_ms))

    def lease_until(self) -> int:
        """When the lease on what we serve ends; FOREVER if nobody could take over."""
        lease_ms = self.timing.lease_ms
        peers = self.lease.peers_until_ms(self.rivals(), lease_ms)
        is_claimed = self.view.written_session == self.view.session_id != 0
        return max(peers, self.lease.registry_until_ms(lease_ms) if is_claimed else NEVER)

    def rivals(self) -> frozenset[int]:
        """Members that could take over what we serve, by the record and by a change of it that may come true."""
        state, pending = self.view.state, self.view.pending
        if state is None:
            return frozenset()
        if state.mode is GroupMode.SLAVE_CONSUME:
            return frozenset({state.master})
        asked = pending.state.in_sync if pending is not None else ()
        return (frozenset(state.in_sync) | frozenset(asked)) - {self.id}

    def _give_role(self) -> None:
        """Tell the broker whose log it copies, or that its own counts."""
        state = self.view.state
        if state is None or self.own is None:
            return
        order: BecomeMaster | BecomeSlave | None = None
        if state.master != self.id:
            record = (self.view.live or {}).get(state.master)
            known = self._ordered if isinstance(self._ordered, BecomeSlave) else None
            if record is None and known is not None and (known.master, known.epoch) == (state.master, state.epoch):
                return
            address, ha_address = ("", "") if record is None else (record.address, record.ha_address)
            order = BecomeSlave(state.master, state.epoch, address, ha_address)
        elif self.stage in (MemberStage.PREPARING, MemberStage.AWAITING):
            order = BecomeMaster(state.epoch)
        if order is not None and order != self._ordered:
            self._ordered = order
            self._effects.append(order)

    # Helpers of the parts.

    @property
    def own(self) -> GroupMember | None:
        """Ourselves in the group's configuration."""
        return self.own_of(self.id)

    def own_of(self, broker_id: int) -> GroupMember | None:
        """A member in the group's configuration."""
        return None if self.view.config is None else self.view.config.member(broker_id)

    def configured(self, broker_id: int) -> BrokerPermission:
        """What a member may do by configuration."""
        return BrokerPermission.NONE if (found := self.own_of(broker_id)) is None else found.permission

    def priority(self, broker_id: int) -> int:
        """In elections; higher first."""
        return 0 if (found := self.own_of(broker_id)) is None else found.priority

    def peer(self, broker_id: int) -> GroupPeer:
        """What our own connections showed of a member."""
        return self._peers.get(broker_id) or self._peers.setdefault(broker_id, GroupPeer(heard_ms=self._started_ms))

    def order(self, effect: Effect) -> None:
        """Something for the broker to do."""
        self._effects.append(effect)

    def command_done(self, text: str, *, is_done: bool) -> None:
        """An operator's command came to its end."""
        self._effects.append(CommandDone(is_done, text))

    def tell_registry(self) -> None:
        """Bring our live node up to date: others order an election by it."""
        settings = self.settings
        record = LiveBroker(self.id, settings.address, settings.ha_address, self.log_epoch, self.log_end)
        self.view.tell(replace(record, is_waiting=self.stage is MemberStage.UNREAD and self.founder.waits))

    def _timing(self, session_ms: int) -> Timing:
        settings = self.settings
        return timing(session_ms, lease_ms=settings.lease_ms, checks=settings.checks, check_ms=settings.check_ms)

    def _watch_absent(self, now: Now) -> None:
        live = self.view.live
        if live is None or not self.view.is_up:
            self._absent_ms.clear()
            return
        for member in self._sync.decided:
            if member in live:
                self._absent_ms.pop(member, None)
            else:
                self._absent_ms.setdefault(member, now.mono_ms)

    def _gone(self, now: Now) -> frozenset[int]:
        """Members the registry has not listed as living for so long that they are believed to be gone."""
        silence_ms = self.timing.silence_ms
        return frozenset(one for one, since_ms in self._absent_ms.items() if now.mono_ms - since_ms > silence_ms)

    def status(self, now: Now) -> Status:
        """Everything an operator wants to know, at this moment."""
        return status_of(self, now)
