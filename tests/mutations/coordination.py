"""Mutations of a group's member, each of which the schedules of tests/unit/coordination must notice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tandemq.coordination import lease
from tandemq.coordination.member import follower, founding, held_lease, machine, service, takeover
from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.registry import view


@dataclass(frozen=True, slots=True)
class Mutation:
    """One safety that can be switched off. `name`: what goes wrong without it."""

    name: str
    owner: Any
    attribute: str
    without: Callable[..., Any] | property
    """The replacement of the attribute."""
    first_seed: int = 0
    """The first schedule to run, so that the test is quick."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Switch the safety off within the context."""
        with patch.object(self.owner, self.attribute, self.without):
            yield


def claim_by_reading(self: service.ServiceState, why: str, now: Any) -> None:
    """A member serves after an abandoned handover without a write to the record."""
    self.claim_above = view.NO_NODE - 1
    self.become(MemberStage.CLAIMING, why, now)
    self.become(MemberStage.PREPARING, why, now)


def _recorded_is_claimed(original: Callable[..., None]) -> Callable[..., None]:
    def recorded(self: follower.RecordFollower, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        self._service.claim_above = view.NO_NODE - 1
        self._facts.log.is_loss_accepted = True

    return recorded


def _any_session(self: held_lease.HeldLease) -> int:
    return max(self.peers_until_ms(), self.registry_until_ms())


def _one_peer_is_enough(self: lease.Lease, others: Any, lease_ms: int) -> int:
    return max((self._granted.get(peer, lease.NEVER) + lease_ms for peer in others), default=lease.FOREVER)


def _promises_always(original: Callable[..., int]) -> Callable[..., int]:
    def on_heartbeat(self: machine.MemberMachine, peer: int, heartbeat: Any, now: Any) -> int:
        original(self, peer, heartbeat, now)
        return int(heartbeat.number)

    return on_heartbeat


def _live_ignored(original: Callable[..., Any]) -> Callable[..., Any]:
    def suspects(self: takeover.Takeover, now: Any) -> Any:
        live, self._view.live = self._view.live, {} if self._view.live is not None else None
        found = original(self, now)
        self._view.live = live
        return found

    return suspects


MUTATIONS = (
    Mutation("a lease never ends", held_lease.HeldLease, "until_ms", lambda _: lease.FOREVER, first_seed=10),
    Mutation("a registry grant counts in any session", held_lease.HeldLease, "until_ms", _any_session, first_seed=54),
    Mutation("one of several peers grants a lease", lease.Lease, "peers_until_ms", _one_peer_is_enough, first_seed=310),
    Mutation(
        "reading the record counts as a claim, with any log",
        follower.RecordFollower,
        "_enter",
        _recorded_is_claimed(follower.RecordFollower._enter),
        first_seed=39,
    ),
    Mutation(
        "a member that may have lost the end of its log leads",
        follower.RecordFollower,
        "_may_lead",
        lambda _: True,
        first_seed=3150,
    ),
    Mutation(
        "a group is founded again without its absent members", founding.Founding, "_existed_before", lambda *_: False
    ),
    Mutation(
        "a member promises during a takeover",
        machine.MemberMachine,
        "on_heartbeat",
        _promises_always(machine.MemberMachine.on_heartbeat),
        first_seed=160,
    ),
    Mutation("a takeover does not wait for silence", takeover.Takeover, "_is_silent", lambda *_: True, first_seed=29),
    Mutation("the live node is ignored", takeover.Takeover, "_suspects", _live_ignored(takeover.Takeover._suspects)),
    Mutation("members not in sync are candidates", takeover, "may_become_master", lambda **_: True, first_seed=440),
)
