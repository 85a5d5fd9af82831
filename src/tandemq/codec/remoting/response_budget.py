"""Memory budget for large responses within one turn: tables, lists, query results.

The responses of a turn are in memory until the turn ends. At most `TURN_BYTES_MAX` of them are built, and a connection
gets no further response once it has used a quarter of the remaining budget, so that few clients cannot use up all.

Owner: the node. Pulls and sends have limits of their own. Source: docs/reference/guarantees.md, "memory".
"""

TURN_BYTES_MAX = 64 << 20
LINK_PARTS = 4
BUSY = "[TOO_MANY_ANSWERS] the broker or name server builds {} MiB of answers at once, and this was beyond; ask again"


class ResponseBudget:
    """Bytes of responses built in this turn, by connection."""

    def __init__(self) -> None:
        """Begin with the whole budget."""
        self._total = 0
        self._links: dict[int, int] = {}

    def begin_turn(self) -> None:
        """Reset the budget at the beginning of a turn."""
        if self._total:
            self._total = 0
            self._links.clear()

    def note(self, link: int, size: int) -> None:
        """Count a response of `size` bytes."""
        self._total += size
        self._links[link] = self._links.get(link, 0) + size

    def refusal(self, link: int) -> str | None:
        """Return the reason to refuse a request if the budget for its response is used up, else None."""
        if self._links.get(link, 0) <= (TURN_BYTES_MAX - self._total) // LINK_PARTS:
            return None
        return BUSY.format(TURN_BYTES_MAX >> 20)
