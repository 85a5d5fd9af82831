"""One link of a client, as the broker sees it."""

from ipaddress import ip_address
from typing import NamedTuple

from tandemq.boundary import LinkKind
from tandemq.broker.state.topics import Topic
from tandemq.codec.record.layout import Layout
from tandemq.codec.record.record import encode_host
from tandemq.codec.remoting.frame import FrameDecoder
from tandemq.codec.remoting.partial_frames import Unfinished
from tandemq.codec.remoting.send_header import Match
from tandemq.model.topic import TopicConfig
from tandemq.storage.consume_queue import ConsumeQueue


class Likeness(NamedTuple):
    """What ordinary messages have in common; all links that send alike share it."""

    topic: Topic
    matches: Match
    """Knows the headers of messages like these."""
    queues: dict[bytes, ConsumeQueue]
    """Queues of the topic met so far, by number as the header has it."""
    layout: Layout
    flag: int
    sys_flag: int
    command_flag: int


class BatchLikeness(NamedTuple):
    """What the headers of batches sent on a link have in common."""

    topic: Topic
    matches: Match
    queues: dict[bytes, ConsumeQueue]
    """As above."""
    sys_flag: int
    waits: bool
    has_key: bool
    """Whether the batch itself has a unique key, which its answer repeats."""
    command_flag: int


NO_LIKENESS = Likeness(
    Topic(TopicConfig("", 0, 0)), lambda _: None, {}, Layout(b"", b"", 0, None, waits=True, is_usual=False), 0, 0, 0
)


class Link:
    """A remoting connection: its unfinished frame, and the peer's address as records hold it."""

    __slots__ = (
        "batches",
        "born_host",
        "decoder",
        "is_v4",
        "kind",
        "layout",
        "learned",
        "likeness",
        "nonces",
        "number",
        "peer",
        "seen_ms",
        "sent_bytes",
    )

    def __init__(
        self, number: int, kind: LinkKind, peer: str, now_ms: int, frame_bytes_max: int, unfinished: Unfinished
    ) -> None:
        """A link that has just opened; `peer` is "ip:port"."""
        self.number = number
        self.kind = kind
        self.peer = peer
        self.seen_ms = now_ms
        self.decoder = FrameDecoder(frame_bytes_max, unfinished, number)
        self.born_host = pack_host(peer)
        self.is_v4 = len(self.born_host) == 8
        self.layout: Layout | None = None
        """Of the last message whose header had to be decoded."""
        self.likeness = NO_LIKENESS
        self.batches: BatchLikeness | None = None
        """The same of batches."""
        self.learned = 0
        self.nonces: list[bytes] = []
        """Told to a member of the group for its next requests here; see `failover.member_requests`."""
        self.sent_bytes = 0
        """Header and body of the last ordinary message that was read by itself."""


def pack_host(text: str) -> bytes:
    """Address and port of "ip:port" or "[v6]:port" as records hold them; 0.0.0.0 for a name."""
    host, _, port = text.rpartition(":")
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return encode_host(bytes(4), int(port))
    mapped = getattr(address, "ipv4_mapped", None)
    return encode_host((mapped or address).packed, int(port))
