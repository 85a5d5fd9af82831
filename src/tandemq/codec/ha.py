"""Replication frames.

Classic, as RocketMQ 4 and 5 (without controller) speak it:

    slave → master   report    log end 8
    master → slave   transfer  log offset 8 · body size 4 · body     (size 0: heartbeat)

Between TandemQ brokers a hello comes first, both ways; its first 8 bytes can be no log offset:

    hello            mark 8 = 0xFF "TandemQ" · length 4 · JSON
    checked          kind 1 · content · CRC32 of both 4
    slave → master   afterwards only these:
                     kind 0: report, log end 8
                     kind 1: tail the master asked for, log offset 8 · size 4; behind it the bytes of the log
                     kind 2: report with a promise, log end 8 · number of the heartbeat 8
                     kind 3: heartbeat, of a slave that serves
    master → slave   transfers, and in the body of those with log offset -1 (CONTROL):
                     kind 2: a promise, log end 8 · number of the heartbeat 8
                     kind 3: heartbeat, of a master that serves
                     kind 4: topics, JSON              kind 7: consumer groups, JSON
                     kind 5: consumer offsets, JSON    kind 6: delay progress, JSON

    heartbeat        epoch 8 · number 8 · lease 4 · log end 8 · confirm offset 8

Promises, heartbeats and tables are spoken in groups with a registry only (docs/internals/failover.md).

With a secret (replication.authentication) both prove that they know it before the hellos, which are sealed then:

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
"""Of what a stranger may say."""
SEAL_BYTES = 32
TLS_BEGIN = b"\x16\x03"
"""How TLS begins: what arrives at a port without it."""
TLS_ALERT = b"\x15\x03"
"""How a port with TLS answers to what is none."""
KIND_REPORT = 0
KIND_TAIL = 1
KIND_PROMISE = 2
KIND_HEARTBEAT = 3
KIND_TOPICS = 4
KIND_OFFSETS = 5
KIND_DELAYS = 6
KIND_GROUPS = 7
CONTROL = -1
"""In place of a log offset: the body is for the member, not for the log."""
PROMISE = Struct(">qq")
HEARTBEAT = Struct(">qqiqq")
TAIL_CHECK_BYTES = 64 * 1024
"""Of at most so many of its last bytes a slave tells the checksum."""
TAIL_PAGE_BYTES = 4 * 1024
_LENGTH = Struct(">i")
_CHECK = Struct(">I")
CHECK_BYTES = 1 + _CHECK.size
"""What `checked` adds to its content."""


class Heartbeat(NamedTuple):
    """Sent by whoever serves a group with a registry, on every replication link."""

    epoch: int
    number: int
    """Echoed by the receiver as a promise not to take over; never 0."""
    lease_ms: int
    log_end: int
    """The sender's, bytes."""
    confirm_offset: int


class SlaveHello(msgspec.Struct, rename="camel"):
    """How a slave introduces itself.

    `generations` are (number, start offset) pairs: the history its log belongs to. `run_id` differs per process.
    `tail_crc` is the CRC of its bytes `[tail_start, log_end)`, by which the master sees whether both logs are the same;
    `tail_pages` has those of every `TAIL_PAGE_BYTES` of them, for a master with damage of its own among its last bytes.
    `address`: where it takes requests, "ip:port"; the master's likewise.
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
    """Of the mastership the slave knows, in a group with a registry; 0 without."""
    address: str = ""


class MasterHello(msgspec.Struct, rename="camel"):
    """The master's answer: where it will send from, or what it wants first.

    `refused` is the reason if it will not serve. `truncate_to` asks the slave to set aside and cut what lies behind.
    `send_tail` asks the slave for its bytes from `start` on: the master lost them.
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
    """Who a slave says it is, before anything is proven. The nonce is fresh, as the challenge's is."""

    cluster: str
    broker_name: str
    broker_id: int
    nonce: bytes


class Challenge(msgspec.Struct, rename="camel", omit_defaults=True):
    """A master's nonce, or why it will not go on: the only thing it says to somebody who has proven nothing."""

    nonce: bytes = b""
    refused: str | None = None


