"""Limit of file descriptors, and how many of them connections may use.

The rest is reserved for files: without a descriptor a broker can neither begin a new log file nor save a table.

Source: getrlimit(2); docs/guides/operations.md, "System limits".
"""

import resource

CACHED_MAX = 65_536
"""Files of queues that a store keeps open, but at most a quarter of the limit."""
KEPT_MAX = CACHED_MAX + CACHED_MAX // 2 + 1024
"""Descriptors reserved for files: more than a store and its reads keep open, but at most half of the limit."""


def raise_limit(wanted: int | None = None) -> int:
    """Raise this process's limit to `wanted` descriptors, or to the hard limit; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if wanted is None or (hard != resource.RLIM_INFINITY and hard < wanted):
        wanted = hard
    if soft != resource.RLIM_INFINITY and (wanted == resource.RLIM_INFINITY or soft < wanted):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # above the kernel's own limit (fs.nr_open)
            return soft
        return wanted
    return soft


def links_max() -> int:
    """Return the maximum number of connections that leaves the reserved descriptors to files."""
    soft = _soft_limit()
    return soft - min(KEPT_MAX, soft // 2)


def cached_files_max() -> int:
    """Return how many files of queues a store keeps open."""
    return min(CACHED_MAX, _soft_limit() // 4)


def _soft_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 31 if soft == resource.RLIM_INFINITY else soft
