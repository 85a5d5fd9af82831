"""One broker: links in, commands by code, one commit per turn, answers out.

Source: docs/reference/requests.md; RocketMQ BrokerController and its processors.
"""

import logging
from collections.abc import Sequence
from random import Random

from tandemq.boundary import Closed, Disk, Event, HandshakeFailed, Job, JobDone, LinkKind, Now, Opened, Outbox, Turn
from tandemq.broker.connections.client_requests import ClientCalls, MembershipNotifier
from tandemq.broker.connections.connection import Link, pack_host
from tandemq.broker.connections.housekeeping import Housekeeping
from tandemq.broker.connections.outbound import Peers
from tandemq.broker.context import CurrentConfig, CurrentTurn, Handler, Machine
from tandemq.broker.failover.service import Failover
from tandemq.broker.ha.service import Replication
from tandemq.broker.integrity.damage_table import Damages
from tandemq.broker.integrity.scrubber import Scrubber
from tandemq.broker.maintenance.registration import Registration
from tandemq.broker.maintenance.upkeep import Upkeep
from tandemq.broker.pull.processor import PULLS, PullPath
from tandemq.broker.send.delay import DelayedMessages
from tandemq.broker.send.processor import SendPath
from tandemq.broker.send.response import doubt_acks, doubtful, recode
from tandemq.broker.send.send_state import Ack
from tandemq.broker.state.clients import Clients, QueueLocks
from tandemq.broker.state.config_overrides import ChangedSettings
from tandemq.broker.state.consumer_offsets import ConsumerOffsets
from tandemq.broker.state.groups import Groups
from tandemq.broker.state.persistence import SAVED_FIRST, Saver
from tandemq.broker.state.schedule import Schedule
from tandemq.broker.state.stats import Stats
from tandemq.broker.state.topics import Topics, refuse_unsupported
from tandemq.codec.remoting.frame import RawFrame, decode_command, encode_command
from tandemq.codec.remoting.header import FORM_JSON
from tandemq.config.settings import BrokerConfig
from tandemq.errors import ProtocolError, StoreError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.registry import parse_address
from tandemq.replication.acknowledged import copied_offset, enough_in_reach
from tandemq.replication.authentication import Keyring
from tandemq.replication.waiters import Waiters
from tandemq.storage.recovery import Recovered, open_store
from tandemq.storage.store import FlushJob, Store, StoreConfig

log = logging.getLogger(__name__)
SAVE_AGAIN_MS = 5_000
NEVER = 1 << 62


