"""What a record's properties mean for storing and finding it, remembered by everything in them but the unique key.

Messages of one producer mostly differ in UNIQ_KEY alone: the rest of their properties is read once and then known.

Source: docs/internals/storage.md, "record".
"""

from typing import NamedTuple

from tandemq.codec.record.record import CRC_PROPERTY_BYTES
from tandemq.model.java_hash import cached_java_hash
from tandemq.model.message import TIMER_NAMES

LAYOUTS_MAX = 4096
LAYOUT_BYTES_MAX = 2048
UNIQUE_NAME = b"UNIQ_KEY\x01"
_UNUSUAL = frozenset((b"DELAY", b"TRAN_MSG", b"__CRC32#", *[name.encode() for name in TIMER_NAMES]))


class Layout(NamedTuple):
    """What is stored around the unique key: the properties without the one dropped, every pair closed."""

    before: bytes
    """Ends with the unique key's name."""
    after: bytes
    """Begins with the unique key's end, closes with what `Layouts` adds."""
    tags_code: int
    """Hash of TAGS, 0 without."""
    keys: bytes | None
    """The KEYS property."""
    waits: bool
    """False if WAIT=false: the sender does not wait for flush and replicas."""
    is_usual: bool
    """Nothing in it sends the message another way: no delay, no time, no transaction."""


class Layouts:
    """Layouts seen before; forgotten all at once when there are too many."""

    def __init__(self, closing: bytes = b"", *, drops: bytes = b"WAIT") -> None:
        """None seen yet. `closing` is stored behind the properties of each, the property `drops` is not stored."""
        self._closing = closing
        self._drops = drops
        self._known: dict[tuple[bytes, bytes], Layout] = {}
        self._latest: tuple[bytes, bytes, int, Layout] = (b"", b"", -1, Layout(b"", b"", 0, None, True, True))
        """What stood before and behind the key the last time, the length of it all, and what it means."""

    def of(self, raw: bytes) -> tuple[bytes | None, Layout]:
        """The unique key (None without one) and the layout of raw properties."""
        opening, ending, length, layout = self._latest
        if len(raw) == length and raw.startswith(opening) and raw.endswith(ending):
            unique = raw[len(opening) : length - len(ending)]
            if 2 not in unique:
                return unique, layout
        return self._read(raw)

    def _read(self, raw: bytes) -> tuple[bytes | None, Layout]:
        at = unique_start(raw)
        if at < 0:
            return None, self._known.get((raw, b"")) or self._learn(raw, b"")
        start = at + len(UNIQUE_NAME)
        stop = raw.find(b"\x02", at)
        end = stop if stop >= 0 else len(raw)
        before, after = raw[:at], raw[end + 1 :]
        layout = self._known.get((before, after)) or self._learn(before, after)
        if stop >= 0:
            self._latest = (raw[:start], raw[stop:], len(raw), layout)
        return raw[start:end], layout

    def of_stored(self, raw: bytes) -> tuple[bytes | None, Layout]:
        """The same for a stored record, whose closing CRC property says nothing about it."""
        return self.of(raw[:-CRC_PROPERTY_BYTES] if raw[-CRC_PROPERTY_BYTES:-11] == b"__CRC32#\x01" else raw)

    def _learn(self, before: bytes, after: bytes) -> Layout:
        kept_before, first = _kept(before, self._drops)
        kept_after, second = _kept(after, self._drops)
        noted = first | second
        tags = noted.get(b"TAGS")
        layout = Layout(
            kept_before + UNIQUE_NAME,
            b"\x02" + kept_after + self._closing,
            cached_java_hash(tags.decode("utf-8", "replace")) if tags else 0,
            noted.get(b"KEYS"),
            noted.get(b"WAIT", b"").lower() != b"false",
            _UNUSUAL.isdisjoint(noted),
        )
        if len(before) + len(after) <= LAYOUT_BYTES_MAX:
            if len(self._known) >= LAYOUTS_MAX:
                self._known.clear()
            self._known[before, after] = layout
        return layout


def unique_start(raw: bytes) -> int:
    """Where the property with the unique key begins in raw properties, the last one if there are several; -1: none."""
    at = raw.rfind(UNIQUE_NAME)
    while at > 0 and raw[at - 1] != 2:
        at = raw.rfind(UNIQUE_NAME, 0, at + len(UNIQUE_NAME) - 1)
    return at


def _kept(raw: bytes, drops: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """The pairs but the one dropped, each closed, and all of them by name; the last of a name counts."""
    kept: list[bytes] = []
    noted: dict[bytes, bytes] = {}
    for piece in raw.split(b"\x02"):
        name, separator, value = piece.partition(b"\x01")
        if not separator or not name or not value:
            continue
        noted[name] = value
        if name != drops:
            kept.append(piece + b"\x02")
    return b"".join(kept), noted
