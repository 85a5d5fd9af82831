"""Frames of the replication (HA) protocol.

Classic, as in RocketMQ 4 and in RocketMQ 5 without controller:

    slave → master   report    log end 8
    master → slave   transfer  log offset 8 · body size 4 · body     (size 0: heartbeat)

Between TandemQ brokers both sides send a hello first. Its first 8 bytes are not a valid log offset:

    hello            mark 8 = 0xFF "TandemQ" · length 4 · JSON
    checked          kind 1 · content · CRC32 of both 4
    slave → master   after the hellos, only checked frames:
                     kind 0: report, log end 8
                     kind 1: log tail requested by the master, log offset 8 · size 4; followed by the bytes of the log
                     kind 2: report with a promise, log end 8 · number of the heartbeat 8
                     kind 3: heartbeat of a slave that is the active member
                     kind 8: all tables before a heartbeat are saved, number of the heartbeat 8
    master → slave   transfers; those with log offset -1 (CONTROL) carry a checked frame:
                     kind 2: a promise, log end 8 · number of the heartbeat 8
                     kind 3: heartbeat of a master that is the active member
                     kind 4: topics, JSON              kind 7: consumer groups, JSON
                     kind 5: consumer offsets, JSON    kind 6: delay progress, JSON

    heartbeat        epoch 8 · number 8 · lease 4 · log end 8 · confirm offset 8

Promises, heartbeats and tables are used only in groups with a registry (docs/internals/failover.md).

With a secret (replication.authentication) both sides prove that they know it before the hellos, which are then sealed:

    step             mark 8 = 0xFF "TandemP" · length 4 · JSON       opening, challenge, slave's proof, master's proof
    sealed hello     hello · seal 32

Source: docs/internals/ha.md; RocketMQ DefaultHAConnection, DefaultHAClient.
"""

from struct import Struct
from typing import NamedTuple, TypeVar

import msgspec
from isal.isal_zlib import crc32

from tandemq.errors import ProtocolError

REPORT = Struct(">q")
TRANSFER = Struct(">qi")
REPORT_BYTES = 8
TRANSFER_BYTES = 12
HELLO_MARK = b"\xffTandemQ"
HELLO_BYTES_MAX = 1 << 20
PROOF_MARK = b"\xffTandemP"
STEP_BYTES_MAX = 1 << 10
"""Maximum length of a message from an unauthenticated peer."""
SEAL_BYTES = 32
TLS_BEGIN = b"\x16\x03"
"""First bytes of a TLS client, as a port without TLS receives them."""
TLS_ALERT = b"\x15\x03"
"""First bytes of a TLS port's answer to a client without TLS."""
KIND_REPORT = 0
KIND_TAIL = 1
KIND_PROMISE = 2
KIND_HEARTBEAT = 3
KIND_TOPICS = 4
KIND_OFFSETS = 5
KIND_DELAYS = 6
KIND_GROUPS = 7
KIND_SAVED = 8
KIND_FEATURE_TABLES = 16
"""Kinds from this one on are of tables that features declare."""
CONTROL = -1
"""Log offset of a transfer whose body is a control frame, not log bytes."""
PROMISE = Struct(">qq")
SAVED = Struct(">q")
HEARTBEAT = Struct(">qqiqq")
TAIL_CHECK_BYTES = 64 * 1024
"""Size of the log tail of which a slave reports the checksum in its hello."""
TAIL_PAGE_BYTES = 4 * 1024
_LENGTH = Struct(">i")
_CHECK = Struct(">I")
CHECK_BYTES = 1 + _CHECK.size
"""Number of bytes that `checked` adds to its content."""


class Heartbeat(NamedTuple):
    """Heartbeat of the active member of a group with a registry, sent on every replication connection."""

    epoch: int
    number: int
    """The receiver returns it as a promise not to take over during the lease; never 0."""
    lease_ms: int
    log_end: int
    """Log end of the sender."""
    confirm_offset: int


class SlaveHello(msgspec.Struct, rename="camel"):
    """First message of a slave: its identity and the state of its log.

    `generations` is its epoch table: (epoch, start offset) pairs. `run_id` differs per process. `tail_crc` is the CRC
    of its log bytes `[tail_start, log_end)`, by which the master checks that both logs are the same; `tail_pages` has
    the CRC of each `TAIL_PAGE_BYTES` of them, for a master whose own tail is damaged.
    `address` is the "ip:port" on which the slave accepts requests.
    """

    cluster: str
    broker_name: str
    broker_id: int
    run_id: int
    log_start: int
    log_end: int
    segment_bytes: int
    generations: list[tuple[int, int]] = []
    tail_start: int = 0
    tail_crc: int = 0
    tail_pages: list[int] = []
    epoch: int = 0
    """Latest epoch that the slave knows, in a group with a registry; 0 without one."""
    address: str = ""


class MasterHello(msgspec.Struct, rename="camel"):
    """Answer of a master: the log offset from which on it will send, or what the slave must do first.

    `refused` is the reason why it does not serve the slave. `truncate_to` tells the slave to quarantine and truncate
    its log from that offset on. `send_tail` requests the slave's log bytes from `start` on, which the master lost.
    `address` is the "ip:port" on which the master accepts requests.
    """

    broker_id: int
    start: int = 0
    log_start: int = 0
    log_end: int = 0
    truncate_to: int | None = None
    send_tail: bool = False
    refused: str | None = None
    generations: list[tuple[int, int]] = []
    epoch: int = 0
    address: str = ""