class Broker:
    """The broker as a plain object; see `boundary.Node`."""

    def __init__(
        self, config: BrokerConfig, disk: Disk, outbox: Outbox, random: Random, machine: Machine, now: Now,
        delays_ms: tuple[int, ...], *, accept_loss: bool = False, keyring: Keyring | None = None,
    ) -> None:  # fmt: skip
        """Open the store and load the tables; nothing is listened on yet. `keyring`: replication asks for proofs.

        Raises:
            StoreDamaged, DiskFailed, StoreError: the store directory cannot be used.
        """
        self.saver = Saver(disk)
        self.changes = ChangedSettings(self.saver)
        config = self.changes.laid_over(config)
        self.current = CurrentConfig(config)
        self.current_turn = CurrentTurn()
        self.disk = disk
        self.outbox = outbox
        self.random = random
        self.machine = machine
        self.keyring = keyring
        self.started_ms = now.wall_ms
        refuse_unsupported(disk)
        self.store, self.recovered = _open(disk, config, machine, delays_ms)
        self.topics = Topics(self.saver, self.store, config, now.wall_ms)
        self.groups = Groups(self.saver, config, now.wall_ms)
        self.offsets = ConsumerOffsets(self.saver, now.wall_ms)
        self.clients = Clients()
        self.client_calls = ClientCalls()
        self.locks = QueueLocks(config.lock_live_ms)
        self.schedule = Schedule()
        self.peers = Peers(self.next_link)
        self.damages = Damages()
        self.send = SendPath(config, self.store, self.topics, self.groups, random, pack_host("127.0.0.1:0"))
        self.pull = PullPath(
            config, self.store, self.topics, self.groups, self.clients, self.offsets, machine.memory_bytes, outbox,
            self.damages,
        )  # fmt: skip
        self.registration = Registration(
            config, self.topics, self.peers, self.schedule, self.current_turn, self._master_found
        )
        self.delay = DelayedMessages(self, now)
        self.membership = MembershipNotifier(self.clients, self.groups)
        self.handlers: dict[int, Handler] = {}
        self.links: dict[int, Link] = {}
        self.waiters = Waiters()
        self._link_count = 0
        self._unsaved_acks: list[tuple[list[Ack], Now]] = []
        self._unsaved: list[tuple[int, int, bytes]] = []
        """Answers that wait until tables are saved: which change, link, answer."""
        self.faults = 0
        """Links closed because of errors of our own."""
        self._puts_seen = 0
        self._flushing: Job | None = None
        self._stopping = False
        self._sync_flush = config.flush_type == "SYNC_FLUSH"
        self.store.log.zero_ahead = self._sync_flush
        self.failover: Failover | None = None
        """Our part in a group with a registry; None without one."""
        if config.registry_address:
            self.failover = Failover(self, parse_address(config.registry_address))
        self.replication = Replication(self, now, accept_loss=accept_loss)
        self._install(now)

    @property
    def config(self) -> BrokerConfig:
        """The settings in force."""
        return self.current.config

    @property
    def turn_out(self) -> Turn:
        """The output of the turn at hand."""
        return self.current_turn.out

    @property
    def is_master(self) -> bool:
        """Whether our log is the one that is copied."""
        return self.config.role != "SLAVE" if self.failover is None else self.failover.is_master

    @property
    def is_elect(self) -> bool:
        """Whether masters of our group are elected, so that messages wait for every member in sync."""
        return self.failover is not None and self.failover.is_elect

    def _install(self, now: Now) -> None:
        every = self.schedule.every
        config = self.config
        self.housekeeping = Housekeeping(
            self.links,
            self.clients,
            self.locks,
            self.send.dead_letters,
            self.schedule,
            self.current,
            self.current_turn,
            self.replication.masters.peers.__getitem__,
            now,
        )
        every(lambda: self.config.offsets_persist_ms, lambda _: self.offsets.save(),
              first_ms=now.mono_ms + config.offsets_persist_ms)  # fmt: skip
        self.upkeep = Upkeep(
            self.store,
            self.disk,
            self.send,
            self.delay,
            self.schedule,
            self,
            self.current,
            self.current_turn,
            self.replication.masters.needed,
            self.machine.utc_offset_s,
            now,
        )
        self.scrubber = Scrubber(self, now)
        self.stats = Stats(
            self.store,
            self.send,
            self.pull,
            self.schedule,
            self,
            self.current,
            self.replication.transferred,
            self.machine.utc_offset_s,
            now,
        )
        every(lambda: self.config.flush_interval_ms, self._begin_flush, first_ms=now.mono_ms + config.flush_interval_ms)
        from tandemq.broker.processors import table  # noqa: PLC0415  # it knows the broker, which installs them

        self.handlers = table.install(self)

    def listening(self, address: str, ha_address: str, now: Now) -> None:
        """The shell listens: our addresses, "ip:port", as others shall use them."""
        self.registration.address = address
        self.registration.ha_address = ha_address
        if self.failover is not None:
            self.failover.listening(address, ha_address, now)
        self.send.set_store_host(pack_host(address))
        self.schedule.every(
            lambda: self.config.register_ms, lambda at: self.registration.register(self.turn_out, at),
            first_ms=now.mono_ms,
        )  # fmt: skip

    def reconfigure(self, config: BrokerConfig, now: Now) -> None:
        """Take new settings while running: who kept the old ones gets them here; a period holds from its next run."""
        before, self.current.config = self.config, config
        self.current.version.next(now.wall_ms)
        self._sync_flush = config.flush_type == "SYNC_FLUSH"
        self.store.log.zero_ahead = self._sync_flush
        self.topics.adopt_config(config, now.wall_ms)
        self.groups.adopt_config(config)
        self.send.adopt_config(config)
        self.pull.adopt_config(config)
        self.registration.adopt_config(config)
        self.upkeep.adopt_config(config)
        self.replication.adopt_config(config)
        self.scrubber.adopt_config(now)
        if (config.permission, config.weight) != (before.permission, before.weight):
            self.topics.touch(now.wall_ms)

    def next_link(self) -> int:
        """A number for a link we ask for."""
        self._link_count -= 1
        return self._link_count

    # A turn.

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        """See `boundary.Node`."""
        turn = self.current_turn.out = Turn()
        if self.failover is not None:
            self.failover.begin_turn(turn, now)
        for event in events:
            if not isinstance(event, Closed):
                self._on_event(event, turn, now)
        if self.failover is not None:
            self.failover.tick(turn, now)
        self.pull.begin_turn(turn)
        self.housekeeping.begin_turn(now)
        self.send.together.read(self.links, received)
        for number, data in received:
            try:
                self._take(number, data, turn, now)
            except Exception:  # the outermost loop of a link: what goes wrong there ends there
                log.exception("link: %d closed, an error of ours", number)
                self.faults += 1
                self.send.acks = [ack for ack in self.send.acks if ack[0] != number]
                turn.closes.append((number, "an error of ours"))
        self.housekeeping.make_room(turn, now)
        self.send.store_waiting(now)
        for event in events:
            if isinstance(event, Closed):
                self._closed(event, turn, now)
        self.schedule.run_due(now)
        self.peers.expire(turn, now)
        if len(self.client_calls):
            self.client_calls.expire(now)
        self.pull.answer_due(turn, now)
        self.replication.tick(turn, now)
        if self.failover is not None:
            self.failover.tick(turn, now)
        self._commit(turn, now)
        self.replication.after_commit(turn, now)
        if self.failover is not None:
            self.failover.after_commit(turn, now)
        self.release(turn, now)
        self._wake(turn)
        if self.topics.changed and self.registration.address:
            self.registration.register(turn, now)
        saving = self.saver.begin()
        if saving is not None:
            turn.jobs.append(saving)
        return turn

    def deadline_ms(self) -> int | None:
        """See `boundary.Node`."""
        times = (
            self.schedule.next_ms(), self.peers.deadline_ms(), self.pull.held.next_ms(), self.pull.waiting_ms(),
            self.waiters.deadline_ms(), self.replication.deadline_ms(), self.client_calls.deadline_ms(),
            self.failover.deadline_ms() if self.failover is not None else None,
        )  # fmt: skip
        return min([time for time in times if time is not None], default=None)

    def _on_event(self, event: Event, turn: Turn, now: Now) -> None:
        if self.failover is not None and self.failover.on_event(event, turn, now):
            return
        if isinstance(event, Opened):
            if self.peers.owns(event.link):
                self.peers.opened(event.link, event.local, turn)
            elif event.kind in (LinkKind.HA_MASTER, LinkKind.HA_SLAVE):
                self.replication.opened(event, now)
            elif event.kind in (LinkKind.REMOTING, LinkKind.FAST):
                self.links[event.link] = self.housekeeping.opened(event, now)
        elif isinstance(event, JobDone):
            self._job_done(event, turn, now)
        elif isinstance(event, HandshakeFailed):
            self.replication.turned_away(event, now)

    def _closed(self, event: Closed, turn: Turn, now: Now) -> None:
        if self.failover is not None and self.failover.on_event(event, turn, now):
            return
        if self.peers.owns(event.link):
            address = self.peers.closed(event.link, now)
            if not self._stopping:
                self.registration.closed(address, now)
        elif self.replication.owns(event.link):
            self.replication.closed(event.link, event.reason, now)
        elif self.links.pop(event.link, None) is not None:
            self.housekeeping.unfinished.drop(event.link)
            self.pull.drop_link(event.link)
            self.client_calls.link_closed(event.link, now)
            if self.failover is not None:
                self.failover.drop_link(event.link)
            self.membership.notify(self.clients.link_closed(event.link), turn)

    # Requests.

    def _take(self, number: int, data: bytes, turn: Turn, now: Now) -> None:
        link = self.links.get(number)
        if link is not None:
            self._receive(link, data, turn, now)
        elif self.replication.owns(number):
            self.replication.received(number, data, turn, now)
        elif self.peers.owns(number):
            self.peers.received(number, data, turn, now)
        elif self.failover is not None and self.failover.registry.owns(number):
            self.failover.registry.received(number, data, turn, now)

    def _receive(self, link: Link, data: bytes, turn: Turn, now: Now) -> None:
        link.seen_ms = now.mono_ms
        data = self.send.together.take(link, data)
        at, frames = 0, link.decoder.feed(data) if data else []
        while at < len(frames):
            form, header, _ = frame = frames[at]
            is_pull = form == FORM_JSON and b'"code":11,' in header and link.kind is LinkKind.REMOTING
            if is_pull and self.pull.take_frame(link.number, header, turn, now):
                at += 1
            elif (stop := self.send.take_alike(link, frames, at, now)) > at:
                at = stop
            elif self._handle(link, frame, turn, now):
                at += 1
            else:
                break
        if link.decoder.error is not None:
            self.housekeeping.close(link, str(link.decoder.error), turn, now)

    def _handle(self, link: Link, frame: RawFrame, turn: Turn, now: Now) -> bool:
        """Answer any request; False if the link must go."""
        self.send.store_waiting(now)
        try:
            command = decode_command(frame)
        except ProtocolError as error:
            self.housekeeping.close(link, str(error), turn, now)
            return False
        if command.is_response:
            self.answered(link, command, now)
            return True
        asked = self.saver.asked
        answer = self._answer(link, command, turn, now)
        if answer is not None and not command.is_oneway:
            data = encode_command(answer)
            self.housekeeping.answered.note(link.number, len(data))
            if self.saver.asked > asked or (self.saver.is_behind and command.code in SAVED_FIRST):
                self._unsaved.append((self.saver.asked, link.number, data))
            elif self.failover is None or not self.failover.holds(link.number, command, answer):
                turn.send(link.number, data)
        return True

    def _answer(self, link: Link, command: Command, turn: Turn, now: Now) -> Command | None:
        refusal = self.failover.refusal(command.code) if self.failover is not None else None
        if refusal is not None:
            return command.answer(ResponseCode.NO_PERMISSION, remark=refusal)
        busy = None if command.is_oneway else self.housekeeping.answered.refusal(link.number)
        if busy is not None:
            return command.answer(ResponseCode.SYSTEM_BUSY, remark=busy)
        try:
            if command.code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
                self.send.take(link, command, now)
                return None
            if command.code in PULLS:
                if link.kind is LinkKind.REMOTING:
                    return self.pull.take(link.number, command, turn, now)
            elif command.code in self.handlers:
                return self.handlers[command.code](link, command, now)
        except ProtocolError as error:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        except StoreError as error:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        return command.answer(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {command.code} not supported"
        )

    def answer_later(self, link: int, answer: Command, turn: Turn) -> None:
        """Answer a request that had to wait, if whoever asked is still there."""
        if link in self.links:
            turn.send(link, encode_command(answer))

    def answered(self, link: Link, command: Command, now: Now) -> None:
        """A client answered a request of ours."""
        self.client_calls.answered(link.number, command, now)

    # Writing and acknowledging.

    def _commit(self, turn: Turn, now: Now) -> None:
        acks, self.send.acks = self.send.acks, []
        try:
            written = self.store.commit()
            self.delay.committed()
        except StoreError as error:
            self.delay.failed()
            self.upkeep.write_failures.note(error, now)
            self._commit_failed(acks, error, turn)
            return
        if written and self.upkeep.write_failures.count:
            self.upkeep.write_failures.over(now)
        if self._sync_flush:
            self._begin_flush(now)
        if acks and self.saver.is_behind:
            self._unsaved_acks.append((acks, Now(now.mono_ms, now.wall_ms)))
        elif acks:
            self._acknowledge(acks, turn, now)

    def _wake(self, turn: Turn) -> None:
        """Pulls that wait for what was stored."""
        woken, self.store.woken = self.store.woken, []
        if self.failover is not None:
            self.failover.wake(woken)
        else:
            for queue in woken:
                self.pull.wake(queue)
        self.pull.answer_woken(turn)

    def _commit_failed(self, acks: list[Ack], error: StoreError, turn: Turn) -> None:
        self.store.woken.clear()
        for link, answers, end, _, count in acks:
            self.stats.failed_puts += count if end else 0
            if answers:
                failed = recode(answers, ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error)) if end else answers
                turn.send(link, failed)

    def _acknowledge(self, acks: list[Ack], turn: Turn, now: Now) -> None:
        taken, self._puts_seen = self.send.count - self._puts_seen, self.send.count
        if self.is_elect and not self.is_master:
            doubt_acks(acks, StoreError("another member of the group is the master now"), turn)
            return
        if self._sync_flush or self.config.role == "SYNC_MASTER" or self.is_elect:
            self._acknowledge_later(acks, turn, now)
            return
        for link, answers, _, _, _ in acks:
            if answers:
                turn.send(link, answers)
        self.stats.put_times.add(0, taken)

    def _acknowledge_later(self, acks: list[Ack], turn: Turn, now: Now) -> None:
        replica_code = self.replica_verdict()
        flush_due_ms = now.mono_ms + self.config.sync_flush_timeout_ms
        replica_due_ms = now.mono_ms + self.config.slave_timeout_ms
        for link, answers, end, waits, count in acks:
            if not answers:
                continue
            if waits and end:
                self.waiters.add((link, answers, end, flush_due_ms, replica_due_ms, replica_code, count))
            else:
                turn.send(link, answers)

    def replica_verdict(self) -> ResponseCode | None:
        """Whether a message stored now needs to wait for replicas: None if so, else what is known already."""
        if self.failover is not None and self.failover.is_elect:
            return self.failover.replica_verdict()
        if self.config.role != "SYNC_MASTER" or self.config.in_sync_replicas <= 1:
            return ResponseCode.SUCCESS
        acked = self.replication.masters.acked_offsets()
        needed = self.config.in_sync_replicas - 1
        if enough_in_reach(acked, needed, self.store.log.written_end, self.config.ha_lag_bytes_max):
            return None
        return ResponseCode.SLAVE_NOT_AVAILABLE

    def copied_offset(self) -> int:
        """The log offset up to which enough replicas have the bytes."""
        if self.failover is not None and self.failover.is_elect:
            return self.failover.copied_offset()
        return copied_offset(self.replication.masters.acked_offsets(), self.config.in_sync_replicas - 1)

    def release(self, turn: Turn, now: Now) -> None:
        """Let answers go whose wait is over."""
        if not len(self.waiters):
            return
        flushed = self.store.log.flushed_offset if self._sync_flush else NEVER
        sends = turn.sends
        for link, answer, code in self.waiters.release(flushed, self.copied_offset(), now.mono_ms):
            if code is not ResponseCode.SUCCESS:
                answer = recode(answer, code)
            if link in sends:
                sends[link].append(answer)
            else:
                sends[link] = [answer]
        for flush_due_ms, count in self.waiters.released:
            self.stats.put_times.add(now.mono_ms - flush_due_ms + self.config.sync_flush_timeout_ms, count)

    # Flushing.

    def _begin_flush(self, _now: Now) -> None:
        """Start a sync of the log unless one is under way: what arrives meanwhile shares the next."""
        if self._flushing is None:
            work = self.store.begin_flush()
            if work is not None:
                self._flushing = Job("flush", work.run, work, work.files)
                self.turn_out.jobs.append(self._flushing)

    def _job_done(self, event: JobDone, turn: Turn, now: Now) -> None:
        if self.saver.job_done(event.job, event.error):
            self._saved(event.error, turn, now)
            return
        if event.job is not self._flushing:
            if not self.scrubber.job_done(event, turn, now):
                self.upkeep.job_done(event.job, event.error)
            return
        self._flushing = None
        if event.error is not None:
            self.disk_failed(event.error, turn, now)
            return
        assert isinstance(event.job.token, FlushJob)
        self.store.end_flush(event.job.token)

    def disk_failed(self, error: Exception, turn: Turn, now: Now) -> None:
        """A sync of the log failed, or a write in its middle: nobody knows what the system dropped."""
        log.critical("store: a sync failed; nothing more is written or acknowledged until a restart: %s", error)
        self.store.flush_failed(error)
        self.send.refuse("disk failed", f"the disk failed: {error}")
        self.drop_waiting(error, turn)
        self.doubt(f"the disk failed: {error}", now, is_final=True)

    def drop_waiting(self, error: Exception, turn: Turn) -> None:
        """Whether messages whose answers wait are, or stay, in the group's log is unknown."""
        for link, answer in self.waiters.take_all():
            turn.send(link, doubtful(answer, error))
        for acks, _ in self._unsaved_acks:
            doubt_acks(acks, error, turn)
        self._unsaved_acks.clear()

    def doubt(self, why: str, now: Now, *, is_final: bool = False) -> None:
        """The log may lack something that was acknowledged: the group must know. `is_final`: until the next start."""
        if self.failover is not None:
            self.failover.doubt_log(why, now, is_final=is_final)

    def _saved(self, error: Exception | None, turn: Turn, now: Now) -> None:
        """Tables are saved, or could not be: answers that waited for them may go."""
        settled = self.saver.settled
        if self.failover is not None:
            self.failover.saved(settled, error, now)
        for ticket, link, answer in self._unsaved:
            if ticket <= settled and error is not None:
                answer = recode(answer, ResponseCode.SYSTEM_ERROR, remark=f"in effect, but not saved yet: {error}")
            if ticket <= settled:
                turn.send(link, answer)
        self._unsaved = [waiting for waiting in self._unsaved if waiting[0] > settled]
        if error is not None:
            log.error("tables: could not be saved, and are tried again: %s", error)
            self.schedule.at(now.mono_ms + SAVE_AGAIN_MS, lambda _: self.saver.again())
        if not self.saver.is_behind:
            for acks, stored in self._unsaved_acks:
                if self.store.log.refused is None:
                    self._acknowledge(acks, turn, stored)
                else:
                    doubt_acks(acks, self.store.log.refused, turn)
            self._unsaved_acks.clear()

    def _master_found(self, master: str, ha: str, now: Now) -> None:
        """A name server told where our master is."""
        if self.replication.slave is not None:
            self.replication.slave.master_found(master, ha, now)

    # Stopping.

    def stop(self, now: Now) -> Turn:
        """Say goodbye to the name servers; after its bytes have left call `close`."""
        turn = self.current_turn.out = Turn()
        self._stopping = True
        self.registration.unregister(turn)
        if self.failover is not None:
            self.failover.close(turn, now)
        return turn

    def close(self) -> None:
        """Save everything and close the store cleanly.

        Raises:
            StoreError: something could not be written; the next start will check the log.
        """
        self.offsets.save()
        self.topics.save()
        self.groups.save()
        self.scrubber.save()
        self.replication.masters.save_offsets()
        self.saver.finish()
        self.delay.close()
        self.store.close()


def _open(disk: Disk, config: BrokerConfig, machine: Machine, delays_ms: tuple[int, ...]) -> tuple[Store, Recovered]:
    return open_store(
        disk,
        StoreConfig(
            config.segment_bytes, config.queue_file_bytes, config.index_enable, config.index_slots,
            config.index_entries, delays_ms, machine.boot_id,
        ),
    )  # fmt: skip
