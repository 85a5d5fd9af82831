"""Texts of values in tables and lines; nothing in them controls a terminal."""

from datetime import datetime
from typing import Any

from tandemq.model.topic import Permission

_CELL_CHARACTERS_MAX = 1 << 20


def cell_text(value: Any) -> str:
    """Format a value for people; None is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.1f}" if isinstance(value, float) else plain(str(value), _CELL_CHARACTERS_MAX)


def plain(text: str, characters: int = 1_000) -> str:
    """Return a text without characters that control a terminal, cut after `characters`."""
    return "".join(c if c.isprintable() else "·" for c in text[:characters])


def time_text(wall_ms: int) -> str:
    """Format a time, milliseconds since 1970, in this machine's time zone, which the text names; "" for 0.

    A time that no calendar has, which clients may report, is returned as its number.
    """
    if wall_ms <= 0:
        return ""
    try:
        return datetime.fromtimestamp(wall_ms / 1000).astimezone().isoformat(" ", "milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(wall_ms)


def permission_text(permission: int) -> str:
    """Format RocketMQ's number of a permission in words."""
    words = [word for bit, word in ((Permission.READ, "read"), (Permission.WRITE, "write")) if permission & bit]
    return " and ".join(words) or "nothing"
