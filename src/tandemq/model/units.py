"""Types of integers that must not be mixed up; only the type checker distinguishes them."""

from typing import NewType

LogOffset = NewType("LogOffset", int)
"""Byte position in the commit log."""

QueueOffset = NewType("QueueOffset", int)
"""Entry number in one consume queue."""

Millis = NewType("Millis", int)
"""Milliseconds: since an arbitrary start for `now_ms`, since 1970 for `wall_ms`."""

Epoch = NewType("Epoch", int)
"""Number of a master's term; grows with every change of master."""
