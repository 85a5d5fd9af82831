"""The master's side of replication: one session per slave, who counts, where a slave goes on, what is taken back."""

import logging
from ipaddress import ip_address
from typing import TYPE_CHECKING

from isal.isal_zlib import crc32

from tandemq.boundary import Now, Opened, Turn
from tandemq.broker.ha.replica_progress import SlaveOffsets
from tandemq.broker.ha.truncation import correct_progress
from tandemq.codec.ha import TAIL_CHECK_BYTES, TAIL_PAGE_BYTES, Heartbeat, MasterHello, SlaveHello, page_crcs
from tandemq.errors import StoreError
from tandemq.refusals import Refusals
from tandemq.replication import master
from tandemq.replication.authentication import MasterProver
from tandemq.storage.json_tables import load_table, save_table
from tandemq.storage.log.epochs import common_end
from tandemq.storage.log.scan import LogFault, faults_within

if TYPE_CHECKING:
    from tandemq.broker.ha.service import Replication
    from tandemq.broker.node import Broker

log = logging.getLogger(__name__)
REPLICAS_FILE = "replicas.json"
ACCEPT_AGAIN_MS = 1_000
"""When a full disk is tried again that could not take the note of an accepted loss."""
LOST_TAIL = "lost tail"
STORE_LOST = "this master lost its store; start it on a copy of the slave's store"


