"""The slave's session with its master: hello, receive log bytes, verify them, pass them to the owner, report.

    CONNECTING ── open ──► HANDSHAKE ── master's hello ──► TRANSFER ──► SHUTDOWN
                     └────────── classic: report at once ─────────┘

With a secret, the hello is sent after the master has proven that it knows it.
A transfer must continue at the end of the previous one, otherwise the connection is closed. Only complete records with
valid checksums are passed on; `stored` then sends the report. The connection is closed if the master is silent for too
long, or if it does not read the reports; that it reads them is no proof that it is alive.

Source: docs/internals/ha.md; requirements H05-H10, H16, H20, H21, T05, T09-T13.
"""

from collections import deque
from enum import Enum
from typing import NamedTuple

from tandemq.boundary import Buffer
from tandemq.codec.ha import (
    CONTROL,
    HEARTBEAT,
    HELLO_MARK,
    KIND_DELAYS,
    KIND_FEATURE_TABLES,
    KIND_GROUPS,
    KIND_HEARTBEAT,
    KIND_OFFSETS,
    KIND_PROMISE,
    KIND_REPORT,
    KIND_SAVED,
    KIND_TAIL,
    KIND_TOPICS,
    PROMISE,
    PROOF_MARK,
    REPORT,
    SAVED,
    SEAL_BYTES,
    TLS_ALERT,
    TRANSFER,
    TRANSFER_BYTES,
    Heartbeat,
    MasterHello,
    SlaveHello,
    checked,
    decode_master_hello,
    encode_hello,
    hello_length,
    step_length,
    verified,
)
from tandemq.errors import AuthenticationError, ProtocolError, StoreError
from tandemq.replication.authentication import SlaveProver
from tandemq.replication.master import LogView
from tandemq.replication.record_stream import Piece, RecordStream

FRAME_BYTES_MAX = 64 << 20
TAIL_CHUNK_BYTES = 1 << 20


class SlaveSessionState(Enum):
    """State of a session."""

    HANDSHAKE = "handshake"
    """The master has not answered the proof or the hello yet."""
    TRANSFER = "transfer"
    """Log bytes are being received."""
    SHUTDOWN = "shutdown"
    """The session has ended."""


class LogBegins(NamedTuple):
    """The empty log must begin at this offset, the start of a file."""

    log_offset: int


class MasterHelloReceived(NamedTuple):
    """The master sent its hello. The owner truncates its log if required, then calls `SlaveSession.proceed`."""

    hello: MasterHello


class RecordsReceived(NamedTuple):
    """Verified records to store, in order."""

    pieces: list[Piece]


class MasterPromise(NamedTuple):
    """The master confirms the heartbeat with this number, and promises not to take over during its lease."""

    log_end: int
    number: int


class MasterHeartbeat(NamedTuple):
    """The master is the active member of the group, and sent a heartbeat; all records sent before it are stored."""

    heartbeat: Heartbeat


class MetadataReceived(NamedTuple):
    """A table from the master: KIND_TOPICS, … of `codec.ha`, or that of a feature."""

    kind: int
    payload: bytes


class CorruptRecordReceived(NamedTuple):
    """The master sent bytes that are not a valid record."""

    log_offset: int
    reason: str


class SlaveSessionClosed(NamedTuple):
    """The session has ended; the owner must close the connection."""

    reason: str
    is_refusal: bool = False
    """The master refused this slave, or did not prove that it knows the secret."""


Event = (
    LogBegins
    | MasterHelloReceived
    | RecordsReceived
    | MasterPromise
    | MasterHeartbeat
    | MetadataReceived
    | CorruptRecordReceived
    | SlaveSessionClosed
)


