"""Time that a turn spends on requests, shared among connections.

    received ─► TurnBudget.serve ─► take(link, data), one connection after the other ─► the bytes it left

The unit of work is a request, or a run of ordinary sends or pulls, which the engine takes without a look at the clock:
a turn may exceed its budget by one of them. A run takes about a millisecond: of sends, at most what one read has
received, 256 KiB; of pulls, 32 of them or a response of 1 MiB.

Served connections that sent more than their part go behind those that the time did not suffice for: with n connections
that never stop sending, each of them and every other one is served at least once in n turns, and usually in each turn.
"""

from collections.abc import Callable, Iterator, Sequence

from tandemq.boundary import Outbox

TURN_US = 2_000
"""Time for the requests of one turn, µs: replication, leases and timers are served in between. Of the other work of a
turn nothing is deducted, so that at least one request is served in each."""


class TurnBudget:
    """The time that is left for the requests of a turn, and for those of one connection."""

    __slots__ = ("_outbox", "_until_us")

    def __init__(self, outbox: Outbox | None) -> None:
        """Begin without a turn. Without a shell that measures time nothing is ever interrupted."""
        self._outbox = outbox
        self._until_us = 0

    def is_over(self) -> bool:
        """Whether the connection being served has had its part."""
        return self._outbox is not None and self._now_us() >= self._until_us

    def serve(
        self, received: Sequence[tuple[int, bytes]], take: Callable[[int, bytes], bytes]
    ) -> list[tuple[int, bytes]]:
        """Hand the bytes of each connection to `take`, in order, until the time is over; return what is left.

        Args:
            received: connections and bytes; a connection may occur several times.
            take: serves requests in the bytes of a connection until `is_over`, and at least one; returns the rest.
        """
        pieces_of: dict[int, list[bytes]] = {}
        for link, data in received:
            pieces_of.setdefault(link, []).append(data)
        unreached: list[tuple[int, bytes]] = []
        interrupted: list[tuple[int, bytes]] = []
        waiting = len(pieces_of)
        now_us = self._now_us()
        end_us = now_us + TURN_US
        for link, pieces in pieces_of.items():
            if now_us >= end_us:
                unreached += [(link, piece) for piece in pieces]
                continue
            self._until_us = now_us + (end_us - now_us) // waiting
            waiting -= 1
            for at, piece in enumerate(pieces):
                rest = piece if at and self.is_over() else take(link, piece)
                if rest:
                    interrupted.append((link, rest))
                    interrupted += [(link, later) for later in pieces[at + 1 :]]
                    break
            now_us = self._now_us()
        return unreached + interrupted

    def _now_us(self) -> int:
        return self._outbox.elapsed_us() if self._outbox is not None else 0


def advance(steps: Iterator[None], outbox: Outbox, time_us: int) -> bool:
    """Do steps of long work until they have taken a time, and one at least; return whether there are none left."""
    until_us = outbox.elapsed_us() + time_us
    return all(outbox.elapsed_us() < until_us for _ in steps)
