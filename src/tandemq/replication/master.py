"""The master's session with one slave.

                 first bytes                     hello answered
    READY ──────────────────────► HANDSHAKE ─────────────────────► TRANSFER ──► SHUTDOWN
      │                               └── the slave has the longer log ──► TAIL ──┘
      └── classic slave (admitted): first report ─────────────────► TRANSFER

A classic slave reports its log end, 8 bytes; it is admitted only if its address is configured. A TandemQ slave sends a
hello, after a proof if there is a secret. The master sends no log bytes before either. A report must not exceed what
was sent on this connection.

Own writes do not prove that the slave is alive, so reads and writes are timed separately.
Source: docs/internals/ha.md; requirements H06-H19, H25, T01-T08, T16-T18, W09.
"""

from enum import Enum
from struct import error as StructError
from typing import NamedTuple, Protocol

from tandemq.boundary import Buffer
from tandemq.codec.ha import (
    CHECK_BYTES,
    HEARTBEAT,
    HELLO_MARK,
    KIND_HEARTBEAT,
    KIND_PROMISE,
    KIND_REPORT,
    KIND_SAVED,
    KIND_TAIL,
    PROMISE,
    PROOF_MARK,
    REPORT,
    REPORT_BYTES,
    SAVED,
    SEAL_BYTES,
    TLS_BEGIN,
    TRANSFER,
    TRANSFER_BYTES,
    Challenge,
    Heartbeat,
    MasterHello,
    SlaveHello,
    control_frame,
    decode_slave_hello,
    encode_hello,
    encode_step,
    frame_transfer,
    hello_length,
    step_length,
    verified,
)
from tandemq.errors import AuthenticationError, ProtocolError, StoreError
from tandemq.not_cached import FileRange, NotCached
from tandemq.replication.authentication import MasterProver
from tandemq.replication.record_stream import Piece, RecordStream

CHUNK_BYTES = 1 << 20
READ_BYTES = 4 << 20
"""Bytes that are read from the device together if the page cache lacks them."""
BACKLOG_BYTES_MAX = 4 << 20
TAIL_FRAME_BYTES_MAX = 8 << 20
FRAME_BYTES = {
    KIND_REPORT: CHECK_BYTES + REPORT_BYTES,
    KIND_TAIL: CHECK_BYTES + TRANSFER_BYTES,
    KIND_PROMISE: CHECK_BYTES + PROMISE.size,
    KIND_HEARTBEAT: CHECK_BYTES + HEARTBEAT.size,
    KIND_SAVED: CHECK_BYTES + SAVED.size,
}
"""Lengths of a slave's frames by kind; the log bytes of a tail follow its frame."""
NOT_ADMITTED = "it did not introduce itself, and its address is not in haClassicPeers"


class LogView(Protocol):
    """The part of a commit log that replication uses."""

    @property
    def start(self) -> int:
        """Offset of the first byte held."""

    @property
    def written_end(self) -> int:
        """End of the written bytes."""

    @property
    def segment_bytes(self) -> int:
        """Length of one file."""

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes, not beyond the file's end."""

    def read_cached(self, offset: int, size: int) -> bytes:
        """Return the same without waiting for the device, or raise NotCached."""


class MasterSessionState(Enum):
    """State of a session."""

    READY = "ready"
    """Nothing received yet."""
    HANDSHAKE = "handshake"
    """Proofs and a hello are arriving, or the hello waits for the owner's answer."""
    TAIL = "tail"
    """The slave sends a part of the log that the master lost."""
    TRANSFER = "transfer"
    """The log is being copied."""
    SHUTDOWN = "shutdown"
    """The session has ended."""


EXPECTED = {
    MasterSessionState.TAIL: (KIND_REPORT, KIND_TAIL),
    MasterSessionState.TRANSFER: (KIND_REPORT, KIND_PROMISE, KIND_HEARTBEAT, KIND_SAVED),
}
"""Kinds of frames that a TandemQ slave may send, by state."""


class SlaveHelloReceived(NamedTuple):
    """A TandemQ slave sent its hello; the owner answers with `MasterSession.answer_hello`."""

    hello: SlaveHello


