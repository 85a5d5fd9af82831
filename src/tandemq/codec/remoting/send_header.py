"""JSON headers of sends, read by a regular expression that is derived from an earlier header.

The headers of one producer's sends differ in four values: queue, born time, unique key and opaque. Once one header was
decoded, headers that differ only in these values are read by matching, at half the cost of decoding:

    {"code":310,"extFields":{"a":"group",…,"e":"3",…,"g":"1700000000000",…},…,"opaque":17,…}
                                            ^           ^                             ^

Everything else is compared byte by byte, so all other fields have the values of the first header.
Contiguous frames of the same length are split together (`SendRun`), at a third of that cost.
Source: docs/reference/requests.md, "sending".
"""

import re
from collections.abc import Callable
from struct import Struct, pack
from typing import NamedTuple

_PLACES = re.compile(
    rb'(?<="e":")(?P<queue>\d{1,9})(?=")|(?<="g":")(?P<born>\d{1,18})(?=")|(?<="opaque":)(?P<opaque>\d{1,9})(?=[,}])'
    rb"|(?<=UNIQ_KEY\\u0001)(?P<key>[0-9A-Za-z]{1,64})(?=\\u0002)"
)
_FORMS = {
    "queue": rb"(?P<queue>\d{1,9})",
    "born": rb"(?P<born>\d{1,18})",
    "opaque": rb"(?P<opaque>\d{1,9})",
    "key": rb"(?P<key>[0-9A-Za-z]{1,64})",
}
HEADER_BYTES_MAX = 4096
PATTERNS_MAX = 256

Match = Callable[[bytes], re.Match[bytes] | None]
"""Returns a match with the groups `queue`, `born`, `opaque` and `key`, None for a header of another form."""


class Sends(NamedTuple):
    """Values in which many sends differ, one column each."""

    queues: tuple[bytes, ...]
    born: tuple[bytes, ...]
    keys: tuple[bytes, ...]
    opaques: tuple[bytes, ...]
    bodies: tuple[bytes, ...]


class SendRun:
    """Splitter for contiguous send frames of the same length, whose differing values are at the same positions."""

    def __init__(self, header: bytes, body_bytes: int) -> None:
        """Prepare for frames with a header like this one, accepted by `SendHeaders.learn`, and bodies of this size."""
        places = list(_PLACES.finditer(header))
        self.lengths = pack(">II", 4 + len(header) + body_bytes, len(header))
        """First 8 bytes of each frame."""
        self.frame_bytes = 8 + len(header) + body_bytes
        whole, at, form = self.lengths + header, 0, ""
        constants: list[bytes] = []
        for place in places:
            constants.append(whole[at : 8 + place.start()])
            at = 8 + place.end()
            form += f"{len(constants[-1])}s{len(place[0])}s"
        constants.append(whole[at:])
        self._constants = constants
        self._ends = [8 + place.end() for place in places]
        self._unpack = Struct(f"{form}{len(constants[-1])}s{body_bytes}s").iter_unpack
        names = [str(place.lastgroup) for place in places]
        self._order = [1 + 2 * names.index(name) for name in ("queue", "born", "key", "opaque")]

    def fits(self, data: bytes) -> bool:
        """Whether the first frame may have its values at the expected positions.

        Frames of the same length may differ: one number with a digit more, another one with a digit less.
        """
        return all(map(data.startswith, self._constants[1:], self._ends))

    def read(self, data: bytes, count: int) -> Sends | None:
        """Return the differing values of the `count` frames that make up `data`; None if a frame has another form.

        Cost: ten small objects per frame, and no Python code per frame.
        """
        last = (count - 1) * self.frame_bytes
        if not data.startswith(self.lengths) or data[last : last + 8] != self.lengths:
            return None
        columns = list(zip(*self._unpack(data), strict=True))
        for column, constant in zip(columns[::2], self._constants, strict=True):
            if column.count(constant) != count:
                return None
        queues, born, keys, opaques = [columns[at] for at in self._order]
        if not b"".join(queues + born + opaques).isdigit() or not b"".join(keys).isalnum():
            return None
        return Sends(queues, born, keys, opaques, columns[-1])


class SendHeaders:
    """Cache of patterns, shared by all connections. It is emptied when it holds PATTERNS_MAX patterns."""

    def __init__(self) -> None:
        """Begin with an empty cache."""
        self._known: dict[tuple[bytes, ...], Match] = {}

    def learn(self, header: bytes, *, has_key: bool = True) -> Match | None:
        """Return a pattern for headers like this one; None unless each differing value occurs exactly once.

        Args:
            has_key: whether the header must have a unique key; those of batches may have none.

        Cost: some hundred microseconds for a new form, so learn only from headers that are likely to be repeated.
        """
        places = list(_PLACES.finditer(header))
        wanted = sorted(name for name in _FORMS if has_key or name != "key")
        if len(header) > HEADER_BYTES_MAX or sorted(str(place.lastgroup) for place in places) != wanted:
            return None
        ends = [0, *(place.end() for place in places)]
        starts = [*(place.start() for place in places), len(header)]
        constant = tuple(header[end:start] for end, start in zip(ends, starts, strict=True))
        known = self._known.get(constant)
        if known is None:
            forms = [*(_FORMS[str(place.lastgroup)] for place in places), b""]
            text = b"".join(re.escape(piece) + form for piece, form in zip(constant, forms, strict=True))
            known = re.compile(text).fullmatch
            if len(self._known) >= PATTERNS_MAX:
                self._known.clear()
            self._known[constant] = known
        return known
