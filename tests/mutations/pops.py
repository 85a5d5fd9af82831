"""Mutations of pops."""

from contextlib import AbstractContextManager
from typing import Any

from lab.sim.world.plan import has_pops
from tandemq.boundary import Now
from tandemq.broker.features.pop import revive
from tandemq.broker.features.pop.revive_queue import ReviveQueues
from tests.mutations.patch import Mutation, patched


def pops_forgotten() -> AbstractContextManager[Any]:
    """A master that starts does not read how far pops had come."""
    return patched(revive.RecentCheckpoints, "_load", lambda *_: iter(()))


def pop_acks_lost() -> AbstractContextManager[Any]:
    """Acknowledgements of popped messages are confirmed, but not stored."""
    return patched(ReviveQueues, "put_ack", lambda *_: None)


def pops_early() -> AbstractContextManager[Any]:
    """Popped messages come back a second and a half early, before acknowledgements of that time are read."""
    revive_due = revive.Revival._revive_due

    def early(self: revive.Revival, queue_id: int, state: Any, passed_ms: int, now: Now) -> None:
        revive_due(self, queue_id, state, passed_ms + 1_500, now)

    return patched(revive.Revival, "_revive_due", early)


def pops_never_return() -> AbstractContextManager[Any]:
    """Popped messages that are not acknowledged do not come back."""
    return patched(revive.Revival, "_put", lambda *_: None)


def pops_return_twice() -> AbstractContextManager[Any]:
    """A master that starts does not know which messages have come back."""
    return patched(ReviveQueues, "put_revived", lambda *_: None)


POP_MUTATIONS: dict[str, Mutation] = {
    "pops-forgotten": Mutation(pops_forgotten, frozenset({"I25"})),
    "pop-acks-lost": Mutation(pop_acks_lost, frozenset({"I25"})),
    "pops-early": Mutation(pops_early, frozenset({"I25"})),
    "pops-never-return": Mutation(pops_never_return, frozenset({"I25", "I14"})),
    "pops-return-twice": Mutation(pops_return_twice, frozenset({"I25"})),
}
"""Mutations by name."""
POP_SEEDS = tuple(filter(has_pops, range(1, 300)))
"""The seeds that run with them."""
