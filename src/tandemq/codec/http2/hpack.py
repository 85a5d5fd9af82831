"""Header decompression of HTTP/2 (HPACK).

A block of headers refers to a table that both ends keep: a part of fixed entries, and the latest entries that the peer
added. Text may be Huffman-coded. What this server sends refers to fixed entries only, so there is no encoder with a
table; see `literal`.

Invariant: a decoder keeps at most TABLE_BYTES_MAX of entries, and a block gives at most `bytes_max` of headers, by the
specification's measure, which counts 32 bytes more for each, also for each change of the table's size. A block that
exceeds it is an error, since the table may not skip it.

Source: RFC 7541.
"""

from collections import deque
from collections.abc import Iterator

from tandemq.errors import ProtocolError

Header = tuple[bytes, bytes]
"""Name and value."""
TABLE_BYTES_MAX = 4096
"""Size of the table that peers may fill: the initial value of the specification."""
ENTRY_OVERHEAD = 32
_INTEGER_BYTES_MAX = 5
_REMEMBERED_MAX = 4096
_REMEMBERED_BYTES_MAX = 128
_NAMES = (
    ":authority :method :method :path :path :scheme :scheme :status :status :status :status :status :status :status "
    "accept-charset accept-encoding accept-language accept-ranges accept access-control-allow-origin age allow "
    "authorization cache-control content-disposition content-encoding content-language content-length content-location "
    "content-range content-type cookie date etag expect expires from host if-match if-modified-since if-none-match "
    "if-range if-unmodified-since last-modified link location max-forwards proxy-authenticate proxy-authorization "
    "range referer refresh retry-after server set-cookie strict-transport-security transfer-encoding user-agent vary "
    "via www-authenticate"
)
_VALUES = {
    2: "GET", 3: "POST", 4: "/", 5: "/index.html", 6: "http", 7: "https", 8: "200", 9: "204", 10: "206", 11: "304",
    12: "400", 13: "404", 14: "500", 16: "gzip, deflate",
}  # fmt: skip
STATIC: tuple[Header, ...] = tuple(
    (name.encode(), _VALUES.get(index, "").encode()) for index, name in enumerate(_NAMES.split(), start=1)
)
"""The fixed entries; the first has the index 1."""
_CODE_LENGTHS = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b080606060505"
    "050606060606060607080f060c0a0d06070707070707070707070707070707070707070707070807080d130d0e060f050605"
    "06050606060507070606060506070605050607070707070f0b0e0d1c14161414161616171617171717171817181816171817"
    "1717171516171617171816151416161717151716161815161717151516151716171714161616171616171a1a141316171619"
    "1a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c"
    "1b1b1b1b1b1a1e"
)
"""Bits of the Huffman code of each byte, and of the end of text; codes of one length follow the order of bytes."""
_END_OF_TEXT = 256


class _Node:
    """Node of the code's tree: the nodes or bytes that the next bit leads to."""

    __slots__ = ("children", "may_end", "steps")

    def __init__(self) -> None:
        self.children: list[_Node | int] = []
        self.may_end = False
        """Whether a text may end here: after fewer than eight bits, all of them ones."""
        self.steps: list[tuple[_Node, bytes] | None] | None = None
        """For each value of the next eight bits, the node they lead to and the bytes that they complete; None for those
        that no text has."""

    def built(self) -> "list[tuple[_Node, bytes] | None]":
        """Return the steps, which are made when they are first needed."""
        steps = self.steps
        if steps is None:
            steps = self.steps = [self._step(value) for value in range(256)]
        return steps

    def _step(self, value: int) -> "tuple[_Node, bytes] | None":
        node, found = self, b""
        for shift in range(7, -1, -1):
            child = node.children[value >> shift & 1]
            if isinstance(child, _Node):
                node = child
            elif child == _END_OF_TEXT:
                return None
            else:
                found += bytes((child,))
                node = _ROOT
        return node, found


def _tree() -> _Node:
    """Return the root of the code's tree; codes ascend by length, then by byte."""
    by_length: dict[int, list[int]] = {}
    for byte, length in enumerate(_CODE_LENGTHS):
        by_length.setdefault(length, []).append(byte)
    root = _Node()
    open_nodes = [root]
    for depth in range(1, max(by_length) + 1):
        leaves: Iterator[int] = iter(by_length.get(depth, ()))
        deeper: list[_Node] = []
        for node in open_nodes:
            for _ in (0, 1):
                leaf = next(leaves, None)
                child: _Node | int = _Node() if leaf is None else leaf
                node.children.append(child)
                if isinstance(child, _Node):
                    deeper.append(child)
        open_nodes = deeper
    node, root.may_end = root, True
    for _ in range(7):
        following = node.children[1]
        assert isinstance(following, _Node), "the code of seven ones is no byte's"
        node = following
        node.may_end = True
    return root


