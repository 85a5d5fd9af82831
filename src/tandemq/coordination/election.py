"""Election of a new master when the master has failed: eligible members, and the order in which they try.

Every member of the in-sync set has all acknowledged messages, so any of them may win. The order preserves more of the
unacknowledged messages and respects the operator's priorities. The first candidate tries at once, each further one
check later. A member that loses the compare-and-set follows the winner.

Source: docs/internals/failover.md, "Elections"; requirement R11.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Candidate(NamedTuple):
    """A live member in sync."""

    broker_id: int
    epoch: int
    """Last epoch in its log."""
    log_end: int
    """End of its log, bytes."""
    priority: int
    """Configured priority; higher values first."""


def rank_of(broker_id: int, candidates: Iterable[Candidate]) -> int:
    """Return the number of candidates before this one: by longest history, then priority, then smaller id."""
    order = sorted(candidates, key=lambda member: (-member.epoch, -member.log_end, -member.priority, member.broker_id))
    return next((place for place, member in enumerate(order) if member.broker_id == broker_id), len(order))


def may_become_master(*, is_in_sync: bool, is_log_whole: bool, is_forced: bool) -> bool:
    """Return whether a member may become master of a group whose master has failed.

    `is_log_whole`: it lost no bytes that it had reported, or has copied them again since. `is_forced`: an operator
    accepted a possible loss.
    """
    return is_forced or (is_in_sync and is_log_whole)
