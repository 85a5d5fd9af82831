"""Figures of an event loop."""

from typing import NamedTuple


class LoopState(NamedTuple):
    """Figures of a loop: open connections, queued bytes, connections refused since the start, time spent waiting."""

    connections: int
    untaken_bytes: int
    refused: int
    waited_ns: int
