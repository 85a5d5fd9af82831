"""One link of a client, as the broker sees it."""

from ipaddress import ip_address

from tandemq.boundary import LinkKind
from tandemq.codec.frame import FrameDecoder
from tandemq.codec.layout import Layout
from tandemq.codec.record import encode_host

_NO_LAYOUT = (b"", b"", b"\x02", Layout(b"", b"", 0, None, waits=True, is_usual=True))


class Link:
    """A remoting connection: its unfinished frame, and the peer's address as records hold it."""

    __slots__ = ("born_host", "decoder", "is_v4", "kind", "layout", "layout_bytes", "number", "peer", "seen_ms")

    def __init__(self, number: int, kind: LinkKind, peer: str, now_ms: int, frame_bytes_max: int) -> None:
        """A link that has just opened; `peer` is "ip:port"."""
        self.number = number
        self.kind = kind
        self.peer = peer
        self.seen_ms = now_ms
        self.decoder = FrameDecoder(frame_bytes_max)
        self.born_host = pack_host(peer)
        self.is_v4 = len(self.born_host) == 8
        self.layout: tuple[bytes, bytes, bytes, Layout] = _NO_LAYOUT
        """Properties of the last message sent here: before its unique key, the key, behind it, and what they mean."""
        self.layout_bytes = -1


def pack_host(text: str) -> bytes:
    """Address and port of "ip:port" or "[v6]:port" as records hold them; 0.0.0.0 for a name."""
    host, _, port = text.rpartition(":")
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return encode_host(bytes(4), int(port))
    mapped = getattr(address, "ipv4_mapped", None)
    return encode_host((mapped or address).packed, int(port))