_ROOT = _tree()
_texts: dict[bytes, bytes] = {}
"""Short texts by their Huffman codes: many recur, such as dates."""


def huffman_decoded(data: bytes) -> bytes:
    """Return the text of a Huffman code.

    Raises:
        ProtocolError: it is none.
    """
    node = _ROOT
    parts = []
    for value in data:
        step = (node.steps or node.built())[value]
        if step is None:
            raise ProtocolError("a header holds the Huffman code of the end of a text")
        node, found = step
        parts.append(found)
    if not node.may_end:
        raise ProtocolError("a header's Huffman code ends within a byte")
    return b"".join(parts)


def literal(name: bytes, value: bytes) -> bytes:
    """Return a header that refers to no entry and makes none."""
    return b"\x00" + _length(name) + name + _length(value) + value


def _length(text: bytes) -> bytes:
    size = len(text)
    if size < 127:
        return bytes((size,))
    size -= 127
    encoded = bytearray((127,))
    while size >= 128:
        encoded.append(size & 127 | 128)
        size >>= 7
    encoded.append(size)
    return bytes(encoded)


class HeaderDecoder:
    """Headers of one connection, block after block."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max`: maximum size of the headers of a block."""
        self._bytes_max = bytes_max
        self._entries: deque[Header] = deque()
        """What the peer has added, the latest first."""
        self._size = 0
        self._size_max = TABLE_BYTES_MAX
        self.block_bytes = 0
        """Size of the headers of the latest block."""

    def decode(self, block: bytes) -> list[Header]:
        """Return the headers of a block.

        Raises:
            ProtocolError: it cannot be decoded; the table of the connection is lost.
        """
        headers: list[Header] = []
        at, end, left = 0, len(block), self._bytes_max
        static_count = len(STATIC)
        try:
            while at < end:
                first = block[at]
                if first & 0x80:
                    index, at = (first & 0x7F, at + 1) if first != 0xFF else _integer(block, at, 7)
                    header = STATIC[index - 1] if 0 < index <= static_count else self._entry(index)
                elif first & 0xE0 == 0x20:
                    if headers:
                        raise ProtocolError("the size of the header table changes behind a header")
                    size, at = _integer(block, at, 5)
                    self._resize(size)
                    left -= ENTRY_OVERHEAD
                    if left < 0:
                        raise ProtocolError("the size of the header table changes too often")
                    continue
                else:
                    is_added = first & 0x40
                    index, at = _integer(block, at, 6 if is_added else 4)
                    if index:
                        name = (STATIC[index - 1] if index <= static_count else self._entry(index))[0]
                    else:
                        name, at = self._text(block, at)
                    value, at = self._text(block, at)
                    header = (name, value)
                    if is_added:
                        self._add(header)
                left -= len(header[0]) + len(header[1]) + ENTRY_OVERHEAD
                if left < 0:
                    raise ProtocolError(f"a request has more than {self._bytes_max} bytes of headers")
                headers.append(header)
        except IndexError:
            raise ProtocolError("a header block ends within a header, or names an entry that there is not") from None
        self.block_bytes = self._bytes_max - left
        return headers

    def _entry(self, index: int) -> Header:
        return self._entries[index - len(STATIC) - 1 if index else len(self._entries)]

    def _text(self, block: bytes, at: int) -> tuple[bytes, int]:
        first = block[at]
        size, at = (first & 0x7F, at + 1) if first & 0x7F != 0x7F else _integer(block, at, 7)
        end = at + size
        if end > len(block):
            raise IndexError
        data = block[at:end]
        if not first & 0x80:
            return data, end
        text = _texts.get(data)
        if text is None:
            text = huffman_decoded(data)
            if size <= _REMEMBERED_BYTES_MAX:
                if len(_texts) >= _REMEMBERED_MAX:
                    _texts.clear()
                _texts[data] = text
        return text, end

    def _add(self, header: Header) -> None:
        self._entries.appendleft(header)
        self._size += len(header[0]) + len(header[1]) + ENTRY_OVERHEAD
        self._evict()

    def _resize(self, size: int) -> None:
        if size > TABLE_BYTES_MAX:
            raise ProtocolError(f"the header table shall have {size} bytes; the maximum is {TABLE_BYTES_MAX}")
        self._size_max = size
        self._evict()

    def _evict(self) -> None:
        while self._size > self._size_max:
            name, value = self._entries.pop()
            self._size -= len(name) + len(value) + ENTRY_OVERHEAD


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """Return a number whose first bits share a byte with others, and the place behind it."""
    most = (1 << bits) - 1
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    for shift in range(0, 7 * _INTEGER_BYTES_MAX, 7):
        byte = block[at]
        at += 1
        value += (byte & 127) << shift
        if not byte & 128:
            return value, at
    raise ProtocolError("a number in a header block is too long")