class SlaveProof(msgspec.Struct, rename="camel"):
    """A slave's proof."""

    proof: bytes


class MasterProof(msgspec.Struct, rename="camel", omit_defaults=True):
    """A master's proof, and who it is; or why it refuses the slave's."""

    broker_id: int = -1
    proof: bytes = b""
    refused: str | None = None


Step = Opening | Challenge | SlaveProof | MasterProof
_AnyStep = TypeVar("_AnyStep", Opening, Challenge, SlaveProof, MasterProof)


def page_crcs(tail: bytes) -> list[int]:
    """Checksums of a tail's pages; the last one may be shorter."""
    return [crc32(tail[at : at + TAIL_PAGE_BYTES]) for at in range(0, len(tail), TAIL_PAGE_BYTES)]


def encode_hello(hello: SlaveHello | MasterHello) -> bytes:
    """A hello as bytes."""
    return _marked(HELLO_MARK, hello)


def encode_step(step: Step) -> bytes:
    """A step of the proofs as bytes."""
    return _marked(PROOF_MARK, step)


def _marked(mark: bytes, what: SlaveHello | MasterHello | Step) -> bytes:
    body = msgspec.json.encode(what)
    return mark + _LENGTH.pack(len(body)) + body


def decode_step(frame: bytes, kind: type[_AnyStep]) -> _AnyStep:
    """A whole step, its mark and length before it.

    Raises:
        ProtocolError: it is not one of this kind.
    """
    try:
        return msgspec.json.decode(frame[len(PROOF_MARK) + 4 :], type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"unreadable {kind.__name__}: {error}") from error


def decode_slave_hello(body: bytes) -> SlaveHello:
    """The JSON of a slave's hello.

    Raises:
        ProtocolError: it is not one.
    """
    try:
        return msgspec.json.decode(body, type=SlaveHello)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"unreadable slave hello: {error}") from error


def decode_master_hello(body: bytes) -> MasterHello:
    """The JSON of a master's hello.

    Raises:
        ProtocolError: it is not one.
    """
    try:
        return msgspec.json.decode(body, type=MasterHello)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"unreadable master hello: {error}") from error


def hello_length(data: bytes) -> int | None:
    """Whole length of the hello that `data` begins with, None if that cannot be told yet.

    Raises:
        ProtocolError: the length is out of bounds.
    """
    return _whole_length(data, "hello", HELLO_BYTES_MAX)


def step_length(data: bytes) -> int | None:
    """Whole length of the step that `data` begins with, None if that cannot be told yet.

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
    """A kind and its content with their checksum: what no record carries one for."""
    body = bytes([kind]) + content
    return body + _CHECK.pack(crc32(body))


def verified(frame: bytes) -> tuple[int, bytes]:
    """Kind and content of a whole frame.

    Raises:
        ProtocolError: its checksum is another one.
    """
    body = frame[: -_CHECK.size]
    if len(frame) < CHECK_BYTES or frame[-_CHECK.size :] != _CHECK.pack(crc32(body)):
        raise ProtocolError(f"a frame of {len(frame)} bytes whose checksum does not match, of kind {frame[:1].hex()}")
    return body[0], body[1:]


def control_frame(kind: int, content: bytes) -> bytes:
    """What a master says to a slave besides log bytes."""
    body = checked(kind, content)
    return TRANSFER.pack(CONTROL, len(body)) + body


def frame_transfer(log_offset: int, body: bytes, batch_bytes: int) -> list[bytes | memoryview]:
    """Cut log bytes into transfer frames of at most `batch_bytes`; buffers to send, in order, without copying."""
    if len(body) <= batch_bytes:
        return [TRANSFER.pack(log_offset, len(body)), body]
    buffers: list[bytes | memoryview] = []
    view = memoryview(body)
    for position in range(0, len(body), batch_bytes):
        piece = view[position : position + batch_bytes]
        buffers.append(TRANSFER.pack(log_offset + position, len(piece)))
        buffers.append(piece)
    return buffers
