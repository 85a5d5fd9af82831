"""A broker's part in a group whose roles come from a registry: its `Member` decides, this carries out.

    registry ──events──► Member ──orders──► replication (lead, follow), send and pull (refuse, admit), registration
    links    ──reports, heartbeats──► Member           timeline: what happened when, and why

Before the group's configuration is read nothing is served. In mode `static` the broker then goes on by its settings,
without a registry. What a broker may do ends with its lease, so it is looked up at the start of every turn.

Kept on the disk: `config/failover.json`, whether the log may lack something it had reported; `config/timeline.json`.
Owner: the node. Source: docs/internals/failover.md, "A broker and its member".
"""

import logging
from typing import TYPE_CHECKING, Any

from tandemq.boundary import Event, Now, Turn
from tandemq.broker.failover.member_requests import call
from tandemq.broker.failover.metadata_stream import TableStream
from tandemq.broker.failover.offset_barrier import GATED, OffsetGate
from tandemq.broker.failover.registry_client import BrokerRegistry
from tandemq.broker.pull.processor import NO_LIMIT
from tandemq.codec.ha import Heartbeat
from tandemq.codec.remoting.fastjson import dumps_java
from tandemq.coordination.member.machine import MemberMachine
from tandemq.coordination.member.orders import (
    BecomeMaster,
    BecomeSlave,
    CommandDone,
    HandOffsets,
    MemberSettings,
    MemberStage,
    Note,
    PermissionChanged,
)
from tandemq.coordination.permission import holder_of
from tandemq.coordination.registry.interface import RegistryRequest
from tandemq.coordination.registry.records import Mode
from tandemq.errors import StoreError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.registry import RegistryAddress
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.json_tables import load_table, save_table
from tandemq.storage.log.epochs import EpochTable
from tandemq.storage.recovery import clear_loss_flag

if TYPE_CHECKING:
    from tandemq.broker.node import Broker

log = logging.getLogger(__name__)
FILE = "failover.json"
TIMELINE_FILE = "timeline.json"
TIMELINE_MAX = 200
"""Entries kept; the oldest go first."""
HAND_TIMEOUT_MS = 2_000
REASON = "failover"
TOO_FEW = "in sync"
MASTER_ID = 0
BEAT_GAP_MS = 10
"""Between heartbeats that answers wait for."""
AGAIN_MS = 1_000
"""A role that the disk did not let us begin is tried again after this."""
_READ = frozenset({
    Code.QUERY_CONSUMER_OFFSET, Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET, Code.SEARCH_OFFSET_BY_TIMESTAMP,
    Code.GET_EARLIEST_MSG_STORETIME, Code.LOCK_BATCH_MQ,
})  # fmt: skip
_COMMIT = frozenset({Code.UPDATE_CONSUMER_OFFSET, Code.INVOKE_BROKER_TO_RESET_OFFSET, Code.CLONE_GROUP_OFFSET})
_WRITE = frozenset({
    Code.CONSUMER_SEND_MSG_BACK, Code.UPDATE_AND_CREATE_TOPIC, Code.UPDATE_AND_CREATE_TOPIC_LIST,
    Code.DELETE_TOPIC_IN_BROKER, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, Code.DELETE_SUBSCRIPTIONGROUP,
})  # fmt: skip