class SlaveSession:
    """Session on one connection to a master."""

    def __init__(
        self,
        log: LogView,
        now_ms: int,
        *,
        safe_end: int,
        hello: SlaveHello | None,
        heartbeat_ms: int,
        housekeeping_ms: int,
        prover: SlaveProver | None = None,
    ) -> None:
        """Begin on a connection that has just opened.

        Args:
            safe_end: below this offset the log is stored as safely as configured; more is not reported.
            hello: the hello to send; None with a master that uses the classic protocol.
            heartbeat_ms: maximum time between two reports.
            housekeeping_ms: silence of the master after which the session ends.
            prover: authentication before the hello; None without a secret.
        """
        assert hello is not None or prover is None, "the classic protocol has no proofs"
        self._log = log
        self._prover = prover
        self._hello = b"" if hello is None else encode_hello(hello)
        self._heartbeat_ms = heartbeat_ms
        self._housekeeping_ms = housekeeping_ms
        self.is_classic = hello is None
        self.tls = ""
        """TLS version of the connection, set by the owner; "" without TLS."""
        self.state = SlaveSessionState.TRANSFER if hello is None else SlaveSessionState.HANDSHAKE
        self.last_read_ms = now_ms
        self.last_write_ms = now_ms
        self._backlog = 0
        """Backlog of the connection at the last `tick`."""
        self._taken_ms = now_ms
        """Last time at which the backlog was empty or had shrunk."""
        self.reported = log.written_end if hello is None else safe_end
        self.received_bytes = 0
        self._in: deque[Buffer] = deque()
        self._in_bytes = 0
        self._wanted = TRANSFER_BYTES
        """Number of buffered bytes from which on parsing is tried again."""
        self._begun_ms = now_ms
        """When the first bytes of the incomplete transfer arrived."""
        self._stream = RecordStream(log.written_end, log.segment_bytes)
        self._is_empty = log.written_end == 0
        self._events: list[Event] = []
        self._out: list[Buffer] = [self._report_frame() if hello is None else prover.opening if prover else self._hello]

    @property
    def is_authenticated(self) -> bool:
        """Whether both sides have proven that they know the secret."""
        return self._prover is not None and self._prover.is_proven

    # Input, time and output.

    def receive_data(self, data: bytes, now_ms: int) -> None:
        """Process received bytes."""
        if self.state is SlaveSessionState.SHUTDOWN:
            return
        self.last_read_ms = now_ms
        missing = self._wanted - self._in_bytes
        try:
            if self.state is SlaveSessionState.TRANSFER and self._in and 0 < missing < len(data):
                # Join only the bytes that complete the transfer with its beginning, not all that follow.
                view = memoryview(data)
                self._read(view[:missing])
                self._read(view[missing:])
            else:
                self._read(data)
        except ProtocolError as error:
            self._close(str(error), is_refusal=isinstance(error, AuthenticationError))

    def _read(self, data: Buffer) -> None:
        self._in.append(data)
        self._in_bytes += len(data)
        if self.state is SlaveSessionState.HANDSHAKE and self._reads_proofs():
            self._read_hello()
        if self.state is SlaveSessionState.TRANSFER:
            self._read_transfers()

    def tick(self, now_ms: int, backlog: int = 0) -> None:
        """Send a report if one is due, and end the session if the master is silent or reads nothing for too long.

        `backlog`: bytes that the connection has not sent yet.
        """
        if self.state is SlaveSessionState.SHUTDOWN:
            return
        if not backlog or backlog < self._backlog:
            self._taken_ms = now_ms
        self._backlog = backlog
        if now_ms - self._taken_ms > self._housekeeping_ms:
            self._close(f"{backlog} bytes wait, and the master has read none for {now_ms - self._taken_ms} ms")
        elif now_ms - self.last_read_ms > self._housekeeping_ms:
            self._close(f"nothing from the master for {now_ms - self.last_read_ms} ms")
        elif self._is_begun and now_ms > self._overdue_ms:
            waited_ms, missing = now_ms - self._begun_ms, self._wanted - self._in_bytes
            self._close(f"a transfer is incomplete after {waited_ms} ms: {missing} bytes are missing")
        elif self.state is SlaveSessionState.TRANSFER and now_ms - self.last_write_ms >= self._heartbeat_ms:
            self._report(now_ms)

    def deadline_ms(self) -> int | None:
        """Return the monotonic time at which `tick` is needed, None for never."""
        if self.state is SlaveSessionState.SHUTDOWN:
            return None
        alive_ms = min(self.last_read_ms, self._taken_ms) if self._backlog else self.last_read_ms
        due = alive_ms + self._housekeeping_ms + 1
        if self._is_begun:
            due = min(due, self._overdue_ms + 1)
        return min(due, self.last_write_ms + self._heartbeat_ms) if self.state is SlaveSessionState.TRANSFER else due

    @property
    def _is_begun(self) -> bool:
        """Whether a transfer has arrived in part: its head, but not all of its body."""
        return self._wanted > TRANSFER_BYTES

    @property
    def _overdue_ms(self) -> int:
        """When the session ends because the body of a transfer is incomplete: its length field may be damaged.

        Connections may be slow: 1 kB/s is enough.
        """
        return self._begun_ms + max(self._housekeeping_ms, self._in_bytes)

    def next_event(self) -> Event | None:
        """Return the next event for the owner, None if there is none."""
        return self._events.pop(0) if self._events else None

    def data_to_send(self) -> list[Buffer]:
        """Return the bytes to send, in order."""
        out, self._out = self._out, []
        return out

    # Commands of the owner.

    def proceed(self, hello: MasterHello, safe_end: int) -> None:
        """Begin the transfer after the log was truncated as the master required; send the tail first if requested."""
        self.state = SlaveSessionState.TRANSFER
        if hello.send_tail:
            self._send_tail(hello.start)
            if self.state is SlaveSessionState.SHUTDOWN:
                return  # no report: it would mark the tail as complete
        self._stream = RecordStream(self._log.written_end, self._log.segment_bytes)
        self._is_empty = self._log.written_end == 0
        self.reported = safe_end
        self._out.append(self._report_frame())
        if self._in:
            try:
                self._read_transfers()
            except ProtocolError as error:
                self._close(str(error))

    def stored(self, log_offset: int, now_ms: int) -> None:
        """Report that the log is stored as safely as configured up to an offset, unless that was reported before."""
        if log_offset > self.reported and self.state is SlaveSessionState.TRANSFER:
            self.reported = log_offset
            self._report(now_ms)

    def send_promise(self, number: int, now_ms: int) -> None:
        """Confirm a heartbeat of the master, with the stored log end."""
        self._control(KIND_PROMISE, PROMISE.pack(self.reported, number), now_ms)

    def send_saved(self, number: int, now_ms: int) -> None:
        """Report that all metadata that arrived before a heartbeat is saved."""
        self._control(KIND_SAVED, SAVED.pack(number), now_ms)

    def send_heartbeat(self, heartbeat: Heartbeat, now_ms: int) -> None:
        """Send a heartbeat of this broker, the active member of the group."""
        self._control(KIND_HEARTBEAT, HEARTBEAT.pack(*heartbeat), now_ms)

    def _control(self, kind: int, payload: bytes, now_ms: int) -> None:
        if self.state is SlaveSessionState.TRANSFER and not self.is_classic:
            self._out.append(checked(kind, payload))
            self.last_write_ms = now_ms

    def _send_tail(self, start: int) -> None:
        end = self._log.written_end
        try:
            while start < end:
                data = self._log.read(start, min(TAIL_CHUNK_BYTES, end - start))
                self._out += [checked(KIND_TAIL, TRANSFER.pack(start, len(data))), data]
                start += len(data)
        except StoreError as error:
            self._close(f"the tail requested by the master cannot be read: {error}")

    def _report(self, now_ms: int) -> None:
        self._out.append(self._report_frame())
        self.last_write_ms = now_ms

    def _report_frame(self) -> bytes:
        report = REPORT.pack(self.reported)
        return report if self.is_classic else checked(KIND_REPORT, report)

    # Received bytes.

    def _joined(self) -> bytes:
        data = b"".join(self._in)
        self._in.clear()
        self._in_bytes = 0
        return data

    def _keep(self, data: bytes) -> None:
        if data:
            self._in.append(data)
            self._in_bytes = len(data)

    def _reads_proofs(self) -> bool:
        """Process the steps of the proof that have arrived; return whether the hello comes next."""
        while self._prover is not None and not self._prover.is_proven:
            if not self._in:
                return False
            data = self._joined()
            self._expect(PROOF_MARK, data)
            length = step_length(data)
            if length is None or len(data) < length:
                self._keep(data)
                return False
            self._keep(data[length:])
            answer = self._prover.take(data[:length])
            self._out += [answer] if answer else [self._hello, self._prover.seal(self._hello)]
        return bool(self._in)

    def _expect(self, mark: bytes, data: bytes) -> None:
        if data[: len(mark)] == mark[: len(data)]:
            return
        if data[: len(HELLO_MARK)] == HELLO_MARK:
            raise AuthenticationError(
                "the master does not authenticate: it has no haSecretFile, or is not a master of this group"
            )
        if data.startswith(TLS_ALERT):
            raise ProtocolError("the master uses TLS, this slave does not: set haTlsCertFile here as well")
        raise ProtocolError("the master does not answer as a TandemQ broker; set haProtocol = classic if it is Java's")

    def _read_hello(self) -> None:
        data = self._joined()
        self._expect(HELLO_MARK, data)
        length = hello_length(data)
        whole = 0 if length is None else length if self._prover is None else length + SEAL_BYTES
        if length is None or len(data) < whole:
            self._keep(data)
            return
        if self._prover is not None:
            self._prover.check_hello(data[:length], data[length:whole])
        hello = decode_master_hello(data[len(HELLO_MARK) + 4 : length])
        self._keep(data[whole:])
        if hello.refused is not None:
            self._close(f"refused by the master: {hello.refused}", is_refusal=True)
            return
        self._events.append(MasterHelloReceived(hello))

    def _read_transfers(self) -> None:
        if self._in_bytes < TRANSFER_BYTES:
            return
        if self._in_bytes < self._wanted:
            return
        self._begun_ms = self.last_read_ms
        data: Buffer = self._in[0] if len(self._in) == 1 else b"".join(self._in)
        self._in.clear()
        self._in_bytes = 0
        view = memoryview(data)
        bodies: list[Buffer] = []
        at, end = 0, len(data)
        expected = self._stream.received_end
        while end - at >= TRANSFER_BYTES:
            offset, size = TRANSFER.unpack_from(data, at)
            if not 0 <= size <= FRAME_BYTES_MAX:
                raise ProtocolError(f"a transfer of {size} bytes")
            self._wanted = TRANSFER_BYTES + size
            if offset == CONTROL and not self.is_classic:
                if end - at < TRANSFER_BYTES + size:
                    break
                if bodies:
                    self._take(bodies)
                    bodies = []
                    if self.state is not SlaveSessionState.TRANSFER:
                        return
                self._read_control(bytes(data[at + TRANSFER_BYTES : at + TRANSFER_BYTES + size]))
                at += TRANSFER_BYTES + size
                self._wanted = TRANSFER_BYTES
                continue
            if self._is_empty:
                expected = self._begin(offset)
            if offset != expected:
                raise ProtocolError(f"a transfer at log offset {offset}, {expected} is expected")
            if end - at < TRANSFER_BYTES + size:
                break
            if size:
                bodies.append(view[at + TRANSFER_BYTES : at + TRANSFER_BYTES + size])
            at += TRANSFER_BYTES + size
            expected += size
            self._wanted = TRANSFER_BYTES
        self._keep(bytes(data[at:]))
        if bodies:
            self._take(bodies)

    def _read_control(self, body: bytes) -> None:
        kind, content = verified(body)
        if kind == KIND_HEARTBEAT and len(content) == HEARTBEAT.size:
            self._events.append(MasterHeartbeat(Heartbeat(*HEARTBEAT.unpack(content))))
        elif kind == KIND_PROMISE and len(content) == PROMISE.size:
            self._events.append(MasterPromise(*PROMISE.unpack(content)))
        elif kind in (KIND_TOPICS, KIND_GROUPS, KIND_OFFSETS, KIND_DELAYS) or kind >= KIND_FEATURE_TABLES:
            self._events.append(MetadataReceived(kind, content))
        else:
            raise ProtocolError(f"a control frame of kind {kind} and {len(body)} bytes is not expected")

    def _begin(self, offset: int) -> int:
        if offset % self._log.segment_bytes:
            raise ProtocolError(f"the first transfer to an empty log at {offset}, which is not a file's start")
        self._is_empty = False
        self._stream = RecordStream(offset, self._log.segment_bytes)
        if offset:
            self._events.append(LogBegins(offset))
            self.reported = offset
        return offset

    def _take(self, bodies: list[Buffer]) -> None:
        self.received_bytes += sum(map(len, bodies))
        pieces, corrupt = self._stream.feed(*bodies)
        if pieces:
            self._events.append(RecordsReceived(pieces))
        if corrupt is not None:
            self._events.append(CorruptRecordReceived(corrupt.log_offset, corrupt.reason))
            self._close(f"the master sent a damaged record at {corrupt.log_offset}: {corrupt.reason}")

    def _close(self, reason: str, *, is_refusal: bool = False) -> None:
        self.state = SlaveSessionState.SHUTDOWN
        self._events.append(SlaveSessionClosed(reason, is_refusal))
