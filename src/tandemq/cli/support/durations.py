"""Durations as arguments of commands."""

import re
from datetime import timedelta

import click

_PART = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h|d|)")
_MS = {"ms": 1, "s": 1_000, "": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration(text: str) -> timedelta:
    """Parse a duration: numbers with the units d, h, m, s and ms, like `1h30m`; a number without a unit is in seconds.

    Raises:
        UsageError: it is none.
    """
    parts = [found.groups() for found in _PART.finditer(text)]
    if not parts or "".join(number + unit for number, unit in parts) != text or (len(parts) > 1 and not all(parts[-1])):
        raise click.UsageError(f"{text!r} is not a duration; write for instance 90s, 5m or 1h30m")
    return timedelta(milliseconds=sum(float(number) * _MS[unit] for number, unit in parts))