class SlaveAcked(NamedTuple):
    """The slave has stored the log up to this offset."""

    log_offset: int


class SlavePromise(NamedTuple):
    """The slave has stored the log up to this offset, and confirms the heartbeat with this number.

    With the confirmation it promises not to take over during the heartbeat's lease.
    """

    log_offset: int
    number: int


class SlaveSaved(NamedTuple):
    """The slave has saved all metadata that was sent before the heartbeat with this number."""

    number: int


class SlaveHeartbeat(NamedTuple):
    """The slave is the active member of the group, and sent a heartbeat."""

    heartbeat: Heartbeat


class TailReceived(NamedTuple):
    """Verified records that the master had lost, from a log offset on."""

    log_offset: int
    pieces: list[Piece]


class TailComplete(NamedTuple):
    """The slave has sent all of its tail."""


class LogNotCached(NamedTuple):
    """The page cache lacks what is to be copied next. The owner has the range read, and then calls `log_cached`."""

    range: FileRange


class MasterSessionClosed(NamedTuple):
    """The session has ended; the owner must close the connection."""

    reason: str


Event = (
    SlaveHelloReceived
    | SlaveAcked
    | SlavePromise
    | SlaveSaved
    | SlaveHeartbeat
    | TailReceived
    | TailComplete
    | LogNotCached
    | MasterSessionClosed
)


class MasterSettings(NamedTuple):
    """Settings of the sessions of a master."""

    heartbeat_ms: int
    """Maximum time between two frames to a slave."""
    housekeeping_ms: int
    """Silence of a slave after which its session ends."""
    batch_bytes: int
    """Maximum number of log bytes in a frame."""
    bytes_per_second: int = 0
    """Maximum transfer rate; 0: no limit."""


