"""The master's side of replication: one session per slave, whose acknowledgements count, and who still needs the log.

`ha.admission` decides where a slave goes on; `ha.lost_tail` what happens to bytes that a crash of the machine took.
"""

import logging
from collections import deque
from dataclasses import dataclass
from functools import partial

from tandemq.boundary import READS_AT_ONCE, Job, JobDone, Now, Opened, Turn
from tandemq.broker.ha.admission import SlaveAdmission
from tandemq.broker.ha.lost_tail import LostTail
from tandemq.broker.ha.replica_progress import SlaveOffsets
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.role import (
    HeartbeatReceived,
    LogEndReported,
    MemberHeard,
    MemberLinked,
    TablesSaved,
)
from tandemq.codec.ha import Heartbeat
from tandemq.errors import StoreError
from tandemq.model.codes import ResponseCode
from tandemq.model.peers import host_of
from tandemq.not_cached import FileRange, read_ranges
from tandemq.replication import master
from tandemq.replication.acknowledged import copied_offset, enough_in_reach
from tandemq.replication.authentication import MasterProver

log = logging.getLogger(__name__)
READ_JOB = "read for a slave"
READS_MAX = READS_AT_ONCE // 2
"""Number of reads of the device for slaves at a time."""
LATE_MS = 10_000


@dataclass(slots=True, eq=False)
class _LogRead:
    """A read of the device for a slave."""

    session: master.MasterSession
    range: FileRange
    began_ms: int = 0
    is_late: bool = False
    """Whether it was logged that the device does not return."""


