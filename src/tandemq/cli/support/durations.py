"""Durations, times and rates as arguments of commands."""

import re
from datetime import datetime, timedelta

import click

_PART = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h|d|)")
_MS = {"ms": 1, "s": 1_000, "": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_RATE = re.compile(r"(\d{1,12}(?:\.\d{1,3})?) ?([A-Za-z]*?)(?:/s)?")
_BYTES = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def parse_duration(text: str) -> timedelta:
    """Parse a duration: numbers with the units d, h, m, s and ms, like `1h30m`; a number without a unit is in seconds.

    Raises:
        UsageError: it is none.
    """
    parts = [found.groups() for found in _PART.finditer(text)]
    if not parts or "".join(number + unit for number, unit in parts) != text or (len(parts) > 1 and not all(parts[-1])):
        raise click.UsageError(f"{text!r} is not a duration; write for instance 90s, 5m or 1h30m")
    return timedelta(milliseconds=sum(float(number) * _MS[unit] for number, unit in parts))


def parse_time(text: str) -> int:
    """Parse a time in ISO format, in this machine's time zone unless it names one; returns milliseconds since 1970."""
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except ValueError as error:
        raise click.UsageError(f"{text!r} is not a time; write for instance 2024-05-31T13:00") from error


def parse_rate(text: str) -> float:
    """Parse a number of messages per second: `500` or `500/s`.

    Raises:
        UsageError: it is none, or 0.
    """
    found = _RATE.fullmatch(text)
    if found is None or found[2] or not float(found[1]):
        raise click.UsageError(f"{text!r} is not a number of messages per second; write for instance 500/s")
    return float(found[1])


def parse_byte_rate(text: str) -> float:
    """Parse a number of bytes per second: `10MB/s`, `512KiB/s`, or without a unit bytes.

    Raises:
        UsageError: it is none, or 0.
    """
    found = _RATE.fullmatch(text)
    if found is None or found[2] not in _BYTES or not float(found[1]):
        raise click.UsageError(
            f"{text!r} is not a number of bytes per second; write for instance 10MB/s (units: {', '.join(_BYTES)[2:]})"
        )
    return float(found[1]) * _BYTES[found[2]]


def duration_text(seconds: float) -> str:
    """Format a duration for people: `45s`, `3m20s`, `2h05m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
