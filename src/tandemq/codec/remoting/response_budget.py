"""What one turn may answer to requests whose answers can be large: tables, lists, what was found.

A turn's answers are in memory until the turn is over, whoever reads them then. `TURN_BYTES_MAX` of them are built, and
a link gets no further answer once it had a quarter of what is left: a few that ask for much leave room to the others.

Owner: the node. Does not know: pulls and sends, which have bounds of their own.
Source: docs/reference/guarantees.md, "memory".
"""

TURN_BYTES_MAX = 64 << 20
LINK_PARTS = 4
BUSY = "[TOO_MANY_ANSWERS] the broker or name server builds {} MiB of answers at once, and this was beyond; ask again"


class ResponseBudget:
    """The answers of a turn, by link."""

    def __init__(self) -> None:
        """Nothing is answered yet."""
        self._total = 0
        self._links: dict[int, int] = {}

    def begin_turn(self) -> None:
        """A new turn has room anew."""
        if self._total:
            self._total = 0
            self._links.clear()

    def note(self, link: int, size: int) -> None:
        """An answer of `size` bytes was built."""
        self._total += size
        self._links[link] = self._links.get(link, 0) + size

    def refusal(self, link: int) -> str | None:
        """Why a request is not carried out, as there is no room for its answer; None if there is."""
        if self._links.get(link, 0) <= (TURN_BYTES_MAX - self._total) // LINK_PARTS:
            return None
        return BUSY.format(TURN_BYTES_MAX >> 20)
