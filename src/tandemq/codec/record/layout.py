"""Parsed properties of a message, cached by everything in them except the unique key.

The properties of one producer's messages mostly differ only in UNIQ_KEY: the rest is parsed once and then cached.

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
    """Properties as stored, without the unique key's value, and what they mean for storing and finding the message."""

    before: bytes
    """Encoded properties up to and including the unique key's name."""
    after: bytes
    """Encoded properties after the unique key's value, with the closing that `Layouts` adds."""
    tags_code: int
    """Hash of TAGS, 0 without."""
    keys: bytes | None
    """The KEYS property."""
    waits: bool
    """False if WAIT=false: the sender does not wait for flush and replicas."""
    is_usual: bool
    """Whether no property needs special processing: no delay level, no delivery time, no transaction."""


class Layouts:
    """Cache of layouts. It is emptied when it holds LAYOUTS_MAX of them."""

    def __init__(self, closing: bytes = b"", *, drops: bytes = b"WAIT") -> None:
        """Begin with an empty cache.

        Args:
            closing: bytes to store after the properties of each message.
            drops: name of a property that is not stored.
        """
        self._closing = closing
        self._drops = drops
        self._known: dict[tuple[bytes, bytes], Layout] = {}
        self._latest: tuple[bytes, bytes, int, Layout] = (b"", b"", -1, Layout(b"", b"", 0, None, True, True))
        """The latest properties: bytes before and after the key, total length, and their layout."""

    def of(self, raw: bytes) -> tuple[bytes | None, Layout]:
        """Return the unique key (None without one) and the layout of raw properties."""
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
        """Return the same for the properties of a stored record, ignoring its closing CRC property."""
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
    """Return the position of the (last) UNIQ_KEY property in raw properties, -1 if there is none."""
    at = raw.rfind(UNIQUE_NAME)
    while at > 0 and raw[at - 1] != 2:
        at = raw.rfind(UNIQUE_NAME, 0, at + len(UNIQUE_NAME) - 1)
    return at


def _kept(raw: bytes, drops: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Return the encoded pairs without the dropped one, and all pairs by name; for a repeated name the last counts."""
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
