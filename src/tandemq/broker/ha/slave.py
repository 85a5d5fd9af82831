"""The slave's side of replication: the session to the master, storing and acknowledging what it sends.

`ha.upstream` says which broker is the master.
"""

import logging
from collections import deque
from typing import NamedTuple

from isal.isal_zlib import crc32

from tandemq.boundary import Connect, LinkKind, Now, Opened, Turn
from tandemq.broker.ha.upstream import Upstream
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.role import (
    HeartbeatReceived,
    LogChanged,
    LogEndReported,
    MemberHeard,
    MemberLinked,
)
from tandemq.codec.ha import TAIL_CHECK_BYTES, Heartbeat, MasterHello, SlaveHello, page_crcs
from tandemq.errors import OffsetGone, StoreDamaged, StoreError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.text import brief
from tandemq.refusals import Refusals
from tandemq.replication import slave
from tandemq.replication.authentication import SlaveProver
from tandemq.replication.record_stream import Piece
from tandemq.storage.quarantine import quarantine_tail

log = logging.getLogger(__name__)
SUSPECT_AFTER = 3
"""Times that the same record has to arrive damaged before the master's copy is suspect."""
SUSPECT_TIMEOUT_MS = 10_000
NEEDED_CHANGES_MAX = 1_024
UNSAVED_BEATS_MAX = 1_024
"""Heartbeats remembered while metadata is not saved."""


class _UnsavedBeat(NamedTuple):
    number: int
    asked: int
    """Changes of tables, as the saver counts them, that arrived before the heartbeat."""


class _NeededChange(NamedTuple):
    asked: int
    """Number of the change, as the saver counts them."""
    log_end: int
    """Log offset of the messages that need it."""


