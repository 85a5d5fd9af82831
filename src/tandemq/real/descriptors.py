"""Files and sockets a process may have open, and how many of them are kept for its files.

A descriptor's number is the lowest that is free: a connection with a high one tells how many are in use. Those from
`links_below` on are for files: without one a broker could neither begin the next file of its log nor save a table.

Source: getrlimit(2); docs/operations.md, "Limits of the system".
"""

import resource

KEPT_MAX = 1024
"""For files; but not more than a fourth of all."""


def raise_limit(wanted: int | None = None) -> int:
    """Raise this process's limit to `wanted` descriptors, or as far as the system lets it; return the limit now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if wanted is None or (hard != resource.RLIM_INFINITY and hard < wanted):
        wanted = hard
    if soft != resource.RLIM_INFINITY and (wanted == resource.RLIM_INFINITY or soft < wanted):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def links_below() -> int:
    """The first descriptor that a connection may not have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 31 if soft == resource.RLIM_INFINITY else soft - min(KEPT_MAX, soft // 4)