class Opening(msgspec.Struct, rename="camel"):
    """First step of the proof: the identity that a slave claims, and a fresh nonce."""

    cluster: str
    broker_name: str
    broker_id: int
    nonce: bytes


class Challenge(msgspec.Struct, rename="camel", omit_defaults=True):
    """Second step: a fresh nonce of the master, or the reason of a refusal. All that an unauthenticated peer gets."""

    nonce: bytes = b""
    refused: str | None = None


class SlaveProof(msgspec.Struct, rename="camel"):
    """Third step: the slave's proof."""

    proof: bytes


class MasterProof(msgspec.Struct, rename="camel", omit_defaults=True):
    """Last step: the master's identity and proof, or the reason why it refuses the slave's."""

    broker_id: int = -1
    proof: bytes = b""
    refused: str | None = None


Step = Opening | Challenge | SlaveProof | MasterProof
_AnyStep = TypeVar("_AnyStep", Opening, Challenge, SlaveProof, MasterProof)


def page_crcs(tail: bytes) -> list[int]:
    """Return the checksums of a log tail's pages; the last page may be shorter."""
    return [crc32(tail[start : start + TAIL_PAGE_BYTES]) for start in range(0, len(tail), TAIL_PAGE_BYTES)]


def encode_hello(hello: SlaveHello | MasterHello) -> bytes:
    """Encode a hello."""
    return _marked(HELLO_MARK, hello)


def encode_step(step: Step) -> bytes:
    """Encode a step of the proof."""
    return _marked(PROOF_MARK, step)


def _marked(mark: bytes, what: SlaveHello | MasterHello | Step) -> bytes:
    body = msgspec.json.encode(what)
    return mark + _LENGTH.pack(len(body)) + body


def decode_step(frame: bytes, kind: type[_AnyStep]) -> _AnyStep:
    """Decode a complete step, with its mark and length.

    Raises:
        ProtocolError: it is not a step of this kind.
    """
    try:
        return msgspec.json.decode(frame[len(PROOF_MARK) + 4 :], type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"unreadable {kind.__name__}: {error}") from error


def decode_slave_hello(body: bytes) -> SlaveHello:
    """Decode the JSON of a slave's hello.

    Raises:
        ProtocolError: it is malformed.
    """
    try:
        return msgspec.json.decode(body, type=SlaveHello)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"unreadable slave hello: {error}") from error


def decode_master_hello(body: bytes) -> MasterHello:
    """Decode the JSON of a master's hello.

    Raises:
        ProtocolError: it is malformed.
    """
    try:
        return msgspec.json.decode(body, type=MasterHello)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"unreadable master hello: {error}") from error


def hello_length(data: bytes) -> int | None:
    """Return the length in bytes of the hello at the start of `data`, None if more bytes are needed to know it.

    Raises:
        ProtocolError: the length is out of bounds.
    """
    return _whole_length(data, "hello", HELLO_BYTES_MAX)


def step_length(data: bytes) -> int | None:
    """Return the length in bytes of the step at the start of `data`, None if more bytes are needed to know it.

    Raises:
        ProtocolError: the length is out of bounds.
    """
    return _whole_length(data, "step", STEP_BYTES_MAX)


def _whole_length(data: bytes, what: str, most: int) -> int | None:
    if len(data) < len(HELLO_MARK) + 4:
        return None
    (length,) = _LENGTH.unpack_from(data, len(HELLO_MARK))
    if not 0 < length <= most:
        raise ProtocolError(f"a {what} of {length} bytes; at most {most} are allowed")
    return int(len(HELLO_MARK) + 4 + length)


def checked(kind: int, content: bytes) -> bytes:
    """Encode a checked frame: kind, content, and the checksum of both."""
    body = bytes([kind]) + content
    return body + _CHECK.pack(crc32(body))


def verified(frame: bytes) -> tuple[int, bytes]:
    """Verify a checked frame and return its kind and content.

    Raises:
        ProtocolError: the checksum does not match.
    """
    body = frame[: -_CHECK.size]
    if len(frame) < CHECK_BYTES or frame[-_CHECK.size :] != _CHECK.pack(crc32(body)):
        raise ProtocolError(f"a frame of {len(frame)} bytes whose checksum does not match, of kind {frame[:1].hex()}")
    return body[0], body[1:]


def control_frame(kind: int, content: bytes) -> bytes:
    """Encode a control frame of a master."""
    body = checked(kind, content)
    return TRANSFER.pack(CONTROL, len(body)) + body


def frame_transfer(log_offset: int, body: bytes, batch_bytes: int) -> list[bytes | memoryview]:
    """Split log bytes into transfer frames of at most `batch_bytes`; return the buffers to send, without copying."""
    if len(body) <= batch_bytes:
        return [TRANSFER.pack(log_offset, len(body)), body]
    buffers: list[bytes | memoryview] = []
    view = memoryview(body)
    for position in range(0, len(body), batch_bytes):
        piece = view[position : position + batch_bytes]
        buffers.append(TRANSFER.pack(log_offset + position, len(piece)))
        buffers.append(piece)
    return buffers