class Failover:
    """What the group has decided for this broker, and what it does for the group."""

    def __init__(self, broker: "Broker", address: RegistryAddress) -> None:
        """Nothing is known, so nothing may be read or written. The registry is spoken to after `listening`."""
        config = broker.config
        self._broker = broker
        client = f"{config.cluster}/{config.broker_name}/{config.broker_id}-{broker.random.getrandbits(48):012x}"
        self.registry = BrokerRegistry(address, client, config.registry_session_ms, broker.next_link, broker.keyring)
        saved = load_table(broker.disk, FILE)
        is_noted = bool(saved["isLogWhole"]) if "isLogWhole" in saved else broker.store.log.written_end > 0
        self._is_whole = is_noted and not broker.recovered.may_have_lost
        self._noted: bool | None = None
        self._is_unnoted = False
        """Whether the disk did not take that note."""
        self._member: MemberMachine | None = None
        self.is_master = False
        self.epoch = 0
        """Of the mastership we act by; 0: none yet."""
        self.timeline: list[dict[str, Any]] = list(load_table(broker.disk, TIMELINE_FILE).get("entries", []))
        """When (calendar ms), in which epoch, what; oldest first."""
        self.commands: list[tuple[int, Command]] = []
        """Operators' commands under way: link and request."""
        self._may = (False, False, False)
        self._has_own_tables = False
        """Whether our own tables were the ones that count when the record was read last."""
        self._stream = TableStream(broker)
        self._gate = OffsetGate()
        self._due_ms = 0
        self._permitted_until_ms = 0
        self._log_end = -1
        self._generations: EpochTable | None = None
        """Log end and epochs as the member knows them."""
        self._is_short = False
        self._copied = 0
        self._beat_ms = 0
        self._beaten_ms = 0
        self._greeted: set[int] = set()
        """Members that got a heartbeat at once when they had caught up, and so know that their log is whole."""
        self._answered: dict[int, int] = {}
        """By member: version of the offsets that consumers may have heard of when answers did not wait for it yet."""
        self._waiting: BecomeMaster | None = None
        self._again_ms = 0
        """What the disk did not take: when it is tried again."""
        self._trouble, self._trouble_ms, self._said_trouble = "", 0, ""
        """What is wrong with the registry or in it, since when it is that, and what of it was logged last."""
        self._taken: list[tuple[int, int, int]] = []
        """Offsets handed to us that are being saved: which change, giver, token."""
        broker.registration.broker_id = None
        broker.pull.takes_commits = broker.pull.sends_to_slaves = False
        broker.pull.replica_limit = self.replica_limit
        self._why = "the group's configuration has not been read from the registry yet"
        broker.send.refuse(REASON, self._why, ResponseCode.NO_PERMISSION)
        broker.pull.refusal = self._why

    def listening(self, address: str, ha_address: str, now: Now) -> None:
        """Our addresses are known, so others may be told of us."""
        broker, config = self._broker, self._broker.config
        settings = MemberSettings(
            config.cluster, config.broker_name, config.broker_id, address=address, ha_address=ha_address,
            lag_ms_max=config.lag_ms_max, unclean_hand_back_after_ms=config.unclean_hand_back_ms,
        )  # fmt: skip
        self._member = MemberMachine(
            settings, now, log_end=broker.store.log.written_end, log_epoch=broker.replication.log_epoch,
            is_log_whole=self._is_whole,
        )  # fmt: skip
        self._note_whole()

    @property
    def member(self) -> MemberMachine:
        """Who decides; there after `listening`."""
        assert self._member is not None, "listen first"
        return self._member

    @property
    def is_elect(self) -> bool:
        """Whether masters are elected, and messages need every member in sync."""
        return self._member is not None and self._member.mode is Mode.ELECT

    @property
    def is_holder(self) -> bool:
        """Whether the record names us as the one who serves: our own tables are the ones that count."""
        state = self._member.view.state if self._member is not None else None
        return state is not None and holder_of(state) == self._broker.config.broker_id

    # A turn.

    def on_event(self, event: Event, turn: Turn, now: Now) -> bool:
        """An event of the turn; whether it was the registry's."""
        return self.registry.on_event(event, turn, now)

    def tick(self, turn: Turn, now: Now) -> None:
        """Take what the registry said, let the member think, do what it orders."""
        member = self.member
        if now.mono_ms < self._due_ms and not member.has_effects and not self.registry.has_events:
            return
        self.registry.tick(turn, now)
        for event in self.registry.take_events():
            member.receive(event, now)
        if member.view.state is not None:
            self._has_own_tables = self.is_holder
        if now.mono_ms >= member.deadline_ms():
            member.tick(now)
        if member.mode is Mode.STATIC:
            member.next_effects()  # nothing that is decided here counts any more
            if now.mono_ms >= self._again_ms:
                self._leave(turn, now)
            self._due_ms = self._again_ms
            return
        if self._waiting is not None and now.mono_ms >= self._again_ms:
            self._lead(self._waiting, turn, now)
        self._note_whole()
        self._carry_out(turn, now)
        self._say_trouble(now)
        registry_ms = self.registry.deadline_ms()
        member_ms = member.deadline_ms()
        self._due_ms = member_ms if registry_ms is None else min(member_ms, registry_ms)

    def _leave(self, turn: Turn, now: Now) -> None:
        """Mode `static`: go on by the settings."""
        broker = self._broker
        broker.failover = None
        try:
            broker.replication.begin_by_settings(now)
        except StoreError as error:
            log.error("failover: what the settings say cannot be begun yet: %s", error)
            broker.failover, self._again_ms = self, now.mono_ms + AGAIN_MS
            return
        log.info("failover: mode static is configured, so the settings say who is the master")
        self.registry.close(turn, now)
        self._stream.end()
        broker.send.admit(REASON)
        broker.pull.refusal = None
        broker.pull.takes_commits = broker.config.broker_id == MASTER_ID
        broker.pull.sends_to_slaves = True
        broker.registration.move(broker.config.broker_id, 0, turn, now)

    def _carry_out(self, turn: Turn, now: Now) -> None:
        member = self.member
        while effects := member.next_effects():
            self._note_whole()
            self.registry.ask([effect for effect in effects if isinstance(effect, RegistryRequest)], turn, now)
            for effect in effects:
                if isinstance(effect, BecomeMaster):
                    self._lead(effect, turn, now)
                elif isinstance(effect, BecomeSlave):
                    self._follow(effect, turn, now)
                elif isinstance(effect, PermissionChanged):
                    self._say(now, _permission_text(effect), at_ms=effect.at_ms)
                elif isinstance(effect, HandOffsets):
                    self._hand(effect, turn, now)
                elif isinstance(effect, CommandDone):
                    self._command_done(effect, turn)
                elif isinstance(effect, Note):
                    self._say(now, effect.text, effect.epoch)
            if member.stage is MemberStage.HANDING and not self._broker.clients.consumers:
                member.on_drained(now)  # nobody is there to commit anything
        self._permit(turn, now)
        self._register(turn, now)

    def _note_whole(self) -> None:
        """On the disk before anybody else can know of it; what a full disk does not take is tried again."""
        is_whole = self.member.is_log_whole
        if is_whole == self._noted:
            return
        try:
            save_table(self._broker.disk, FILE, {"isLogWhole": is_whole})
            self._noted, self._is_unnoted = is_whole, False
            if self.is_elect:
                clear_loss_flag(self._broker.disk)
        except StoreError as error:
            if not self._is_unnoted:
                log.error("failover: it cannot be noted that the log is%s whole: %s", "" if is_whole else " not", error)
            self._is_unnoted = True

    def _say(self, now: Now, text: str, epoch: int | None = None, *, at_ms: int | None = None) -> None:
        epoch = self.epoch if epoch is None else epoch
        log.warning("failover: epoch=%d mono_ms=%d %s", epoch, now.mono_ms if at_ms is None else at_ms, text)
        self.timeline = [*self.timeline[1 - TIMELINE_MAX :], {"ms": now.wall_ms, "epoch": epoch, "text": text}]
        self._broker.saver.later(TIMELINE_FILE, lambda: {"entries": self.timeline}, is_awaited=False)

    def _say_trouble(self, now: Now) -> None:
        """Log once what is wrong with the registry or in it, and once that it is over. What lasts no longer than
        a session is not told: after a restart, for instance, our own earlier one is still there."""
        found = self.member.problem(now.mono_ms) if self.registry.is_up else (
            f"the registry {self.registry.address} does not answer: until it does nobody takes over, and a broker that "
            "starts serves nothing; see whether it runs and can be reached"
        )  # fmt: skip
        if found != self._trouble:
            self._trouble, self._trouble_ms = found, now.mono_ms
        if found == self._said_trouble or now.mono_ms - self._trouble_ms < self.member.timing.session_ms * 3 // 2:
            return
        log.warning("failover: %s %s", "trouble:" if found else "over:", found or self._said_trouble)
        self._said_trouble = found

    def _permit(self, turn: Turn, now: Now) -> None:
        """What clients may do from this moment on, and until when that holds if nothing happens."""
        member, broker, at = self.member, self._broker, now.mono_ms
        may = (member.may_read(at), member.may_write(at), member.may_commit(at))
        why = "" if may[0] and may[1] else f"broker {member.id} ({member.stage.value}) may not serve this: {member.why}"
        if may != self._may or why != self._why:
            could_read, self._may, self._why = self._may[0], may, why
            broker.pull.takes_commits = may[2]
            if could_read and not may[0]:
                broker.pull.refuse(why, turn)
            if not may[2]:
                self._gate.refuse(why, turn)
            broker.pull.refusal = None if may[0] else why
            if may[1]:
                broker.send.admit(REASON)
            else:
                broker.send.refuse(REASON, why, ResponseCode.NO_PERMISSION)
        is_short = self.is_elect and may[1] and member.in_sync_count < broker.config.min_in_sync
        if is_short != self._is_short:
            self._is_short = is_short
            if is_short:
                need = broker.config.min_in_sync
                broker.send.refuse(TOO_FEW, f"{member.in_sync_count} members are in sync, {need} are needed")
            else:
                broker.send.admit(TOO_FEW)
        broker.pull.log_limit = self.confirm_offset if self.is_elect and self.is_master else NO_LIMIT
        self._permitted_until_ms = member.permitted_until.next_end_ms(at)

    def begin_turn(self, turn: Turn, now: Now) -> None:
        """Time passed since the last turn: a lease may be over."""
        if now.mono_ms >= self._permitted_until_ms:
            self.member.permit(now)
            self._permit(turn, now)

    def refusal(self, code: int) -> str | None:
        """Why a request of this code may not be answered now; None if it may, or is none of the group's business."""
        may_read, may_write, may_commit = self._may
        is_refused = (
            (not may_read and code in _READ) or (not may_commit and code in _COMMIT)
            or (not may_write and code in _WRITE)
        )  # fmt: skip
        return self._why if is_refused else None

    def deadline_ms(self) -> int:
        """When a turn is needed."""
        due_ms = min(self._due_ms, self._permitted_until_ms)
        return min(due_ms, self._beat_ms) if self.member.stage in (MemberStage.SERVING, MemberStage.HANDING) else due_ms

    @property
    def has_tables(self) -> bool:
        """Whether a master told us every table."""
        return self._stream.is_whole

    # After the commit.

    def before_copy(self, now: Now) -> None:
        """What slaves must know before they get the log bytes of this turn."""
        self._stream.announce(now, is_leading=self.is_master and self.is_holder)

    def log_changed(self) -> None:
        """The log has grown, or was cut, or belongs to another epoch."""
        broker = self._broker
        end, generations = broker.store.log.written_end, broker.replication.generations
        if end != self._log_end or generations is not self._generations:
            self._log_end, self._generations = end, generations
            self.member.on_log(end, broker.replication.log_epoch)

    def after_commit(self, turn: Turn, now: Now) -> None:
        """Tell the member what was written; a heartbeat leaves behind it when it is time."""
        self.log_changed()
        is_holder = self.is_holder
        # The holder may be forbidden to take commits; whoever hands over still takes some, and is the holder no more.
        self._stream.pump(turn, now, is_holder=is_holder, is_leading=self.is_master and (is_holder or self._may[2]))
        self._gate.noted = self._stream.noted
        if self._gate.is_waited_at:
            self._gate.release(self._followers(), turn)
        if self._gate.needs_beat:
            self._beat_ms = min(self._beat_ms, self._beaten_ms + BEAT_GAP_MS)
        if now.mono_ms >= self._beat_ms:
            heartbeat = self.member.heartbeat(now)
            if heartbeat is not None:
                self._broker.replication.beat(heartbeat, turn, now)
                self._gate.beat(heartbeat.number, self._stream.version, self._stream.told)
                self._beaten_ms, self._beat_ms = now.mono_ms, now.mono_ms + self.member.heartbeat_ms

    def _followers(self) -> list[int | None]:
        """Links of the members that could be the master next; None for one that has none."""
        if not self.is_elect:
            return []
        links = self._broker.replication.masters.links
        return [links.get(member) for member in self.member.must_ack if member != self.member.id]

    def holds(self, link: int, request: Command, answer: Command) -> bool:
        """Whether an answer has to wait; it is sent, or refused, later. A refusal tells nothing, and leaves at once."""
        if request.code not in GATED or self.refusal(request.code) is not None:
            return False
        if not (self.is_master or self.is_holder):
            return False
        return self._gate.holds(self._next_version(), self._followers(), link, request, answer)

    def _next_version(self) -> int:
        """Of the offsets as they are, told or not."""
        return self._stream.version + bool(self._broker.offsets.changed)

    @property
    def confirm_offset(self) -> int:
        """Log offset below which a message of an `elect` group is safe."""
        return self.member.confirm_offset

    def replica_limit(self) -> int:
        """Log offset up to which this member answers replica reads, whoever serves consumers: what no election takes
        back. 0 while the group's mode is not known."""
        if self._member is None or self._member.view.config is None:
            return 0
        return self.confirm_offset if self.is_elect else NO_LIMIT

    def copied_offset(self) -> int:
        """Log offset below which as many members as asked for hold the log: it does not grow while fewer are in sync,
        also for messages that waited before one of them left."""
        if self.replica_verdict() is None:
            self._copied = max(self._copied, self.confirm_offset)
        return self._copied

    def replica_verdict(self) -> ResponseCode | None:
        """Whether a message stored now waits for the members in sync (None), or what is known already."""
        config = self.member.view.config
        wanted = min(self._broker.config.in_sync_replicas, len(config.members) if config is not None else 1)
        return None if self.member.in_sync_count >= wanted else ResponseCode.SLAVE_NOT_AVAILABLE

    def wake(self, woken: list[ConsumeQueue]) -> None:
        """Answer held pulls as far as messages may be shown."""
        pull = self._broker.pull
        if self.is_elect and self.is_master:
            pull.log_limit = self.confirm_offset
        if not woken and not pull.unseen:
            return
        pull.unseen.update(dict.fromkeys(woken))
        for queue in list(pull.unseen):
            if queue.held is not None:
                pull.wake(queue)
            if pull.shows_all(queue):
                del pull.unseen[queue]

    # Roles.

    def _lead(self, order: BecomeMaster, turn: Turn, now: Now) -> None:
        broker, member = self._broker, self.member
        if not self.is_master or self.epoch != order.epoch:
            broker.replication.let_go(turn, f"broker {member.id} is the master of epoch {order.epoch}")
            was_master, self.is_master, self.epoch = self.is_master, True, order.epoch
            self._copied = 0
            try:
                if self.is_elect:
                    broker.replication.lead(now, epoch=order.epoch)
                elif not was_master:
                    broker.replication.lead(now, epoch=None)
                    clear_loss_flag(broker.disk)
            except StoreError as error:
                self.is_master = False
                self._cannot_lead(order, error, now)
                return
        self._waiting = None
        self.log_changed()
        member.on_ready(order.epoch, broker.store.log.written_end, now)

    def _cannot_lead(self, order: BecomeMaster, error: StoreError, now: Now) -> None:
        """Leave it to another member in sync; if there is none, or roles are fixed, try again."""
        state = self.member.view.state
        if self.is_elect and state is not None and len(state.in_sync) > 1:
            self._say(now, f"the epoch cannot be begun: {error}")
            self.member.doubt_log(f"the epoch could not be saved: {error}", now)
            return
        if self._waiting != order:
            self._say(now, f"the epoch cannot be begun yet: {error}")
        self._waiting, self._again_ms = order, now.mono_ms + AGAIN_MS

    def _follow(self, order: BecomeSlave, turn: Turn, now: Now) -> None:
        broker = self._broker
        if self.is_master or self.epoch != order.epoch:
            broker.replication.let_go(turn, f"broker {order.master} is the master of epoch {order.epoch}")
            self._drop_waiting(turn)
        self.is_master, self.epoch, self._waiting = False, order.epoch, None
        broker.replication.follow(order.master, order.epoch, order.address, order.ha_address, turn, now)

    def _drop_waiting(self, turn: Turn) -> None:
        """Messages that were to be copied: the new master may have them, or not."""
        self._broker.drop_waiting(StoreError("another member of the group is the master now"), turn)
        self._broker.pull.unseen.clear()

    def _register(self, turn: Turn, now: Now) -> None:
        """Tell the name servers our part: the one that may be written to is number 0; whom nobody may use is not there.

        A slave with number 0 of its own takes that of its master meanwhile.
        """
        member, registration = self.member, self._broker.registration
        state = member.view.state
        if state is None or member.own is None or not registration.address:
            return
        broker_id: int | None
        if state.master != member.id:
            broker_id = member.id if member.id != MASTER_ID else state.master
        elif member.stage in (MemberStage.SERVING, MemberStage.HANDING):
            broker_id = MASTER_ID
        else:
            broker_id = registration.broker_id if registration.broker_id == MASTER_ID and self.is_master else None
            broker_id = None if member.stage is MemberStage.AWAITING else broker_id
        mode = "" if member.mode is None else member.mode.value
        registration.move(broker_id, state.epoch, turn, now, weight=member.own.weight, mode=mode)

    # What links bring.

    def linked(self, peer: int, now: Now, *, is_up: bool) -> None:
        """A replication link with a member is ready, or gone."""
        self.log_changed()
        self._due_ms = 0
        self._greeted.discard(peer)
        self.member.on_link(peer, now, is_up=is_up)

    def heard(self, peer: int, now: Now) -> None:
        """Bytes came from a member."""
        self.member.on_heard(peer, now)

    def reported(self, peer: int, acked: int, number: int, now: Now) -> None:
        """A member told what it has, and by which heartbeat of ours it promises; 0: by none."""
        if acked >= self.member.log_end and peer not in self._greeted:
            self._greeted.add(peer)
            self._beat_ms = now.mono_ms
        link = self._broker.replication.masters.links.get(peer)
        self._gate.echoed(link, number)
        if peer not in self.member.must_ack:  # from then on answers wait for it
            self._answered[peer] = self._next_version()
        has_tables = self._gate.has(link, self._answered.get(peer, 0))
        self.member.on_report(peer, acked, number, now, has_tables=has_tables)

    def beaten(self, peer: int, heartbeat: Heartbeat, now: Now) -> int:
        """A member that serves sent a heartbeat. Returns the number to echo; 0: no promise."""
        self.log_changed()
        return self.member.on_heartbeat(peer, heartbeat, now)

    def told(self, kind: int, payload: bytes) -> None:
        """The master told of its tables; whoever serves itself knows better, also when the record is lost meanwhile."""
        if not self._has_own_tables:
            self._stream.take(kind, payload)

    def doubt_log(self, why: str, now: Now, *, is_final: bool = False) -> None:
        """The log may lack, or have lost, something that was acknowledged. `is_final`: until the next start."""
        self.member.doubt_log(why, now, is_final=is_final)

    # Handing over.

    def _hand(self, order: HandOffsets, turn: Turn, now: Now) -> None:
        broker, member = self._broker, self.member
        record = (member.view.live or {}).get(order.to)
        if record is None or not record.address:
            member.on_handed(order.token, now, is_stored=False)
            return
        command = Command(
            Code.TANDEM_HAND_OFFSETS, fields={"from": str(member.id), "token": str(order.token)},
            body=dumps_java({"offsets": broker.offsets.as_json(), "delays": broker.delay.as_json()}),
        )  # fmt: skip

        def on_answer(answer: Command | None, at: Now) -> None:
            is_stored = answer is not None and answer.code == ResponseCode.SUCCESS
            member.on_handed(order.token, at, is_stored=is_stored)

        call(broker, record.address, command, HAND_TIMEOUT_MS, on_answer, turn, now)

    def take_offsets(self, giver: int, token: int, table: dict[str, Any]) -> str | None:
        """Merge what a member hands over; it may be answered when it is saved. Says why not, if so.

        Raises:
            StoreDamaged, ProtocolError: it is no table of offsets.
        """
        if not self.member.may_take_offsets(giver, token):
            return f"broker {giver} does not hand anything over here now"
        broker = self._broker
        broker.offsets.merge_positions(table.get("offsets") or {})
        broker.delay.advance(table.get("delays") or {})
        broker.offsets.save(is_awaited=True)
        broker.delay.save(is_awaited=True)
        self._taken.append((broker.saver.asked, giver, token))
        return None

    def saved(self, settled: int, error: Exception | None, now: Now) -> None:
        """Tables are on the disk, or could not be written."""
        taken, self._taken = self._taken, [waiting for waiting in self._taken if waiting[0] > settled]
        for ticket, giver, token in taken:
            if ticket <= settled and error is None:
                self.member.on_taken(giver, token, now)

    def _command_done(self, done: CommandDone, turn: Turn) -> None:
        code = ResponseCode.SUCCESS if done.is_done else ResponseCode.SYSTEM_ERROR
        for link, command in self.commands:
            self._broker.answer_later(link, command.answer(code, remark=done.text), turn)
        self.commands.clear()

    def drop_link(self, link: int) -> None:
        """Whoever asked there does not wait any more."""
        self._gate.drop_link(link)
        self.commands = [waiting for waiting in self.commands if waiting[0] != link]

    def close(self, turn: Turn, now: Now) -> None:
        """The broker stops: others need not wait for its session to end."""
        self.registry.close(turn, now)


def _permission_text(change: PermissionChanged) -> str:
    may = {(True, True): "be read and written", (True, False): "be read", (False, True): "be written"}
    what = may.get((change.may_read, change.may_write))
    return f"may {what}: {change.why}" if what else f"may neither be read nor written: {change.why}"