class SlaveSide:
    """The connection to the master, and the progress of copying."""

    def __init__(self, kernel: Kernel, upstream: Upstream) -> None:
        """Begin without a connection."""
        self._store = kernel.store
        self._outbox = kernel.outbox
        self._upstream = upstream
        self._members = kernel.members
        self._generations = kernel.generations
        self._own = kernel.own
        self._topics = kernel.topics
        self._offsets = kernel.offsets
        self._saver = kernel.saver
        self._current = kernel.current
        self._turn = kernel.turn
        self._keyring = kernel.keyring
        self._next_link = kernel.next_link
        self._run_id = kernel.random.getrandbits(48)
        """A random number of this process' life."""
        self.link = 0
        self.session: slave.SlaveSession | None = None
        self._introduced_at = ""
        """Where the master takes requests, from its answer to our introduction."""
        self._give_up_ms = 0
        self._corrupt: tuple[int, int] = (-1, 0)
        """Log offset of the record that arrived damaged last, and how many times in a row."""
        self.refusals = Refusals()
        self.is_refused = False
        """Whether the present connection ended with a refusal, or with a master that did not prove itself."""
        self.epoch = 0
        self.master: int | None = None
        """Broker id of the master, in a group with a registry; None: there is none to copy from."""
        self.is_linked = False
        """Whether the log is that of the master as far as it goes, and more of it arrives as it grows."""
        self._failed = ""
        """Why the connection closed last; the same reason is not logged twice."""
        self._unsaved_beats: deque[_UnsavedBeat] = deque(maxlen=UNSAVED_BEATS_MAX)
        """Heartbeats behind metadata that is not saved yet; the last ones tell the most."""
        self._needed_changes: deque[_NeededChange] = deque()
        """Metadata that messages need and that is not saved yet, by log offset."""
        self._dropped: set[int] = set()
        """Connections given up that are not closed yet."""

    # In a group with a registry.

    def follow(self, master: int, epoch: int, turn: Turn) -> None:
        """Copy from this member as long as the epoch lasts."""
        if (master, epoch) != (self.master, self.epoch):
            self.close_connections(turn, f"broker {master} is the master of epoch {epoch}")
            self.master, self.epoch = master, epoch

    def connect_again(self, turn: Turn, now: Now, reason: str) -> None:
        """Close the connection to the master, to be replaced."""
        self._unlinked(now)
        self._close(turn, reason)

    def close_connections(self, turn: Turn, reason: str) -> None:
        """Stop copying."""
        self.master = None
        self._close(turn, reason)

    def _close(self, turn: Turn, reason: str) -> None:
        if self.link:
            turn.closes.append((self.link, reason))
            self._dropped.add(self.link)
        self.link, self.session, self.is_linked = 0, None, False

    def owns(self, link: int) -> bool:
        """Whether a connection leads to the master, or to an earlier one."""
        return link == self.link or link in self._dropped

    def _peer_seen(self, now: Now) -> None:
        session = self.session
        if session is None or self.master is None:
            return
        if self._keyring is not None and not session.is_authenticated:
            return
        if not self.is_linked and session.state is slave.SlaveSessionState.TRANSFER:
            self.is_linked = True
            self._turn.report(MemberLinked(self.master, is_up=True), now)
        self._turn.report(MemberHeard(self.master), now)

    def _unlinked(self, now: Now) -> None:
        if self.is_linked and self.master is not None:
            self.is_linked = False
            self._turn.report(MemberLinked(self.master, is_up=False), now)

    def _heartbeat_received(self, heartbeat: Heartbeat, now: Now) -> None:
        session = self.session
        if session is not None and self.master is not None and self.is_linked:
            number = self._turn.report(HeartbeatReceived(self.master, heartbeat), now)
            self._unsaved_beats.append(_UnsavedBeat(heartbeat.number, self._saver.asked))
            self._saved(session, now)
            self._stored(session, now)
            if number:
                session.send_promise(number, now.mono_ms)

    def asked_at(self) -> str:
        """Return where the master takes requests; "" while that is unknown."""
        return self._upstream.address or self._introduced_at

    # The connection.

    def deadline_ms(self) -> int | None:
        """Return when `tick` is needed."""
        if self.session is not None:
            return self.session.deadline_ms()
        if self.link:
            return self._give_up_ms
        return self._connect_at_ms()

    def _connect_at_ms(self) -> int | None:
        """When to connect, monotonic ms; None while no master is known, our log is less safe than we report, or takes
        nothing more: a connected member that stores nothing would hold up every message."""
        store_log = self._store.log
        is_safe = self._current.config.flush_type != "SYNC_FLUSH" or store_log.flushed_offset >= store_log.written_end
        return self._upstream.connect_at_ms() if is_safe and store_log.refused is None else None

    def tick(self, turn: Turn, now: Now) -> None:
        """Connect, send a heartbeat, or give up a connection that is not answered, or of no use."""
        if self.session is not None and self._store.log.refused is not None:
            log.error("replication: nothing more is copied before a restart: the log takes no more")
            self.connect_again(turn, now, "the device of the slave has failed")
        elif self.session is not None:
            self.session.tick(now.mono_ms, self._outbox.backlog(self.link))
            self._events(turn, now)
        elif self.link:
            if now.mono_ms >= self._give_up_ms:
                self._give_up_ms = now.mono_ms + self._current.config.ha_housekeeping_ms
                turn.closes.append((self.link, "the master does not answer"))
        elif (connect_at_ms := self._connect_at_ms()) is not None and now.mono_ms >= connect_at_ms:
            self._connect(turn, now)

    def _connect(self, turn: Turn, now: Now) -> None:
        if not self._upstream.is_prepared(turn, now):
            return
        self.link = self._next_link()
        self._give_up_ms = now.mono_ms + self._current.config.ha_housekeeping_ms
        turn.connects.append(Connect(self.link, LinkKind.HA_SLAVE, self.ha_address))

    def opened(self, event: Opened, now: Now) -> None:
        """The connection to the master is open."""
        if event.link != self.link:
            return
        self.is_refused = False
        self._unsaved_beats.clear()
        config, keyring = self._current.config, self._keyring
        is_classic = self._upstream.is_classic
        try:
            hello = None if is_classic else self._hello()
        except StoreError as error:
            log.error("replication: our own last bytes cannot be read: %s", error)
            self._turn.out.closes.append((event.link, f"our log cannot be read: {error}"))
            return
        self.session = slave.SlaveSession(
            self._store.log,
            now.mono_ms,
            safe_end=self._safe_end(),
            hello=hello,
            heartbeat_ms=config.ha_heartbeat_ms,
            housekeeping_ms=config.ha_housekeeping_ms,
            prover=None
            if is_classic or keyring is None
            else SlaveProver(keyring, config.cluster, config.broker_name, config.broker_id),
        )
        self.session.tls = event.tls
        end = self._store.log.written_end
        log.info("replication: connected to master=%s log_end=%d", self.ha_address, end)

    def _hello(self) -> SlaveHello:
        config, store_log = self._current.config, self._store.log
        end = store_log.written_end
        start = max(store_log.start, end - TAIL_CHECK_BYTES, end - end % config.segment_bytes)
        try:
            tail = store_log.read(start, end - start)
        except OffsetGone:
            tail = b""
        return SlaveHello(
            config.cluster,
            config.broker_name,
            config.broker_id,
            self._run_id,
            store_log.start,
            end,
            config.segment_bytes,
            list(self._generations.pairs),
            start,
            crc32(tail),
            page_crcs(tail),
            self.epoch,
            self._own.address,
        )

    def closed(self, link: int, reason: str, now: Now) -> None:
        """The connection is closed; connect again soon if it was copying."""
        if link in self._dropped:
            self._dropped.discard(link)
            return
        self._unlinked(now)
        was_copying = self.session is not None and self.session.received_bytes > 0 and self._corrupt[1] < SUSPECT_AFTER
        self._say_closed(reason, now)
        self.link = 0
        self.session = None
        self._upstream.closed(now, was_copying=was_copying)

    def _say_closed(self, reason: str, now: Now) -> None:
        """Log the end of a connection: a refusal, which every attempt repeats, once a minute; other reasons once."""
        if not self.is_refused:
            is_new_reason = self.session is not None or reason != self._failed
            log.log(
                logging.INFO if is_new_reason else logging.DEBUG,
                "replication: link to master=%s closed reason=%r",
                self.ha_address,
                reason,
            )
            self._failed = reason
            return
        self.is_refused = False
        times = self.refusals.note(self.ha_address, now.mono_ms)
        if times:
            log.warning("replication: link to master=%s refused times=%d reason=%r", self.ha_address, times, reason)

    # What arrives.

    def received(self, link: int, data: bytes, turn: Turn, now: Now) -> None:
        """Take bytes of the master."""
        if self.session is not None and link == self.link:
            self.session.receive_data(data, now.mono_ms)
            self._events(turn, now)
            self._peer_seen(now)

    def _events(self, turn: Turn, now: Now) -> None:
        session = self.session
        assert session is not None, "events come from a session"
        while (event := session.next_event()) is not None:
            if isinstance(event, slave.RecordsReceived):
                if not self._append(event.pieces, turn):
                    return
            elif isinstance(event, slave.MasterHelloReceived):
                if not self._welcomed(event.hello, turn, now):
                    return
                session.proceed(event.hello, self._safe_end())
                self._peer_seen(now)
            elif isinstance(event, slave.LogBegins):
                self._store.log.begin_at(event.log_offset)
            elif isinstance(event, slave.MasterHeartbeat):
                self._heartbeat_received(event.heartbeat, now)
            elif isinstance(event, slave.MetadataReceived):
                self._upstream.take_table(event.kind, event.payload)
            elif isinstance(event, slave.MasterPromise):
                self._promised(event, now)
            elif isinstance(event, slave.CorruptRecordReceived):
                self._damaged(event, turn, now)
            elif isinstance(event, slave.SlaveSessionClosed):
                self.is_refused = event.is_refusal
                turn.closes.append((self.link, event.reason))
        out = session.data_to_send()
        if out:
            turn.send(self.link, *out)

    def _forget_cut(self, to: int) -> None:
        self._needed_changes = deque(change for change in self._needed_changes if change.log_end < to)

    def _hold_back(self, needed: _NeededChange) -> None:
        """Hold back the acknowledgement of messages until the change that they need is saved."""
        waiting = self._needed_changes
        if len(waiting) >= NEEDED_CHANGES_MAX:
            newest = waiting.pop()
            needed = _NeededChange(max(newest.asked, needed.asked), newest.log_end)
        waiting.append(needed)

    def _promised(self, event: slave.MasterPromise, now: Now) -> None:
        if self.master is not None and self.is_linked:
            self._turn.report(LogEndReported(self.master, event.log_end, event.number), now)

    def _append(self, pieces: list[Piece], turn: Turn) -> bool:
        store = self._store
        try:
            begin = store.log.written_end
            for piece in pieces:
                store.append_copy(piece.data)
            needed = self._topics.needed_change(store.touched)
            store.commit()
        except StoreError as error:
            log.error("replication: cannot store what the master sent: %s", error)
            turn.closes.append((self.link, f"the store failed: {error}"))
            self.session = None
            return False
        if needed > self._saver.saved:
            self._hold_back(_NeededChange(needed, begin))
        if store.log.written_end > self._corrupt[0]:
            self._corrupt = (-1, 0)
        return True

    def _welcomed(self, hello: MasterHello, turn: Turn, now: Now) -> bool:
        store_log = self._store.log
        to = hello.truncate_to
        if hello.epoch != self.epoch:
            turn.closes.append((self.link, f"it acts by epoch {hello.epoch} of the group, we by {self.epoch}"))
            self.session = None
            return False
        try:
            if to is not None and not store_log.start <= to <= store_log.written_end:
                raise StoreDamaged(
                    f"the master asks for a cut at {to}, held are [{store_log.start}, {store_log.written_end}); "
                    "empty this store if that stays so"
                )
            if to is not None:
                quarantine_tail(self._store, to)
                self._forget_cut(to)
                self._offsets.forget_beyond(self._topics.end_of)  # the master does not have those messages
                self._turn.report(LogChanged(), now)
            self._generations.set(hello.generations)
            self._introduced_at = hello.address
        except StoreError as error:
            log.error("replication: cannot do what the master asks for: %s", error)
            turn.closes.append((self.link, f"cannot do what the master asks for: {error}"))
            self.session = None
            return False
        return True

    def _damaged(self, event: slave.CorruptRecordReceived, turn: Turn, now: Now) -> None:
        offset, times = self._corrupt
        self._corrupt = (event.log_offset, times + 1 if offset == event.log_offset else 1)
        level = logging.CRITICAL if self._corrupt[1] >= SUSPECT_AFTER else logging.ERROR
        log.log(
            level,
            "replication: damaged record from master=%s log_offset=%d times=%d reason=%r%s",
            self.ha_address,
            event.log_offset,
            self._corrupt[1],
            event.reason,
            "; the master's copy is suspect" if self._corrupt[1] >= SUSPECT_AFTER else "",
        )
        if self._corrupt[1] >= SUSPECT_AFTER:
            self._report_suspect(event, turn, now)

    def _report_suspect(self, record: slave.CorruptRecordReceived, turn: Turn, now: Now) -> None:
        """Report to the master that its record at an offset arrived damaged again and again."""
        address = self.asked_at()
        if address:
            broker_id = self._current.config.broker_id
            fields = {"offset": str(record.log_offset), "brokerId": str(broker_id), "reason": record.reason}
            command = Command(RequestCode.TANDEM_LOG_SUSPECT, fields=fields)
            self._members.call(address, command, SUSPECT_TIMEOUT_MS, _suspect_reported, turn, now)

    def _safe_end(self) -> int:
        """Log offset below which everything is stored as safely as this broker is configured.

        In a group with a registry topics count as well: their tables come before their messages, and are saved first.
        """
        store_log, unsaved = self._store.log, self._needed_changes
        is_sync = self._current.config.flush_type == "SYNC_FLUSH"
        end = store_log.flushed_offset if is_sync else store_log.written_end
        while unsaved and unsaved[0].asked <= self._saver.saved:
            unsaved.popleft()
        return min(end, unsaved[0].log_end) if unsaved else end

    def _stored(self, session: slave.SlaveSession, now: Now) -> None:
        """Tell the session up to which log offset the records are stored safely."""
        session.stored(self._safe_end(), now.mono_ms)

    def _saved(self, session: slave.SlaveSession, now: Now) -> None:
        """Report the last heartbeat before which all metadata is saved: as the next master we must not lack it."""
        beats, number = self._unsaved_beats, 0
        if not self._upstream.has_followed:
            return
        while beats and beats[0].asked <= self._saver.saved:
            number = beats.popleft().number
        if number:
            session.send_saved(number, now.mono_ms)

    @property
    def ha_address(self) -> str:
        """Where the master takes replication connections; "" while that is unknown."""
        return self._upstream.ha_address

    @property
    def has_tables(self) -> bool:
        """Whether every table of the master was received once."""
        return self._upstream.has_tables

    @property
    def is_copying(self) -> bool:
        """Whether our log is the beginning of the master's, as far as the protocol can tell."""
        return self.session is not None and self.session.state is slave.SlaveSessionState.TRANSFER

    @property
    def is_accepted(self) -> bool:
        """Whether a TandemQ master has found that our log shares its history."""
        return self.is_copying and self.session is not None and not self.session.is_classic

    def report(self, turn: Turn, now: Now) -> None:
        """Acknowledge to the master what is stored, as safely as this broker is configured."""
        if self.session is None:
            return
        self._saved(self.session, now)
        self._stored(self.session, now)
        out = self.session.data_to_send()
        if out:
            turn.send(self.link, *out)


def _suspect_reported(answer: Command | None, _now: Now) -> None:
    if answer is None or answer.code != ResponseCode.SUCCESS:
        log.warning(
            "replication: the master did not accept the report that its copy is suspect: %s",
            "no answer" if answer is None else brief(answer.remark),
        )