class MasterSide:
    """The sessions of slaves. Idle on a slave, whose replication port refuses every connection."""

    def __init__(self, kernel: Kernel, lost_tail: LostTail) -> None:
        """Begin without sessions."""
        self._store = kernel.store
        self._outbox = kernel.outbox
        self._generations = kernel.generations
        self._lost_tail = lost_tail
        self._admission = SlaveAdmission(kernel, lost_tail)
        self._offsets = SlaveOffsets(kernel.saver)
        self.refusals = kernel.refused_peers
        self._partial_frames = kernel.partial_frames
        self._current = kernel.current
        self._turn = kernel.turn
        self._keyring = kernel.keyring
        self.sessions: dict[int, master.MasterSession] = {}
        """By connection."""
        self.peers = kernel.replica_links
        self.links: dict[int, int] = {}
        """Connection of each slave that copies, by broker id."""
        self._speakers: dict[str, int] = {}
        """The connection whose acknowledgements count, by the slave's name."""
        self._reads: deque[_LogRead] = deque()
        """Reads of the device for slaves that have not begun."""
        self._running: list[_LogRead] = []
        """Those that have begun."""
        self._addresses: dict[int, str] = {}
        """Where each slave takes requests, by broker id, from its introduction."""

    def end_sessions(self, reason: str) -> None:
        """End all sessions, so that slaves connect again."""
        for session in self.sessions.values():
            session.end(reason)

    # Links.

    def opened(self, event: Opened, now: Now) -> None:
        """Begin the session of a connection to the replication port; its first bytes name the slave."""
        config = self._current.config
        address = host_of(event.peer)
        self.peers[event.link] = event.peer
        self.sessions[event.link] = session = master.MasterSession(
            self._store.log,
            now.mono_ms,
            master.MasterSettings(
                config.ha_heartbeat_ms, config.ha_housekeeping_ms, config.ha_batch_bytes, config.ha_bytes_per_second
            ),
            is_classic_admitted=address in config.ha_classic_peers,
            prover=None if self._keyring is None else MasterProver(self._keyring, config.broker_id),
        )
        session.tls = event.tls

    def closed(self, link: int, reason: str, now: Now) -> None:
        """End the session of a closed connection; its replica counts no more."""
        self.save_offsets()
        session = self.sessions.pop(link)
        self._partial_frames.drop(link)
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
        self._partial_frames.keep(link, session.unread_bytes)
        if session.hello is not None:
            self._turn.report(MemberHeard(session.hello.broker_id), now)
        self._events(link, session, turn, now)

    def _linked(self, link: int, session: master.MasterSession, now: Now) -> None:
        """A slave shares our history and copies."""
        if session.hello is not None and session.state is master.MasterSessionState.TRANSFER:
            self.links[session.hello.broker_id] = link
            self._turn.report(MemberLinked(session.hello.broker_id, is_up=True), now)

    def _unlinked(self, link: int, session: master.MasterSession, now: Now) -> None:
        if session.hello is not None and self.links.get(session.hello.broker_id) == link:
            del self.links[session.hello.broker_id]
            self._turn.report(MemberLinked(session.hello.broker_id, is_up=False), now)

    def tick(self, turn: Turn, now: Now) -> None:
        """Close connections of silent slaves; accept the loss of a tail that no slave returned in time."""
        self._warn_of_late_reads(now)
        for link, session in list(self.sessions.items()):
            session.tick(now.mono_ms)
            self._events(link, session, turn, now)
        if self._lost_tail.tick(now):
            for link, session in self.sessions.items():
                self._events(link, session, turn, now)

    def _events(self, link: int, session: master.MasterSession, turn: Turn, now: Now) -> None:
        while (event := session.next_event()) is not None:
            if isinstance(event, master.SlaveHelloReceived):
                answer = self._admission.decide(event.hello)
                if answer.refused is None:
                    self._addresses[event.hello.broker_id] = event.hello.address
                session.answer_hello(answer)
                self._linked(link, session, now)
            elif isinstance(event, master.SlaveAcked):
                self._acked(link, session)
                self._reported(link, session, event.log_offset, 0, now)
            elif isinstance(event, master.SlavePromise):
                self._reported(link, session, event.log_offset, event.number, now)
            elif isinstance(event, master.SlaveSaved):
                self._turn.report(TablesSaved(link, event.number), now)
            elif isinstance(event, master.SlaveHeartbeat):
                self._heartbeat_received(link, session, event.heartbeat, now)
            elif isinstance(event, master.TailReceived):
                if not self._take_back(link, event, turn):
                    session.forget_events()
                    return
            elif isinstance(event, master.TailComplete):
                assert session.hello is not None, "only a slave that said who it is sends a tail"
                log.warning(
                    "master: took back its tail from slave %d, log end %d",
                    session.hello.broker_id,
                    self._store.log.written_end,
                )
                self._lost_tail.answered(session.hello.broker_id)
                session.begin_transfer(self._store.log.written_end)
                self._linked(link, session, now)
            elif isinstance(event, master.LogNotCached):
                self._reads.append(_LogRead(session, event.range))
                self._start_reads(turn, now)
            elif isinstance(event, master.MasterSessionClosed):
                self._say_closed(link, event.reason, now)
                turn.closes.append((link, event.reason))

    def _start_reads(self, turn: Turn, now: Now) -> None:
        """Begin reads of the device for slaves, a few at a time: clients use the same threads."""
        while self._reads and len(self._running) < READS_MAX:
            read = self._reads.popleft()
            if read.session.state is master.MasterSessionState.SHUTDOWN:
                continue
            read.began_ms = now.mono_ms
            self._running.append(read)
            run, done = partial(read_ranges, [read.range]), partial(self._was_read, read)
            turn.jobs.append(Job(READ_JOB, run, done, is_read=True))

    def _was_read(self, read: _LogRead, done: JobDone, turn: Turn, now: Now) -> None:
        self._running.remove(read)
        self._start_reads(turn, now)
        if isinstance(done.error, StoreError):
            read.session.end(f"the log cannot be read at {read.session.next_offset}: {done.error}")
        elif done.error is not None:
            raise done.error
        else:
            read.session.log_cached()

    def _warn_of_late_reads(self, now: Now) -> None:
        for read in self._running:
            if not read.is_late and now.mono_ms - read.began_ms >= LATE_MS:
                read.is_late = True
                log.error(
                    "replication: the device has not returned for %d s, slaves that need it wait: file=%s",
                    LATE_MS // 1000,
                    read.range.file.path,
                )

    def _say_closed(self, link: int, reason: str, now: Now) -> None:
        """Log the end of a session; refused peers are counted, and logged once a minute per address."""
        if self.sessions[link].next_offset >= 0 or self.sessions[link].hello is not None:
            log.warning("replication: slave=%s closed reason=%r", self.peers[link], reason)
        else:
            self.refusals.note(self.peers[link], reason, now)

    # Reports to members of the group.

    def _reported(self, link: int, session: master.MasterSession, acked: int, number: int, now: Now) -> None:
        """Report a slave's log end. `number`: of the heartbeat it promises by; 0: none. Only its newest link counts."""
        hello = session.hello
        if hello is not None and self.links.get(hello.broker_id) == link:
            self._turn.report(LogEndReported(hello.broker_id, acked, number), now)

    def _heartbeat_received(self, link: int, session: master.MasterSession, heartbeat: Heartbeat, now: Now) -> None:
        """Answer the heartbeat of a slave that serves reads."""
        hello = session.hello
        if hello is not None and self.links.get(hello.broker_id) == link:
            number = self._turn.report(HeartbeatReceived(hello.broker_id, heartbeat), now)
            if number:
                session.send_promise(self._store.log.written_end, number, now.mono_ms)

    # Whose acknowledgements count.

    def _acked(self, link: int, session: master.MasterSession) -> None:
        key = _name_of(host_of(self.peers[link]) if session.hello is None else session.hello.broker_id)
        speaker = self._speakers.get(key)
        if speaker is None or speaker < link:
            if speaker is not None and speaker in self.sessions:
                self._say_doubled(self.sessions[speaker], session, link)
                self._turn.out.closes.append((speaker, "a newer connection of the same slave"))
            self._speakers[key] = link
            self.save_offsets()
            log.info("replication: slave=%s (%s) copies from log offset %d", self.peers[link], key, session.next_offset)

    def _say_doubled(self, old: master.MasterSession, new: master.MasterSession, link: int) -> None:
        """Warn of two processes with one id, which replace each other for ever; a restarted slave does so once."""
        if old.hello is not None and new.hello is not None and old.hello.run_id != new.hello.run_id:
            log.error(
                "replication: slave=%s has id %d, which another process has too at the same time; give each "
                "slave a brokerId of its own, unless this one was just restarted",
                self.peers[link],
                new.hello.broker_id,
            )

    def acked_offsets(self) -> list[int]:
        """Return the log end that each replica acknowledged, without replicas that the group does not name."""
        found = [self.sessions[link] for link in self._speakers.values() if link in self.sessions]
        found = [session for session in found if session.state is master.MasterSessionState.TRANSFER]
        return [session.acked_offset for session in found if self._is_member(session)]

    def _is_member(self, session: master.MasterSession) -> bool:
        members = self._turn.serving.members
        return session.hello is None or members is None or session.hello.broker_id in members

    def replica_code(self, acked: list[int]) -> ResponseCode | None:
        """Return the outcome of replicating a message that is stored now and waits for replicas; None: wait for it.

        `acked`: see `acked_offsets`.
        """
        config = self._current.config
        if config.in_sync_replicas <= 1:
            return ResponseCode.SUCCESS
        needed, log_end = config.in_sync_replicas - 1, self._store.log.written_end
        if enough_in_reach(acked, needed, log_end, config.ha_lag_bytes_max):
            return None
        return ResponseCode.SLAVE_NOT_AVAILABLE

    def copied_offset(self, acked: list[int]) -> int:
        """Return the log offset up to which `inSyncReplicas` hold the log. `acked`: see `acked_offsets`."""
        return copied_offset(acked, self._current.config.in_sync_replicas - 1)

    def addresses(self) -> dict[int, str]:
        """Return where each known slave takes requests, by id; "" if it has not connected since the start."""
        absent = dict.fromkeys(self._lost_tail.known, "") if self._lost_tail.waits_for_absent else {}
        return absent | self._addresses

    def close_connections(self, reason: str) -> None:
        """End all sessions at the end of an epoch; how far the slaves came in it is saved."""
        self.save_offsets()
        self._speakers.clear()
        self.end_sessions(reason)

    # Who needs the log.

    def needed(self) -> dict[str, int]:
        """Return the log offset from which each slave still needs the log, connected or not."""
        if not self._turn.serving.is_master:
            return {}
        needed = self._reported_offsets()
        for who in sorted(self._expected() - needed.keys()):
            log_offset = self._offsets.needed(who, self._generations.pairs)
            if log_offset is not None:
                needed[f"{who} (not connected, has the log up to {log_offset})"] = log_offset
        return needed

    def _reported_offsets(self) -> dict[str, int]:
        found = {who: self.sessions[link].acked_offset for who, link in self._speakers.items() if link in self.sessions}
        return {who: log_offset for who, log_offset in found.items() if log_offset >= 0}

    def _expected(self) -> set[str]:
        """Slaves that may return: the group's other members, or all known; Java ones while they are admitted."""
        members = self._turn.serving.members
        ids = self._lost_tail.known if members is None else members - {self._current.config.broker_id}
        classic = {_name_of(address) for address in self._current.config.ha_classic_peers}
        return {_name_of(number) for number in ids} | (self._offsets.noted() & classic)

    def save_offsets(self) -> None:
        """Save how far each slave has copied, for the time when it is not connected."""
        generation = self._generations.pairs[-1][0] if self._generations.pairs else 0
        for who, log_offset in self._reported_offsets().items():
            self._offsets.note(who, log_offset, generation)
        self._offsets.save()

    def give_up_absent(self) -> None:
        """Stop keeping the log for slaves that are not connected: the operator says that they will not return."""
        self._offsets.give_up(_name_of(number) for number in self._lost_tail.known)

    def _take_back(self, link: int, tail: master.TailReceived, turn: Turn) -> bool:
        store = self._store
        if tail.log_offset != store.log.written_end:
            turn.closes.append((link, "another slave has given the tail back meanwhile; connect again"))
            return False
        try:
            for piece in tail.pieces:
                store.append_copy(piece.data)
            store.commit()
        except StoreError as error:
            log.error("master: cannot store its tail taken back from slave=%s: %s", self.peers[link], error)
            turn.closes.append((link, f"the store failed: {error}"))
            return False
        return True

    def deadline_ms(self) -> int | None:
        """Return when `tick` is needed: for a session, or to accept a loss."""
        first_ms = self._lost_tail.deadline_ms()
        for session in self.sessions.values():
            due_ms = session.deadline_ms()
            if due_ms is not None and (first_ms is None or due_ms < first_ms):
                first_ms = due_ms
        return first_ms

    # Out.

    def pump(self, turn: Turn, now: Now) -> None:
        """Send each slave the records written since, as far as its link takes them."""
        outbox = self._outbox
        for link, session in self.sessions.items():
            backlog = outbox.backlog(link)
            buffers = session.data_to_send(backlog, now.mono_ms)
            if buffers:
                turn.send(link, *buffers)
            self._events(link, session, turn, now)


def _name_of(slave: int | str) -> str:
    """Return the name of a slave in logs and tables: its id, or the address of a classic slave."""
    return f"slave {slave}"
