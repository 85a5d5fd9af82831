"""The two clocks: monotonic for deadlines, wall for records."""

import time

from tandemq.boundary import Now


def read_clock() -> Now:
    """This moment."""
    return Now(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)