class MasterSession:
    """Session on one connection of one slave."""

    def __init__(
        self,
        log: LogView,
        now_ms: int,
        settings: MasterSettings,
        *,
        is_classic_admitted: bool,
        prover: MasterProver | None = None,
    ) -> None:
        """Begin on a connection that has just been accepted; without a `prover` no authentication is required."""
        self._log = log
        self._prover = prover
        self._admits_classic = is_classic_admitted
        self._settings = settings
        self._rate = self._budget = settings.bytes_per_second
        self._budget_ms = now_ms
        self.state = MasterSessionState.READY
        self._opened_ms = now_ms
        self.last_read_ms = now_ms
        self.last_write_ms = now_ms
        self.is_classic = False
        self.tls = ""
        """TLS version of the connection, set by the owner; "" without TLS."""
        self.hello: SlaveHello | None = None
        self.next_offset = -1
        """Log offset of the next transfer; -1 before the start is known."""
        self.acked_offset = -1
        self._awaits_read = False
        """Whether the owner has the next bytes read from the device."""
        self._read_end = 0
        """Log offset up to which it had bytes read: if they are missing again, the device is waited for."""
        self.transferred_bytes = 0
        self._in = b""
        self._tail: RecordStream | None = None
        self._out: list[Buffer] = []
        self._events: list[Event] = []

    @property
    def is_authenticated(self) -> bool:
        """Whether both sides have proven that they know the secret."""
        return self._prover is not None and self._prover.is_proven

    @property
    def unread_bytes(self) -> int:
        """Bytes buffered of an incomplete frame: at most those of a hello, or of a piece of a requested tail."""
        return len(self._in)

    def limit_rate(self, bytes_per_second: int) -> None:
        """Set the maximum transfer rate, 0 for no limit. It applies from the next second on."""
        self._rate = bytes_per_second

    # Input, time and output.

    def receive_data(self, data: bytes, now_ms: int) -> None:
        """Process received bytes."""
        if self.state is MasterSessionState.SHUTDOWN:
            return
        self.last_read_ms = now_ms
        self._in = self._in + data if self._in else data
        try:
            if self.state is MasterSessionState.READY:
                self._first_bytes()
            if self.state is MasterSessionState.HANDSHAKE and self._reads_proofs():
                self._read_hello()
            elif self.state in (MasterSessionState.TRANSFER, MasterSessionState.TAIL):
                self._read_reports()
        except (ProtocolError, StructError) as error:
            if isinstance(error, AuthenticationError):
                self._out.append(encode_step(Challenge(refused=str(error))))
            self._close(str(error))

    def tick(self, now_ms: int) -> None:
        """Send a heartbeat if one is due, and end the session if the slave is silent for too long."""
        if self.state is MasterSessionState.SHUTDOWN:
            return
        if now_ms - self.last_read_ms > self._settings.housekeeping_ms:
            self._close(f"no report for {now_ms - self.last_read_ms} ms")
        elif (
            self.state in (MasterSessionState.READY, MasterSessionState.HANDSHAKE)
            and now_ms - self._opened_ms > self._settings.housekeeping_ms
        ):
            self._close(f"no hello within {self._settings.housekeeping_ms} ms")
        elif self.state is MasterSessionState.TRANSFER and now_ms - self.last_write_ms >= self._settings.heartbeat_ms:
            self._out.append(TRANSFER.pack(self.next_offset, 0))
            self.last_write_ms = now_ms

    def deadline_ms(self) -> int | None:
        """Return the monotonic time at which `tick` or `data_to_send` is needed, None for never."""
        if self.state is MasterSessionState.SHUTDOWN:
            return None
        due = self.last_read_ms + self._settings.housekeeping_ms + 1
        if self.state in (MasterSessionState.READY, MasterSessionState.HANDSHAKE):
            due = min(due, self._opened_ms + self._settings.housekeeping_ms + 1)
        if self.state is MasterSessionState.TRANSFER:
            due = min(due, self.last_write_ms + self._settings.heartbeat_ms)
            if self._rate and self._budget <= 0 and self.next_offset < self._log.written_end:
                due = min(due, self._budget_ms + 1000)
        return due

    def next_event(self) -> Event | None:
        """Return the next event for the owner, None if there is none."""
        return self._events.pop(0) if self._events else None

    def data_to_send(self, backlog: int, now_ms: int) -> list[Buffer]:
        """Return the bytes to send, in order. Log bytes are added only while the connection's `backlog` is small."""
        if self.state is MasterSessionState.TRANSFER:
            self._pump(backlog, now_ms)
        out, self._out = self._out, []
        return out

    # Commands of the owner.

    def answer_hello(self, answer: MasterHello) -> None:
        """Answer the slave's hello and begin a transfer, request its tail, or end the session."""
        assert self.state is MasterSessionState.HANDSHAKE and self.hello is not None, "no hello was received"
        mine = encode_hello(answer)
        self._out += [mine] if self._prover is None else [mine, self._prover.seal(mine)]
        if answer.refused is not None:
            self._close(f"refused: {answer.refused}")
        elif answer.send_tail:
            self.state = MasterSessionState.TAIL
            self._tail = RecordStream(answer.start, self._log.segment_bytes)
        else:
            self.state = MasterSessionState.TRANSFER
            self.next_offset = answer.start
        if self._in:
            data, self._in = self._in, b""
            self.receive_data(data, self.last_read_ms)

    def send_heartbeat(self, heartbeat: Heartbeat, now_ms: int) -> None:
        """Send a heartbeat of this broker, the active member of the group."""
        self._control(KIND_HEARTBEAT, HEARTBEAT.pack(*heartbeat), now_ms)

    def send_promise(self, log_end: int, number: int, now_ms: int) -> None:
        """Confirm a heartbeat of the slave, the active member of the group."""
        self._control(KIND_PROMISE, PROMISE.pack(log_end, number), now_ms)

    def send_metadata(self, kind: int, payload: bytes, now_ms: int) -> None:
        """Send a table that is replicated besides the log; `kind`: KIND_TOPICS … of `codec.ha`."""
        self._control(kind, payload, now_ms)

    def _control(self, kind: int, payload: bytes, now_ms: int) -> None:
        if self.state is MasterSessionState.TRANSFER and not self.is_classic:
            self._out.append(control_frame(kind, payload))
            self.last_write_ms = now_ms

    def end(self, reason: str) -> None:
        """End the session; the slave must connect again and send a new hello."""
        if self.state is not MasterSessionState.SHUTDOWN:
            self._close(reason)

    def forget_events(self) -> None:
        """End the session and discard its events: received records could not be stored, so later ones must not be."""
        self.state = MasterSessionState.SHUTDOWN
        self._events.clear()

    def begin_transfer(self, start: int) -> None:
        """Begin to copy the log from this offset on, after the slave's tail was stored."""
        assert self.state is MasterSessionState.TAIL, "no tail was requested"
        self.state = MasterSessionState.TRANSFER
        self.next_offset = start
        self.acked_offset = start
        self._events.append(SlaveAcked(start))

    # Received bytes.

    def _first_bytes(self) -> None:
        mark, wanted = self._in[: len(HELLO_MARK)], HELLO_MARK if self._prover is None else PROOF_MARK
        if mark == wanted[: len(mark)]:
            if len(mark) == len(wanted):
                self.state = MasterSessionState.HANDSHAKE
        elif mark == PROOF_MARK:
            raise AuthenticationError("a proof is offered, and this master has no haSecretFile")
        elif mark == HELLO_MARK:
            refusal = "a proof is required: set haSecretFile, with the secret of this master"
            self._out.append(encode_hello(MasterHello(-1, refused=refusal)))
            self._close(refusal)
        elif not self._admits_classic:
            is_tls = mark.startswith(TLS_BEGIN)
            self._close("it uses TLS, this port does not: set haTlsCertFile here as well" if is_tls else NOT_ADMITTED)
        elif len(self._in) >= REPORT_BYTES:
            self.is_classic = True
            self._begin_classic()

    def _begin_classic(self) -> None:
        (offset,) = REPORT.unpack_from(self._in, 0)
        self._in = self._in[REPORT_BYTES:]
        end = self._log.written_end
        if not 0 <= offset <= end:
            self._close(f"it reports log end {offset}, ours is {end}; its store is of another history: empty it")
            return
        if offset and offset < self._log.start:
            self._close(f"it needs bytes from {offset}, we hold them from {self._log.start}; empty its store")
            return
        self.state = MasterSessionState.TRANSFER
        self.next_offset = offset or max(self._log.start, end - end % self._log.segment_bytes)
        self.acked_offset = offset
        self._events.append(SlaveAcked(offset))
        self._read_reports()

    def _reads_proofs(self) -> bool:
        """Process the steps of the proof that have arrived; return whether the hello comes next."""
        while self._prover is not None and not self._prover.is_proven:
            if self._in[: len(PROOF_MARK)] != PROOF_MARK[: len(self._in)]:
                raise ProtocolError("it did not complete its proof")
            length = step_length(self._in)
            if length is None or len(self._in) < length:
                return False
            frame, self._in = self._in[:length], self._in[length:]
            self._out.append(self._prover.take(frame))
        return True

    def _read_hello(self) -> None:
        length = hello_length(self._in) if self.hello is None else None
        if length is None:
            return
        whole = length if self._prover is None else length + SEAL_BYTES
        if len(self._in) < whole:
            return
        if self._prover is not None:
            self._prover.check_hello(self._in[:length], self._in[length:whole])
        hello = decode_slave_hello(self._in[len(HELLO_MARK) + 4 : length])
        if self._prover is not None and not self._prover.matches_opening(hello):
            raise ProtocolError("its hello has another identity than its opening")
        self.hello = hello
        self._in = self._in[whole:]
        self._events.append(SlaveHelloReceived(hello))

    def _read_reports(self) -> None:
        if self.is_classic:
            whole = len(self._in) - len(self._in) % REPORT_BYTES
            if whole:
                (offset,) = REPORT.unpack_from(self._in, whole - REPORT_BYTES)
                self._in = self._in[whole:]
                self._acked(offset)
            return
        while self._in and self.state in (MasterSessionState.TRANSFER, MasterSessionState.TAIL):
            kind = self._in[0]
            if kind not in EXPECTED[self.state]:
                raise ProtocolError(f"a frame of kind {kind} is not expected")
            size = FRAME_BYTES[kind]
            if kind == KIND_REPORT and self.state is MasterSessionState.TRANSFER:
                size *= self._whole_reports()
            if not size or len(self._in) < size:
                return
            _, content = verified(self._in[size - FRAME_BYTES[kind] : size])
            if kind == KIND_TAIL:
                offset, length = TRANSFER.unpack(content)
                if not self._read_tail(offset, length, size):
                    return
                continue
            self._in = self._in[size:]
            if kind == KIND_REPORT:
                self._reported(*REPORT.unpack(content))
            elif kind == KIND_HEARTBEAT:
                self._events.append(SlaveHeartbeat(Heartbeat(*HEARTBEAT.unpack(content))))
            elif kind == KIND_SAVED:
                self._events.append(SlaveSaved(*SAVED.unpack(content)))
            else:
                promised = SlavePromise(*PROMISE.unpack(content))
                self._acked(promised.log_offset)
                self._events.append(promised)

    def _whole_reports(self) -> int:
        """Return the number of consecutive complete reports; only the last of them counts."""
        size, count = FRAME_BYTES[KIND_REPORT], 0
        while count < len(self._in) // size and self._in[count * size] == KIND_REPORT:
            count += 1
        return count

    def _read_tail(self, offset: int, size: int, head_bytes: int) -> bool:
        """Process a piece of the tail at a log offset; False if it has not arrived completely."""
        if not 0 <= size <= TAIL_FRAME_BYTES_MAX:
            raise ProtocolError(f"a tail frame of {size} bytes")
        stop = head_bytes + size
        if len(self._in) < stop:
            return False
        body = self._in[head_bytes:stop]
        self._in = self._in[stop:]
        if self._tail is None:
            raise ProtocolError("a tail frame after the report that ended the tail")
        if offset != self._tail.received_end:
            raise ProtocolError(f"a tail frame at {offset}, {self._tail.received_end} is expected")
        begin = self._tail.position
        pieces, corrupt = self._tail.feed(body)
        if pieces:
            self._events.append(TailReceived(begin, pieces))
        if corrupt is not None:
            raise ProtocolError(f"its tail is damaged at {corrupt.log_offset}: {corrupt.reason}")
        return True

    def _reported(self, offset: int) -> None:
        if self.state is not MasterSessionState.TAIL:
            self._acked(offset)
        elif self._tail is not None:  # several reports may arrive before the transfer begins
            self._tail = None
            self._events.append(TailComplete())

    def _acked(self, offset: int) -> None:
        if offset < 0 or offset > self.next_offset:
            raise ProtocolError(f"it reports log end {offset}, only {self.next_offset} was sent")
        self.acked_offset = offset
        self._events.append(SlaveAcked(offset))

    # Bytes to send.

    def _pump(self, backlog: int, now_ms: int) -> None:
        """Add log bytes until the connection's backlog is large enough."""
        if self._rate and now_ms - self._budget_ms >= 1000:
            self._budget, self._budget_ms = self._rate, now_ms
        while backlog < BACKLOG_BYTES_MAX and self.next_offset < self._log.written_end and not self._awaits_read:
            size = CHUNK_BYTES if not self._rate else min(CHUNK_BYTES, self._budget)
            if size <= 0:
                return
            read = self._log.read if self.next_offset < self._read_end else self._log.read_cached
            try:
                data = read(self.next_offset, size)
            except NotCached as missing:
                self._awaits_read = True
                self._events.append(LogNotCached(missing.ranges[0]._replace(size=READ_BYTES)))
                return
            except StoreError as error:
                self._close(f"the log cannot be read at {self.next_offset}: {error}")
                return
            self._out += frame_transfer(self.next_offset, data, self._settings.batch_bytes)
            self.next_offset += len(data)
            self.transferred_bytes += len(data)
            self._budget -= len(data)
            backlog += len(data)
            self.last_write_ms = now_ms

    def log_cached(self) -> None:
        """Copy on: the range of the last `LogNotCached` was read."""
        self._awaits_read = False
        file_bytes = self._log.segment_bytes
        left = file_bytes - self.next_offset % file_bytes
        self._read_end = self.next_offset + min(READ_BYTES, left)

    def _close(self, reason: str) -> None:
        self.state = MasterSessionState.SHUTDOWN
        self._events.append(MasterSessionClosed(reason))
