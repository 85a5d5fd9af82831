"""A client connection of the broker."""

from collections.abc import Callable
from ipaddress import ip_address
from typing import NamedTuple

from tandemq.boundary import LinkKind, Now
from tandemq.broker.state.topics import Topic
from tandemq.codec.record.layout import Layout
from tandemq.codec.record.record import encode_host
from tandemq.codec.remoting.frame import FrameDecoder
from tandemq.codec.remoting.partial_frames import PartialFrames
from tandemq.codec.remoting.send_header import Match
from tandemq.model.command import Command
from tandemq.model.topic import TopicConfig
from tandemq.storage.consume_queue import ConsumeQueue


class SendTemplate(NamedTuple):
    """Fields that ordinary messages of one kind share; common to all connections that send such messages."""

    topic: Topic
    matches: Match
    """Pattern of their headers."""
    queues: dict[bytes, ConsumeQueue]
    """Queues of the topic that messages were sent to so far, by their id as text of the header."""
    layout: Layout
    flag: int
    sys_flag: int
    command_flag: int


class BatchTemplate(NamedTuple):
    """Fields that the headers of batches on one connection share."""

    topic: Topic
    matches: Match
    queues: dict[bytes, ConsumeQueue]
    """As in `SendTemplate`."""
    sys_flag: int
    waits: bool
    has_key: bool
    """Whether the batch itself has a unique key, which its response repeats."""
    command_flag: int


NO_TEMPLATE = SendTemplate(
    Topic(TopicConfig("", 0, 0)), lambda _: None, {}, Layout(b"", b"", 0, None, waits=True, is_usual=False), 0, 0, 0
)


class Link:
    """State of a remoting connection: its unfinished frame, the peer's address, and templates of its sends."""

    __slots__ = (
        "batches",
        "born_host",
        "decoder",
        "is_v4",
        "kind",
        "layout",
        "learned",
        "nonces",
        "number",
        "peer",
        "seen_ms",
        "sent_bytes",
        "template",
    )

    def __init__(
        self, number: int, kind: LinkKind, peer: str, now_ms: int, frame_bytes_max: int, unfinished: PartialFrames
    ) -> None:
        """Begin with a connection that has just been accepted; `peer` is "ip:port"."""
        self.number = number
        self.kind = kind
        self.peer = peer
        self.seen_ms = now_ms
        self.decoder = FrameDecoder(frame_bytes_max, unfinished, number)
        self.born_host = pack_host(peer)
        self.is_v4 = len(self.born_host) == 8
        self.layout: Layout | None = None
        """Property layout of the last message whose header had to be decoded."""
        self.template = NO_TEMPLATE
        """Of ordinary messages sent before."""
        self.batches: BatchTemplate | None = None
        """The same for batches."""
        self.learned = 0
        """Number of header patterns made for this connection."""
        self.nonces: list[bytes] = []
        """Nonces sent to a group member for its next requests on this connection; see `failover.member_requests`."""
        self.sent_bytes = 0
        """Length of header and body of the last ordinary message that was read by itself."""


def pack_host(text: str) -> bytes:
    """Encode "ip:port" or "[v6]:port" as records store it; a host name becomes 0.0.0.0."""
    host, _, port = text.rpartition(":")
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return encode_host(bytes(4), int(port))
    mapped = getattr(address, "ipv4_mapped", None)
    return encode_host((mapped or address).packed, int(port))


Handler = Callable[[Link, Command, Now], Command | None]
"""Handles a request. Returns the response, or None if it comes later, or never."""
