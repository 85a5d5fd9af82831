"""A simulated process drives its node as the real event loop does."""

from collections.abc import Sequence

from lab.sim.world.disk import SimDisk
from lab.sim.world.network import Network
from lab.sim.world.process import Process, SimMachine
from lab.sim.world.world import SECOND, World
from tandemq.boundary import Closed, Event, Now, Turn


class _Leaving:
    """A node that takes one byte of each connection and turn, and leaves the rest."""

    def __init__(self, closes_at: bytes = b"") -> None:
        self.closes_at = closes_at
        self.seen: list[str] = []

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], _now: Now) -> Turn:
        turn = Turn()
        taken: set[int] = set()
        for link, data in received:
            at = 0 if link in taken else 1
            taken.add(link)
            self.seen += [data[:at].decode()] if at else []
            turn.unread += [(link, data[at:])] if data[at:] else []
            if at and data[:at] == self.closes_at:
                turn.closes.append((link, "enough"))
        self.seen += [event.reason for event in events if isinstance(event, Closed)]
        return turn

    def deadline_ms(self) -> int | None:
        return None


def _driven(node: _Leaving) -> list[str]:
    world = World(1)
    process = Process(world, Network(world), SimMachine(world, "m", "10.0.0.1", SimDisk(world.random)), "p")
    process.start(node)
    for data in (b"abc", b"def"):
        process.deliver(1, data)
    process.post(Closed(1, "reset"))
    world.run_until(SECOND)
    return node.seen


def test_end_of_a_connection_comes_after_all_that_the_node_had_left() -> None:
    assert _driven(_Leaving()) == [*"abcdef", "reset"]


def test_what_a_node_left_of_a_connection_that_it_closes_is_discarded() -> None:
    seen = _driven(_Leaving(closes_at=b"d"))
    assert [one for one in seen if len(one) == 1] == [*"abcd"]