class MasterSide:
    """What a master knows of its slaves; idle on a slave, whose replication port refuses everybody."""

    def __init__(self, broker: "Broker", owner: "Replication") -> None:
        """Slaves that were known before; nobody is served before `begin`, but for `elect` groups."""
        self._broker = broker
        self._owner = owner
        self.sessions: dict[int, master.MasterSession] = {}
        self.peers: dict[int, str] = {}
        self.links: dict[int, int] = {}
        """In a group with a registry: members that copy from us, and their link."""
        self._speakers: dict[str, int] = {}
        self.refusals = Refusals()
        self._addresses: dict[int, str] = {}
        """Where each slave takes requests, as it said when it introduced itself."""
        self._waits_for_absent = True
        self._refused_ms = -60_000
        self._refused_count = 0
        saved = load_table(broker.disk, REPLICAS_FILE)
        self._known: set[int] = {int(number) for number in saved.get("brokerIds", [])}
        self._awaited: set[int] = {int(number) for number in saved.get("awaitedIds", [])}
        """Slaves that may hold what was lost here. Saved: a restart while they are awaited forgets none."""
        self._offsets = SlaveOffsets(broker.saver)
        self._accept_at_ms: int | None = None

    # Taking back what a crash of the machine lost.

    def begin(self, now: Now, *, accept_loss: bool) -> None:
        """We are the master, by settings or by the group's configuration; once per life."""
        broker = self._broker
        self._waits_for_absent = not accept_loss
        if not self._owner.generations:
            self._owner.set_generations([(1, broker.store.log.start)])
        if not broker.recovered.may_have_lost and not self._awaited:
            correct_progress(broker.store, broker.offsets, broker.delay)
            return
        if accept_loss or not self._known:
            self._new_generation("the loss is accepted" if accept_loss else "no slave is known")
            return
        if broker.recovered.may_have_lost:
            self._awaited = set(self._known)
            self._save_replicas()
        broker.pull.is_tail_awaited = True
        broker.send.refuse(
            LOST_TAIL,
            f"the machine went down; waiting for slave {sorted(self._awaited)}, which may hold what was lost here",
        )
        log.warning(
            "master: may have lost its tail behind log end %d; waiting for slaves %s",
            broker.store.log.end,
            sorted(self._awaited),
        )
        if broker.config.role == "ASYNC_MASTER":
            self._accept_at_ms = now.mono_ms + broker.config.accept_loss_ms

    def _new_generation(self, why: str) -> None:
        broker = self._broker
        end = broker.store.log.end
        number = self._owner.generations[-1][0] + 1
        self._owner.set_generations([*self._owner.generations, (number, end)])
        self._take_messages()
        for session in self.sessions.values():
            session.end("a new generation of the log began here")
        log.warning("master: generation %d begins at log offset %d: %s", number, end, why)

    def _accept_loss(self, now: Now) -> None:
        try:
            self._new_generation("no slave answered in time, ASYNC_MASTER accepts the loss")
        except StoreError as error:
            log.error("master: the loss cannot be noted, tried again in %d ms: %s", ACCEPT_AGAIN_MS, error)
            self._accept_at_ms = now.mono_ms + ACCEPT_AGAIN_MS

    def _take_messages(self) -> None:
        correct_progress(self._broker.store, self._broker.offsets, self._broker.delay)
        if self._awaited:
            self._awaited.clear()
            self._note_answers()
        self._accept_at_ms = None
        self._broker.pull.is_tail_awaited = False
        self._broker.send.admit(LOST_TAIL)

    def _answered(self, broker_id: int) -> None:
        if broker_id in self._awaited:
            self._awaited.discard(broker_id)
            self._note_answers()
            if not self._awaited:
                # Nobody holds bytes behind our end that we do not have: the history goes on as it was.
                self._take_messages()
                log.warning("master: every known slave has answered, messages are taken again")

    def _note_answers(self) -> None:
        """Save who is still awaited. Who answered and is not noted is awaited once more after a restart: harmless."""
        try:
            self._save_replicas()
        except StoreError as error:
            log.warning("master: who has answered is not noted: %s", error)

    def deadline_ms(self) -> int | None:
        """When `tick` is needed: by a session, or because a loss is accepted."""
        first_ms = self._accept_at_ms
        for session in self.sessions.values():
            due_ms = session.deadline_ms()
            if due_ms is not None and (first_ms is None or due_ms < first_ms):
                first_ms = due_ms
        return first_ms

    # Links.

    def opened(self, event: Opened, now: Now) -> None:
        """A connection to the replication port; who it is comes with its first bytes."""
        config = self._broker.config
        address = _host_of(event.peer)
        self.peers[event.link] = event.peer
        self.sessions[event.link] = session = master.MasterSession(
            self._broker.store.log,
            now.mono_ms,
            is_classic_admitted=address in config.ha_classic_peers,
            heartbeat_ms=config.ha_heartbeat_ms,
            housekeeping_ms=config.ha_housekeeping_ms,
            batch_bytes=config.ha_batch_bytes,
            bytes_per_second=config.ha_bytes_per_second,
            prover=None if self._broker.keyring is None else MasterProver(self._broker.keyring, config.broker_id),
        )
        session.tls = event.tls

    def closed(self, link: int, reason: str, now: Now) -> None:
        """It is gone, and its replica counts no more."""
        self.save_offsets()
        session = self.sessions.pop(link)
        self._broker.housekeeping.keeps(link, 0)
        self._unlinked(link, session, now)
        peer = self.peers.pop(link)
        for key in [key for key, number in self._speakers.items() if number == link]:
            del self._speakers[key]
        if session.next_offset >= 0:
            log.info("replication: slave=%s gone acked=%d reason=%r", peer, session.acked_offset, reason)

    def received(self, link: int, data: bytes, turn: Turn, now: Now) -> None:
        """Reports, or a tail the master asked for."""
        session = self.sessions[link]
        session.receive_data(data, now.mono_ms)
        self._broker.housekeeping.keeps(link, session.unread_bytes)
        if self._broker.failover is not None and session.hello is not None:
            self._broker.failover.heard(session.hello.broker_id, now)
        self._events(link, session, turn, now)

    def _linked(self, link: int, session: master.MasterSession, now: Now) -> None:
        """A slave's history is ours, and it copies: in a group with a registry its member must know."""
        if (
            self._broker.failover is None
            or session.hello is None
            or session.state is not master.MasterSessionState.TRANSFER
        ):
            return
        self.links[session.hello.broker_id] = link
        self._broker.failover.linked(session.hello.broker_id, now, is_up=True)

    def _unlinked(self, link: int, session: master.MasterSession, now: Now) -> None:
        if self._broker.failover is None or session.hello is None:
            return
        if self.links.get(session.hello.broker_id) == link:
            del self.links[session.hello.broker_id]
            self._broker.failover.linked(session.hello.broker_id, now, is_up=False)

    def tick(self, turn: Turn, now: Now) -> None:
        """Time passed: silent slaves go, and an ASYNC_MASTER stops waiting for what it lost."""
        for link, session in list(self.sessions.items()):
            session.tick(now.mono_ms)
            self._events(link, session, turn, now)
        if self._accept_at_ms is not None and now.mono_ms >= self._accept_at_ms:
            self._accept_loss(now)
            for link, session in self.sessions.items():
                self._events(link, session, turn, now)

    def _events(self, link: int, session: master.MasterSession, turn: Turn, now: Now) -> None:
        while (event := session.next_event()) is not None:
            if isinstance(event, master.SlaveHelloReceived):
                answer = self._decide(event.hello)
                if answer.refused is None:
                    self._addresses[event.hello.broker_id] = event.hello.address
                session.answer_hello(answer)
                self._linked(link, session, now)
            elif isinstance(event, master.SlaveAcked):
                self._acked(link, session)
                self._reported(link, session, event.log_offset, 0, now)
            elif isinstance(event, master.SlavePromise):
                self._reported(link, session, event.log_offset, event.number, now)
            elif isinstance(event, master.SlaveHeartbeat):
                self._beaten(link, session, event.heartbeat, now)
            elif isinstance(event, master.TailReceived):
                if not self._take_back(link, event, turn):
                    session.forget_events()
                    return
            elif isinstance(event, master.TailComplete):
                assert session.hello is not None, "only a slave that said who it is sends a tail"
                log.warning(
                    "master: took back its tail from slave %d, log end %d",
                    session.hello.broker_id,
                    self._broker.store.log.written_end,
                )
                self._answered(session.hello.broker_id)
                session.begin_transfer(self._broker.store.log.written_end)
                self._linked(link, session, now)
            elif isinstance(event, master.MasterSessionClosed):
                self._say_closed(link, event.reason, now)
                turn.closes.append((link, event.reason))

    def _say_closed(self, link: int, reason: str, now: Now) -> None:
        """One line per closed session, but strangers are counted and logged once a minute per address."""
        if self.sessions[link].next_offset >= 0 or self.sessions[link].hello is not None:
            log.warning("replication: slave=%s closed reason=%r", self.peers[link], reason)
        else:
            self.refused(self.peers[link], reason, now)

    def refused(self, peer: str, reason: str, now: Now) -> None:
        """Somebody was not let in."""
        times = self.refusals.note(_host_of(peer), now.mono_ms)
        if times:
            log.warning("replication: peer=%s refused times=%d reason=%r", peer, times, reason)

    # Members of a group with a registry.

    def _reported(self, link: int, session: master.MasterSession, acked: int, number: int, now: Now) -> None:
        """What a slave has; `number`: of the heartbeat it promises by, 0 if none. Only its newest link counts."""
        hello = session.hello
        if self._broker.failover is not None and hello is not None and self.links.get(hello.broker_id) == link:
            self._broker.failover.reported(hello.broker_id, acked, number, now)

    def _beaten(self, link: int, session: master.MasterSession, heartbeat: Heartbeat, now: Now) -> None:
        """A slave that is read from sent a heartbeat."""
        hello = session.hello
        if self._broker.failover is not None and hello is not None and self.links.get(hello.broker_id) == link:
            number = self._broker.failover.beaten(hello.broker_id, heartbeat, now)
            if number:
                session.send_promise(self._broker.store.log.written_end, number, now.mono_ms)

    # Who counts.

    def _acked(self, link: int, session: master.MasterSession) -> None:
        key = _name_of(_host_of(self.peers[link]) if session.hello is None else session.hello.broker_id)
        speaker = self._speakers.get(key)
        if speaker is None or speaker < link:
            if speaker is not None and speaker in self.sessions:
                self._say_doubled(self.sessions[speaker], session, link)
                self._broker.turn_out.closes.append((speaker, "a newer connection of the same slave"))
            self._speakers[key] = link
            self.save_offsets()
            log.info("replication: slave=%s (%s) copies from log offset %d", self.peers[link], key, session.next_offset)

    def _say_doubled(self, old: master.MasterSession, new: master.MasterSession, link: int) -> None:
        """Two processes that use one id push each other out for ever; a slave that was restarted does so once."""
        if old.hello is not None and new.hello is not None and old.hello.run_id != new.hello.run_id:
            log.error(
                "replication: slave=%s has id %d, which another process has too at the same time; give each "
                "slave a brokerId of its own, unless this one was just restarted",
                self.peers[link],
                new.hello.broker_id,
            )

    def acked_offsets(self) -> list[int]:
        """What each replica reported, one number per replica, without those the group's configuration does not name."""
        found = [self.sessions[link] for link in self._speakers.values() if link in self.sessions]
        found = [session for session in found if session.state is master.MasterSessionState.TRANSFER]
        return [session.acked_offset for session in found if self._is_member(session)]

    def _is_member(self, session: master.MasterSession) -> bool:
        failover, hello = self._broker.failover, session.hello
        return failover is None or hello is None or failover.member.own_of(hello.broker_id) is not None

    def addresses(self) -> dict[int, str]:
        """Where each known slave takes requests, by id; "" if it has not been here since the start."""
        absent = dict.fromkeys(self._known, "") if self._waits_for_absent else {}
        return absent | self._addresses

    def let_go(self, reason: str) -> None:
        """Another epoch: all sessions end; what the slaves have of this one is noted as such."""
        self.save_offsets()
        self._speakers.clear()
        for session in self.sessions.values():
            session.end(reason)

    # Who needs the log.

    def needed(self) -> dict[str, int]:
        """From which log offset each slave still needs the log, also one that is not connected."""
        if not self._broker.is_master:
            return {}
        needed = self._reported_offsets()
        for who in sorted(self._expected() - needed.keys()):
            log_offset = self._offsets.needed(who, self._owner.generations)
            if log_offset is not None:
                needed[f"{who} (not connected, has the log up to {log_offset})"] = log_offset
        return needed

    def _reported_offsets(self) -> dict[str, int]:
        found = {who: self.sessions[link].acked_offset for who, link in self._speakers.items() if link in self.sessions}
        return {who: log_offset for who, log_offset in found.items() if log_offset >= 0}

    def _expected(self) -> set[str]:
        """Slaves that may come back: the group's other members, or whoever was here; classic ones while admitted."""
        config, failover = self._broker.config, self._broker.failover
        group = failover.member.view.config if failover is not None else None
        ids = self._known if group is None else {one.broker_id for one in group.members} - {config.broker_id}
        classic = {_name_of(address) for address in config.ha_classic_peers}
        return {_name_of(number) for number in ids} | (self._offsets.noted() & classic)

    def save_offsets(self) -> None:
        """Have it kept how far the slaves are, for the time when they are not there."""
        generation = self._owner.generations[-1][0] if self._owner.generations else 0
        for who, log_offset in self._reported_offsets().items():
            self._offsets.note(who, log_offset, generation)
        self._offsets.save()

    def give_up_absent(self) -> None:
        """The operator says that slaves which are not there are gone for good."""
        self._offsets.give_up(_name_of(number) for number in self._known)

    # Where a slave goes on.

    def _decide(self, hello: SlaveHello) -> MasterHello:
        broker, config = self._broker, self._broker.config
        store_log = broker.store.log
        mine = MasterHello(
            config.broker_id,
            log_start=store_log.start,
            log_end=store_log.written_end,
            generations=list(self._owner.generations),
            epoch=self._epoch,
            address=broker.registration.address,
        )
        mine.refused = self._refusal(hello)
        if mine.refused is not None:
            return mine
        mine.refused = self._remember(hello.broker_id)
        if mine.refused is not None:
            return mine
        if hello.log_end == 0:
            last = store_log.written_end - store_log.written_end % config.segment_bytes
            mine.start = max(store_log.start, last) if config.sync_from_last_file else store_log.start
            self._answered(hello.broker_id)
            mine.generations = list(self._owner.generations)
            return mine
        if hello.broker_id in self._awaited and hello.log_end > store_log.written_end:
            mine.start = store_log.written_end
            mine.send_tail = hello.log_start <= mine.start
            if not mine.send_tail:
                mine.refused = (
                    f"we lost what we had from {mine.start} on, and its log begins at {hello.log_start}: "
                    "what lies between is gone unless another slave has it; if none has, start this master with "
                    "--accept-loss"
                )
            return mine
        self._answered(hello.broker_id)
        mine.generations = list(self._owner.generations)
        return self._continue(hello, mine)

    def _continue(self, hello: SlaveHello, mine: MasterHello) -> MasterHello:
        """Where a slave with bytes of its own goes on."""
        store_log = self._broker.store.log
        same = hello.log_end
        if hello.generations[-1:] == self._owner.generations[-1:] and hello.log_end > store_log.written_end:
            mine.refused = f"its log ends at {hello.log_end}, ours at {store_log.written_end}: {STORE_LOST}"
            return mine
        if hello.generations:
            found = common_end(self._owner.generations, store_log.written_end, hello.generations, hello.log_end)
            if found is None:
                mine.refused = f"its history {hello.generations} has nothing in common with ours; empty its store"
                return mine
            same = found
        if same > store_log.written_end:
            mine.refused = (
                f"its log ends at {hello.log_end}, ours at {store_log.written_end}, and no loss was accepted here; "
                "one of the two stores is not of this group"
            )
        elif same < store_log.start:
            mine.refused = f"it needs bytes from {same}, we hold them from {store_log.start}; empty its store"
        elif same == hello.log_end and (differs := self._tail_difference(hello)) is not None:
            mine.refused = differs
        else:
            mine.start = same
            mine.truncate_to = same if same < hello.log_end else None
        return mine

    @property
    def _epoch(self) -> int:
        return 0 if self._broker.failover is None else self._broker.failover.epoch

    def _refusal(self, hello: SlaveHello) -> str | None:
        config = self._broker.config
        if not self._broker.is_master:
            return "this broker is a slave itself"
        if (hello.cluster, hello.broker_name) != (config.cluster, config.broker_name):
            return f"it belongs to {hello.cluster}/{hello.broker_name}, not to {config.cluster}/{config.broker_name}"
        if hello.broker_id < 0 or hello.broker_id == config.broker_id:
            return f"a slave's brokerId must be another one than its master's, its is {hello.broker_id}"
        if hello.epoch != self._epoch:
            return f"it acts by epoch {hello.epoch} of the group, we by {self._epoch}"
        if hello.segment_bytes != config.segment_bytes:
            return f"its mappedFileSizeCommitLog is {hello.segment_bytes}, ours is {config.segment_bytes}"
        return None

    def _tail_difference(self, hello: SlaveHello) -> str | None:
        """Why a slave's last bytes are not ours, None if they are, as far as both hold them in one file."""
        store_log = self._broker.store.log
        start, end = hello.tail_start, hello.log_end
        if start < store_log.start or end > store_log.written_end:
            return None
        if end - start > TAIL_CHECK_BYTES:
            return f"it told the checksum of {end - start} bytes; {TAIL_CHECK_BYTES} at most are compared"
        try:
            tail = store_log.read(start, end - start)
            if crc32(tail) == hello.tail_crc:
                return None
            faults = faults_within(store_log.read, start, end, store_log.segment_bytes)
        except StoreError as error:
            return f"our own bytes before log offset {end} cannot be read: {error}"
        if not faults:
            return (
                f"its bytes before log offset {end} differ from ours, and our records there are whole: "
                "its copy is damaged or has another history; empty its store"
            )
        where = f"our own log is damaged at {faults[0].offset} ({faults[0].reason})"
        if not _pages_agree(hello, tail, faults):
            return (
                f"{where}, and its bytes before {end} cannot be taken for the same; if they are good ones, start this "
                "master on a copy of its store"
            )
        log.critical(
            "master: %s, this master's copy and not that of slave %d, which goes on; tandemq ha verify shows "
            "what differs",
            where,
            hello.broker_id,
        )
        return None

    def _remember(self, broker_id: int) -> str | None:
        """Note a slave before it counts: after a power loss it is waited for. Says why that was not possible."""
        if broker_id in self._known:
            return None
        self._known.add(broker_id)
        try:
            self._save_replicas()
        except StoreError as error:
            self._known.discard(broker_id)
            return f"it cannot be noted here as a slave: {error}"
        return None

    def _save_replicas(self) -> None:
        table = {"brokerIds": sorted(self._known), "awaitedIds": sorted(self._awaited)}
        save_table(self._broker.disk, REPLICAS_FILE, table)

    def _take_back(self, link: int, tail: master.TailReceived, turn: Turn) -> bool:
        store = self._broker.store
        if tail.log_offset != store.log.written_end:
            turn.closes.append((link, "another slave gave the tail back meanwhile; connect again"))
            return False
        try:
            for piece in tail.pieces:
                store.append_copy(piece.data, piece.run)
            store.commit()
        except StoreError as error:
            log.error("master: cannot store its tail taken back from slave=%s: %s", self.peers[link], error)
            turn.closes.append((link, f"the store failed: {error}"))
            return False
        return True

    # Out.

    def pump(self, turn: Turn, now: Now) -> None:
        """Send each slave what was written, as far as its link takes it."""
        outbox = self._broker.outbox
        for link, session in self.sessions.items():
            backlog = outbox.backlog(link)
            buffers = session.data_to_send(backlog, now.mono_ms)
            if buffers:
                turn.send(link, *buffers)
            self._events(link, session, turn, now)


def _pages_agree(hello: SlaveHello, tail: bytes, faults: list[LogFault]) -> bool:
    """Whether a slave's last bytes are ours in every page our damage does not touch, and there are such pages."""
    damaged = {
        page
        for fault in faults
        for page in range(
            max(0, fault.offset - hello.tail_start) // TAIL_PAGE_BYTES,
            ((fault.resumes or hello.log_end) - hello.tail_start - 1) // TAIL_PAGE_BYTES + 1,
        )
    }
    ours = page_crcs(tail)
    whole = [page for page in range(len(ours)) if page not in damaged]
    return len(ours) == len(hello.tail_pages) and bool(whole) and all(ours[p] == hello.tail_pages[p] for p in whole)


def _name_of(slave: int | str) -> str:
    """A slave for logs and tables, by its id, or by its address if it is a classic one."""
    return f"slave {slave}"


def _host_of(peer: str) -> str:
    """The address in "ip:port", as haClassicPeers has it."""
    host = ip_address(peer.rpartition(":")[0].strip("[]"))
    return str(getattr(host, "ipv4_mapped", None) or host)
