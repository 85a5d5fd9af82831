"""Who becomes master when the master is gone: who may, and in which order they try.

Any member of the in-sync set holds everything that was acknowledged, so any of them may win; the order only saves what
was not acknowledged and lets an operator's priority count. The first tries at once, the next one look later. Whoever
loses the compare-and-set follows the winner.

Source: docs/internals/failover.md, "Elections"; requirement R11.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Candidate(NamedTuple):
    """A member that lives and is in sync."""

    broker_id: int
    epoch: int
    """The last epoch in its log."""
    log_end: int
    """Bytes."""
    priority: int
    """Higher first."""


def place_of(broker_id: int, candidates: Iterable[Candidate]) -> int:
    """How many candidates come before this one: longest history, then priority, then the smaller id."""
    order = sorted(candidates, key=lambda one: (-one.epoch, -one.log_end, -one.priority, one.broker_id))
    return next((place for place, one in enumerate(order) if one.broker_id == broker_id), len(order))


def may_stand(*, is_in_sync: bool, is_log_whole: bool, is_forced: bool) -> bool:
    """Whether a member may become master of a group whose master is gone.

    `is_log_whole`: it did not lose bytes it had reported, or has copied them again since. `is_forced`: an operator
    accepted what may be lost.
    """
    return is_forced or (is_in_sync and is_log_whole)
