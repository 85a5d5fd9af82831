"""Files and sockets a process may have open, and how many of them may be connections.

The rest is for files: without a descriptor a broker could neither begin the next file of its log nor save a table.

Source: getrlimit(2); docs/guides/operations.md, "System limits".
"""

import resource

KEPT_MAX = 1024
"""For files: as many as a store keeps open, and some; but not more than half of all."""


def raise_limit(wanted: int | None = None) -> int:
    """Raise this process's limit to `wanted` descriptors, or as far as the system lets it; return the limit now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if wanted is None or (hard != resource.RLIM_INFINITY and hard < wanted):
        wanted = hard
    if soft != resource.RLIM_INFINITY and (wanted == resource.RLIM_INFINITY or soft < wanted):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # more than the kernel gives anybody, whatever the hard limit says
            return soft
        return wanted
    return soft


def links_max() -> int:
    """How many connections leave files what they need."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 31 if soft == resource.RLIM_INFINITY else soft - min(KEPT_MAX, soft // 2)
