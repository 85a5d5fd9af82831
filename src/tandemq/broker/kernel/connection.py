"""A client connection of the broker."""

from collections.abc import Callable
from ipaddress import ip_address

from tandemq.boundary import LinkKind, Now
from tandemq.codec.record.record import encode_host
from tandemq.codec.remoting.frame import FrameDecoder
from tandemq.codec.remoting.partial_frames import PartialFrames
from tandemq.engine import Budget
from tandemq.model.command import Command


class Link:
    """State of a remoting connection: its unfinished frame, and the peer's address."""

    __slots__ = (
        "born_host",
        "budget",
        "decoder",
        "is_closed",
        "kind",
        "nonces",
        "number",
        "peer",
        "seen_ms",
        "takes_go_away",
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
        self.nonces: list[bytes] = []
        """Nonces sent to a group member for its next requests on this connection; see `failover.member_requests`."""
        self.budget: Budget | None = None
        """Rate of the sends of the user that it belongs to; None: unlimited, or not known yet."""
        self.takes_go_away = False
        """Whether it is a client that understands GO_AWAY; see `connections.farewell`."""
        self.is_closed = False
        """Whether the broker closes it with this turn: what else arrived on it is not read."""


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
