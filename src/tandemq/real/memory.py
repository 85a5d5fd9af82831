"""Large blocks of memory stay with the process from one turn to the next.

A broker that copies its log takes blocks of a MiB and drops them, turn after turn. The C library gives such blocks back
to the system, and the next one costs a page fault for each 4 KiB: 80 faults per MiB copied
(docs/internals/performance.md, "Allocation of large blocks").

Source: mallopt(3).
"""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
BLOCK_BYTES_MAX = 8 << 20
"""Larger ones are given back at once, as they are rare."""
KEPT_BYTES_MAX = 16 << 20
"""More than this is given back when it is free at the end of the heap."""


def keep_blocks() -> bool:
    """Have the C library of this process keep them; False if it is not one that can be told."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, BLOCK_BYTES_MAX) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX))
