"""The JSON header of a send as one pattern, learned from a header like it.

Sends of one producer differ in four places: queue, born time, unique key and opaque. Once a header was decoded, those
that differ from it only there are read by matching, at half the cost of decoding them:

    {"code":310,"extFields":{"a":"group",…,"e":"3",…,"g":"1700000000000",…},…,"opaque":17,…}
                                            ^           ^                             ^

Everything outside those places is compared byte by byte, so what the pattern's first header meant the others mean too.
Frames of one length that lie one behind the other are taken apart at once (`SendRun`), at a third of that cost.
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
"""Of a header it knows, a match with the groups `queue`, `born`, `opaque` and `key`."""


class Sends(NamedTuple):
    """What differs in many sends, a column each."""

    queues: tuple[bytes, ...]
    born: tuple[bytes, ...]
    keys: tuple[bytes, ...]
    opaques: tuple[bytes, ...]
    bodies: tuple[bytes, ...]


class SendRun:
    """Frames of sends that have one length, and so have the places in which they differ: known by one of them."""

    def __init__(self, header: bytes, body_bytes: int) -> None:
        """Frames like one with this header, of which `SendHeaders.learn` has made a pattern, and a body so long."""
        places = list(_PLACES.finditer(header))
        self.lengths = pack(">II", 4 + len(header) + body_bytes, len(header))
        """The 8 bytes that each begins with."""
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
        """Whether the first frame's places may lie where ours do: frames of one length differ if one number has a digit
        more and another a digit less, as queues from 10 on and opaques below 100,000 have."""
        return all(map(data.startswith, self._constants[1:], self._ends))

    def read(self, data: bytes, count: int) -> Sends | None:
        """What differs in the `count` frames that `data` is as long as; None if one of them is not like the others.

        Cost: ten small objects per frame, and no step of ours for any.
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
    """Patterns made before, shared by all links that send alike; forgotten all at once when there are too many."""

    def __init__(self) -> None:
        """None known yet."""
        self._known: dict[tuple[bytes, ...], Match] = {}

    def learn(self, header: bytes, *, has_key: bool = True) -> Match | None:
        """A pattern for headers like this one; None if its changing places are not all there exactly once.

        `has_key`: whether there is a unique key among them; batches may do without.

        Cost: some hundred microseconds the first time, so learn only from what is likely to come again.
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
