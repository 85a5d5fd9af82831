"""The role of a broker in a group with a registry: its `MemberMachine` decides, this carries out.

    registry    ──events──► MemberMachine ──orders──► replication (lead, follow), registration; `Serving`
    replication ──reports, heartbeats──► MemberMachine          journal: what happened when, and why

Before the group's configuration is read, clients are refused. In mode `static` the broker continues by its settings,
without a registry. What a broker may do ends with its lease, so permissions are checked at the start of every turn.
Source: docs/internals/failover.md, "A broker and its member".
"""

import logging
from collections.abc import Callable
from typing import Any, assert_never

from msgspec import structs

from tandemq.boundary import Event, Now, Turn
from tandemq.broker.ha.service import Replication
from tandemq.broker.kernel.acknowledgements import Acknowledgements
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.role import (
    BrokerRole,
    HeartbeatReceived,
    LogChanged,
    LogDoubted,
    LogEndReported,
    MemberHeard,
    MemberLinked,
    Report,
    TablesSaved,
)
from tandemq.broker.kernel.serving import NO_LIMIT, Registered, SendRefusal, Serving
from tandemq.broker.roles.journal import FailoverJournal
from tandemq.broker.roles.offset_barrier import OffsetBarrier
from tandemq.broker.roles.offset_handover import OffsetHandover
from tandemq.broker.roles.old_reads import old_reads
from tandemq.broker.roles.problem_log import ProblemLog
from tandemq.broker.roles.registered_id import registered_id
from tandemq.broker.roles.registry_client import BrokerRegistry
from tandemq.broker.roles.static_role import StaticRole
from tandemq.broker.roles.texts import not_readable, permission_text, settings_warning
from tandemq.codec.remoting.frame import encode_command
from tandemq.coordination.member.machine import MemberMachine
from tandemq.coordination.member.orders import (
    BecomeMaster,
    BecomeSlave,
    CommandDone,
    HandOffsets,
    MemberSettings,
    MemberStage,
    MergeOffsets,
    Note,
    PermissionChanged,
)
from tandemq.coordination.permission import holder_of
from tandemq.coordination.registry.interface import RegistryRequest
from tandemq.coordination.registry.records import Mode
from tandemq.errors import StoreError
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.storage.log.epochs import EpochTable

log = logging.getLogger(__name__)
HEARTBEAT_GAP_MS = 10
"""Minimum interval of heartbeats that responses wait for."""
AGAIN_MS = 1_000
"""Retry interval for a role that could not begin because of the disk."""
UNKNOWN = "the group's configuration has not been read from the registry yet"


