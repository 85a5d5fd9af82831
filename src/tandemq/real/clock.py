"""The two clocks: monotonic time for deadlines, calendar time for records."""

import time

from tandemq.boundary import Now


def read_clock() -> Now:
    """Return the current time of both clocks."""
    return Now(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)