class RegistryRole:
    """The role that the group has decided for this broker, and this broker's work for the group; a `BrokerRole`."""

    def __init__(self, kernel: Kernel, registry: BrokerRegistry, journal: FailoverJournal, static: StaticRole) -> None:
        """Begin without a decision. The session at the registry begins after `listening`.

        Args:
            kernel: the broker's services; replication and the barrier are among the features.
            registry: the session.
            journal: what is known from the last run.
            static: the role that mode `static` falls back to.
        """
        self._store = kernel.store
        self._replication = kernel.features.find(Replication)
        self.registry = registry
        self._journal = journal
        self._stream = self._replication.stream
        self._barrier = kernel.features.find(OffsetBarrier)
        self._handover = OffsetHandover(kernel)
        self._clients = kernel.clients
        self._links = kernel.links
        self._requests = kernel.features.requests
        self._drop_waiting_sends = kernel.features.find(Acknowledgements).drop
        """Gives waiting sends an unknown outcome."""
        self._static = static
        self._current = kernel.current
        self._member: MemberMachine | None = None
        self._is_master = False
        self.epoch = 0
        self.elections = self.role_changes = 0
        """Epochs that this member began as the master, and changes of its role, since the start."""
        self.commands: list[tuple[int, Command]] = []
        """Operators' commands that wait for their outcome: connection and request."""
        self._due_ms = 0
        self._permitted_until_ms = 0
        self._granted = self._serving = Serving(
            is_master=False,
            read=UNKNOWN,
            write=UNKNOWN,
            commit=UNKNOWN,
            sends=SendRefusal(ResponseCode.NO_PERMISSION, UNKNOWN),
            takes_pulled_commits=False,
            keeps_offsets=False,
            replica_end=0,
        )
        """Rights of clients by the last decision, and the same with the present log offsets."""
        self._facts: tuple[Any, ...] = ()
        """Inputs from which the second was computed."""
        self._log_end = -1
        self._generations: EpochTable | None = None
        """Log end and epochs as the member knows them."""
        self._copied = 0
        self._visible_end = NO_LIMIT
        self._beat_ms = 0
        """When the next heartbeat is due."""
        self._last_beat_ms = 0
        """When the last one was sent."""
        self._greeted: set[int] = set()
        """Members that got a heartbeat at once when they had caught up, and so know that their log is whole."""
        self._has_old_reads = False
        """Whether `slaveReadEnable` was on at any time since the start."""
        self._delayed_order: BecomeMaster | None = None
        self._again_ms = 0
        """Mastership that could not begin because of the disk, and the time of the next try."""
        self._problems = ProblemLog(registry, kernel.current)
        self._stream.begin()

    def listening(self, address: str, ha_address: str, now: Now) -> None:
        """Record the advertised addresses, "ip:port", once the ports are bound."""
        config = self._current.config
        settings = MemberSettings(
            config.cluster,
            config.broker_name,
            config.broker_id,
            address=address,
            ha_address=ha_address,
            checks=config.takeover_checks,
            lag_ms_max=config.lag_ms_max,
            unclean_hand_back_after_ms=config.unclean_hand_back_ms,
        )
        self._member = MemberMachine(
            settings,
            now,
            log_end=self._store.log.written_end,
            log_epoch=self._replication.log_epoch,
            is_log_whole=self._journal.was_whole,
            held=self._journal.held,
            seen=self._journal.seen,
        )
        self._note_log(now)

    @property
    def member(self) -> MemberMachine:
        """The member's state machine; there after `listening`."""
        assert self._member is not None, "listen first"
        return self._member

    @property
    def is_master(self) -> bool:
        """Whether this broker's log is the one that is replicated."""
        return self._is_master

    @property
    def is_elect(self) -> bool:
        """Whether masters are elected, so that messages wait for every member in sync."""
        return self._member is not None and self._member.mode is Mode.ELECT

    @property
    def waits_for_replicas(self) -> bool:
        """Whether a message is acknowledged only when enough replicas have it: in slave-consume that is a setting."""
        return self.is_elect or self._current.config.role != "ASYNC_MASTER"

    @property
    def warning(self) -> str:
        """What operators should know about the settings; "" if there is nothing."""
        mode = None if self._member is None else self._member.mode
        return settings_warning(mode, waits_for_replicas=self.waits_for_replicas)

    @property
    def is_holder(self) -> bool:
        """Whether the record names us as the serving member, whose tables count."""
        state = self._member.view.state if self._member is not None else None
        return state is not None and holder_of(state) == self._current.config.broker_id

    def is_serving(self, now: Now) -> bool:
        """Whether this member's turn at serving clients has begun and its lease is not over."""
        status = self.member.status(now)
        return status.stage in (MemberStage.SERVING, MemberStage.HANDING) and status.lease_left_ms != 0

    @property
    def timeline(self) -> list[dict[str, Any]]:
        """The last changes of the role: when (calendar ms), in which epoch, what; oldest first."""
        return self._journal.timeline

    def _members(self) -> frozenset[int] | None:
        """Return the ids of the configured members; None if the configuration is not known."""
        group = self.member.view.config
        return None if group is None else frozenset(member.broker_id for member in group.members)

    # A turn.

    def serving(self, now: Now) -> Serving:
        """See `BrokerRole`. A lease may be over."""
        if now.mono_ms >= self._permitted_until_ms and self._member is not None:
            self.member.permit(now)
            self._grant(now)
        granted, replication = self._granted, self._replication
        self._has_old_reads = self._has_old_reads or self._current.config.slave_read_enable
        replica_end = self.confirm_offset if granted.is_elect else NO_LIMIT
        replica_code, copied_to = self._copies()
        facts = (
            granted,
            replica_code,
            copied_to,
            self._visible_end,
            replica_end if granted.members is not None else 0,
            replication.is_tail_awaited,
            None if self._member is None or not self._has_old_reads else old_reads(self._member, replication),
        )
        if facts != self._facts:
            self._facts = facts
            self._serving = structs.replace(
                granted,
                replica_code=replica_code,
                copied_to=copied_to,
                visible_end=facts[3],
                replica_end=facts[4],
                awaits_tail=facts[5],
                old_reads=facts[6],
            )
        return self._serving

    def on_event(self, event: Event, turn: Turn, now: Now) -> bool:
        """Handle an event of the registry; False if it is not one."""
        return self.registry.on_event(event, turn, now)

    def owns(self, link: int) -> bool:
        """Whether a connection belongs to the registry's session."""
        return self.registry.owns(link)

    def received(self, link: int, data: bytes, turn: Turn, now: Now) -> None:
        """Take bytes of a connection it owns."""
        self.registry.received(link, data, turn, now)

    def tick(self, turn: Turn, now: Now) -> BrokerRole:
        """Hand the registry's events to the member, and carry out its orders. In mode `static` the settings go on."""
        member = self.member
        if (table := self._handover.reader.next_copy(now)) is not None:
            member.copy_offsets(table, now)
        if self._store.log.refused is not None:
            member.refuse_log(now)
        if now.mono_ms < self._due_ms and not member.has_effects and not self.registry.has_events:
            return self
        self.registry.tick(turn, now)
        for event in self.registry.take_events():
            member.receive(event, now)
        if member.view.state is not None and self._stream.count_own(counts=self.is_holder):
            self._replication.copy_again(turn, now, "the master's topics and groups count from now on")
        if self._replication.awaits_tail and (members := self._members()) is not None:
            self._replication.keep_awaiting(members - {member.id})
        if now.mono_ms >= member.deadline_ms():
            member.tick(now)
        if member.mode is Mode.STATIC:
            member.next_effects()  # decisions made before the mode was known no longer count
            if now.mono_ms >= self._again_ms and self._leave_to_settings(turn, now):
                return self._static
            self._due_ms = self._again_ms
            return self
        if self._delayed_order is not None and now.mono_ms >= self._again_ms:
            self._lead(self._delayed_order, turn, now)
        self._note_log(now)
        self._carry_out(turn, now)
        self._problems.tick(member, self.warning, now)
        registry_ms = self.registry.deadline_ms()
        member_ms = member.deadline_ms()
        self._due_ms = member_ms if registry_ms is None else min(member_ms, registry_ms)
        return self

    def _leave_to_settings(self, turn: Turn, now: Now) -> bool:
        """Continue by the settings: mode `static` is configured. Returns whether that has begun."""
        try:
            self._static.begin(now)
        except StoreError as error:
            log.error("failover: the role of the settings cannot begin yet: %s", error)
            self._again_ms = now.mono_ms + AGAIN_MS
            return False
        log.info("failover: mode static is configured, so the settings say who is the master")
        self.registry.close(turn, now)
        self._stream.end()
        return True

    def _carry_out(self, turn: Turn, now: Now) -> None:
        member = self.member
        while effects := member.next_effects():
            self._note_log(now)
            self.registry.ask([effect for effect in effects if isinstance(effect, RegistryRequest)], turn, now)
            for effect in effects:
                if isinstance(effect, BecomeMaster):
                    self._lead(effect, turn, now)
                elif isinstance(effect, BecomeSlave):
                    self._follow(effect, turn, now)
                elif isinstance(effect, PermissionChanged):
                    self._record(now, permission_text(effect), at_ms=effect.at_ms)
                elif isinstance(effect, HandOffsets):
                    self._handover.send(effect, member, turn, now)
                elif isinstance(effect, MergeOffsets):
                    self._handover.merge(effect.copied, member, now)
                elif isinstance(effect, CommandDone):
                    self._command_done(effect, turn)
                elif isinstance(effect, Note):
                    self._record(now, effect.text, effect.epoch)
            if member.stage is MemberStage.HANDING and not self._clients.consumers:
                member.on_drained(now)  # no consumer is left that could commit offsets
        self._grant(now)

    def _note_log(self, now: Now) -> None:
        member, note = self.member, self._journal.note
        is_saved = note(is_whole=member.is_log_whole, held=member.held, seen=member.seen, is_elect=self.is_elect)
        member.on_saved(now, is_saved=is_saved)

    def _record(self, now: Now, text: str, epoch: int | None = None, *, at_ms: int | None = None) -> None:
        self._journal.add(now, self.epoch if epoch is None else epoch, text, now.mono_ms if at_ms is None else at_ms)

    def _grant(self, now: Now) -> None:
        """Compute what clients may do from now on, and note until when that holds if nothing happens."""
        member, now_ms = self.member, now.mono_ms
        self._handover.reader.follow(member.view.state, member.id)
        may_read, may_write, may_commit = member.may_read(now_ms), member.may_write(now_ms), member.may_commit(now_ms)
        is_refused = not (may_read and may_write)
        why = f"broker {member.id} ({member.stage.value}) may not serve this: {member.why}" if is_refused else ""
        is_unreadable = member.mode is Mode.SLAVE_CONSUME and not may_read
        self._granted = Serving(
            is_master=self.is_master,
            epoch=self.epoch,
            is_elect=self.is_elect,
            read=None if may_read else why,
            write=None if may_write else why,
            commit=None if may_commit else why,
            sends=self._too_few() if may_write else SendRefusal(ResponseCode.NO_PERMISSION, why),
            consumers=not_readable(member, self._current.config.broker_name) if is_unreadable else None,
            takes_pulled_commits=may_commit,
            keeps_offsets=may_commit and self.is_holder,
            waits_for_replicas=self.waits_for_replicas,
            registered=self._registered(),
            members=self._members(),
        )
        self._permitted_until_ms = member.permitted_until.next_end_ms(now_ms)
        self._show()

    def _show(self) -> None:
        """Show consumers messages up to what is safe now."""
        self._visible_end = self.confirm_offset if self.is_elect and self.is_master else NO_LIMIT

    def _too_few(self) -> SendRefusal | None:
        """Return why messages are refused although this member may be written to: too few are in sync."""
        count, need = self.member.in_sync_count, self._current.config.min_in_sync
        if not self.is_elect or count >= need:
            return None
        return SendRefusal(ResponseCode.SERVICE_NOT_AVAILABLE, f"{count} members are in sync, {need} are needed")

    def deadline_ms(self) -> int:
        """Return when the next turn is needed, monotonic ms."""
        due_ms = min(self._due_ms, self._permitted_until_ms)
        return min(due_ms, self._beat_ms) if self.member.stage in (MemberStage.SERVING, MemberStage.HANDING) else due_ms

    # After the commit.

    def before_copy(self, now: Now) -> None:
        """Send slaves the topics and groups that they need before the log bytes of this turn."""
        self._stream.announce(now, is_leading=self.is_master and self.is_holder)

    def log_changed(self) -> None:
        """Report to the member that the log has grown, was truncated, or belongs to another epoch."""
        end, generations = self._store.log.written_end, self._replication.generations
        if end != self._log_end or generations is not self._generations:
            self._log_end, self._generations = end, generations
            self.member.on_log(end, self._replication.log_epoch)

    def after_commit(self, turn: Turn, now: Now) -> None:
        """Report what was written to the member, publish offsets, and send a heartbeat if one is due."""
        self.log_changed()
        is_holder = self.is_holder
        # The holder may be forbidden to take commits; a member that hands over still takes some, and is not the holder.
        is_leading = self.is_master and (is_holder or self._granted.commit is None)
        self._stream.save_changes(now, is_holder=is_holder)
        self._stream.publish(turn, now, is_leading=is_leading)
        self._barrier.note_saved(self._stream.noted)
        if self._barrier.is_waited_at:
            self._barrier.release(self._followers(), turn)
        if self._barrier.needs_beat or self.member.awaits_tables:
            self._beat_ms = min(self._beat_ms, self._last_beat_ms + HEARTBEAT_GAP_MS)
        if now.mono_ms >= self._beat_ms:
            heartbeat = self.member.heartbeat(now)
            if heartbeat is not None:
                self._replication.send_heartbeat(heartbeat, turn, now)
                self._barrier.heartbeat_sent(heartbeat.number, self._stream.version, self._stream.published_to)
                self._last_beat_ms, self._beat_ms = now.mono_ms, now.mono_ms + self.member.heartbeat_ms
        self._show()
        if self.is_elect and self._elect_code() is None:
            self._copied = max(self._copied, self.confirm_offset)

    def _followers(self) -> list[int | None]:
        """Return the connections of members that could be the master next; None for one without a connection."""
        if not self.is_elect:
            return []
        links = self._replication.masters.links
        return [links.get(member) for member in self.member.must_ack if member != self.member.id]

    def holds(self, link: int, request: Command, answer: Command) -> bool:
        """Take over a response about tables that must be copied until they are; False if it may be sent now.

        A refusal reports nothing and is sent at once.
        """
        served = self._requests[request.code]
        if not served.is_copied or self._granted.refusal(served.right) is not None:
            return False
        if not (self.is_master or self.is_holder):
            return False
        return self._barrier.holds(self._next_version(), self._followers(), link, request, answer)

    def _next_version(self) -> int:
        """Return the version of the offsets as they are now, published or not."""
        return self._stream.version + self._stream.has_changes

    @property
    def confirm_offset(self) -> int:
        """Log offset below which a message of an `elect` group is safe."""
        return self.member.confirm_offset

    def _copies(self) -> tuple[ResponseCode | None, int]:
        """Return the outcome of replicating a message stored now, and the log offset that enough replicas hold.

        The outcome is None if it has to be waited for. In `elect` the offset does not grow while too few members are in
        sync, also for messages that waited before one left.
        """
        if self.is_elect:
            return self._elect_code(), self._copied
        masters = self._replication.masters
        acked = masters.acked_offsets()
        code = masters.replica_code(acked) if self.waits_for_replicas else ResponseCode.SUCCESS
        return code, masters.copied_offset(acked)

    def _elect_code(self) -> ResponseCode | None:
        config = self.member.view.config
        wanted = min(self._current.config.in_sync_replicas, len(config.members) if config is not None else 1)
        return None if self.member.in_sync_count >= wanted else ResponseCode.SLAVE_NOT_AVAILABLE

    # Roles.

    def _lead(self, order: BecomeMaster, turn: Turn, now: Now) -> None:
        member = self.member
        self._problems.compare_role(member.id, is_master=True)
        if not self.is_master or self.epoch != order.epoch:
            self._replication.close_connections(turn, f"broker {member.id} is the master of epoch {order.epoch}")
            was_master, self._is_master, self.epoch = self.is_master, True, order.epoch
            self.elections += 1
            self.role_changes += not was_master
            self._copied = 0
            try:
                is_whole = self.is_elect or self._is_whole(was_master=was_master)
                holders = member.must_ack - {member.id}
                self._replication.lead(
                    now,
                    epoch=order.epoch,
                    is_whole=is_whole,
                    holders=holders,
                    may_give_up=not self.waits_for_replicas,
                )
            except StoreError as error:
                self._is_master = False
                self._cannot_lead(order, error, now)
                return
        self._delayed_order = None
        self.log_changed()
        member.on_ready(order.epoch, self._store.log.written_end, now)

    def _is_whole(self, *, was_master: bool) -> bool:
        """Whether no other member of a slave-consume group can have more of the log than this one, its next master."""
        member = self.member
        if was_master:
            return not self._replication.awaits_tail
        return member.is_log_whole or member.is_loss_accepted

    def _cannot_lead(self, order: BecomeMaster, error: StoreError, now: Now) -> None:
        """Leave it to another member in sync; if there is none, or masters are not elected, try again."""
        state = self.member.view.state
        if self.is_elect and state is not None and len(state.in_sync) > 1:
            self._record(now, f"the epoch cannot be begun: {error}")
            self.member.doubt_log(f"the epoch could not be saved: {error}", now)
            return
        if self._delayed_order != order:
            self._record(now, f"the epoch cannot be begun yet: {error}")
        self._delayed_order, self._again_ms = order, now.mono_ms + AGAIN_MS

    def _follow(self, order: BecomeSlave, turn: Turn, now: Now) -> None:
        self._problems.compare_role(order.master, is_master=False)
        if self.is_master or self.epoch != order.epoch:
            self._replication.close_connections(turn, f"broker {order.master} is the master of epoch {order.epoch}")
            self._drop_waiting(turn)
            self.role_changes += self.is_master
        self._is_master, self.epoch, self._delayed_order = False, order.epoch, None
        self._replication.follow(order.master, order.epoch, order.address, order.ha_address, turn, now)

    def _drop_waiting(self, turn: Turn) -> None:
        """Answer sends that wait for replicas: whether the new master has the messages is unknown."""
        self._drop_waiting_sends(StoreError("another member of the group is the master now"), turn)

    def _registered(self) -> Registered:
        """Return how this member is registered at name servers in its present role."""
        member, before = self.member, self._granted.registered
        state = member.view.state
        if state is None or member.own is None:
            return before
        broker_id = registered_id(member, before.broker_id, is_master=self.is_master)
        mode = "" if member.mode is None else member.mode.value
        return Registered(broker_id, state.epoch, member.own.weight, mode)

    # What replication reports.

    def report(self, report: Report, now: Now) -> int:
        """See `BrokerRole`."""
        match report:
            case LogEndReported():
                self._log_end_reported(report, now)
            case HeartbeatReceived():
                self.log_changed()
                return self.member.on_heartbeat(report.peer, report.heartbeat, now)
            case MemberHeard():
                self.member.on_heard(report.peer, now)
            case MemberLinked():
                self._linked(report.peer, now, is_up=report.is_up)
            case TablesSaved():
                self._barrier.saved(report.link, report.number)
            case LogChanged():
                self.log_changed()
            case LogDoubted():
                self.member.doubt_log(report.why, now, is_final=report.is_final)
            case _:
                assert_never(report)
        return 0

    def _linked(self, peer: int, now: Now, *, is_up: bool) -> None:
        self.log_changed()
        self._due_ms = 0
        self._greeted.discard(peer)
        self.member.on_link(peer, now, is_up=is_up)

    def _log_end_reported(self, reported: LogEndReported, now: Now) -> None:
        peer, acked, number = reported
        if acked >= self.member.log_end and peer not in self._greeted:
            self._greeted.add(peer)
            self._beat_ms = now.mono_ms
        link = self._replication.masters.links.get(peer)
        grows = peer not in self.member.must_ack or peer == self.member.switch_target  # else responses wait for it
        needs = self._next_version() if grows else None
        published = self._stream.version if self.is_elect else None  # a slave that serves reads gets none
        tables = self._barrier.progress(peer, link, needs=needs, published=published)
        self.member.on_report(peer, acked, number, now, tables)

    # Handing over.

    def take_offsets(self, giver: int, token: int, table: dict[str, Any]) -> str | None:
        """Merge what a member hands over. Returns why that is refused; None if the response waits until it is saved.

        Raises:
            StoreDamaged, ProtocolError: it is not a table of offsets.
        """
        if not self.member.may_take_offsets(giver, token):
            return f"broker {giver} does not hand anything over here now"
        self._handover.receive(giver, token, table)
        return None

    def tables_saved(self, settled: int, error: Exception | None, now: Now) -> None:
        """Take note that changes of tables up to number `settled` are on the device, or failed."""
        self._handover.saved(settled, self.member, now, is_saved=error is None)

    def _command_done(self, done: CommandDone, turn: Turn) -> None:
        code = ResponseCode.SUCCESS if done.is_done else ResponseCode.SYSTEM_ERROR
        for link, command in self.commands:
            if link in self._links:
                turn.send(link, encode_command(command.answer(code, remark=done.text)))
        self.commands.clear()

    def drop_link(self, link: int) -> None:
        """Forget responses that wait for a closed connection."""
        self._barrier.drop_link(link)
        self.commands = [waiting for waiting in self.commands if waiting[0] != link]

    def close(self, turn: Turn, now: Now) -> None:
        """End the session at the registry, so that other members need not wait for it to expire."""
        self.registry.close(turn, now)


RegistryRoleOf = Callable[[], RegistryRole | None]
"""Returns the role in effect if a registry decides it."""
