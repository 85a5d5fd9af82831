"""The smallest part of an input that still fails."""

from collections.abc import Callable, Sequence

from tests.fuzz.frames import Turns


def reduced(turns: Turns, fails: Callable[[Turns], bool]) -> Turns:
    """Return turns without the pieces that the failure does not need."""
    places = [(turn, sent) for turn, pieces in enumerate(turns) for sent in range(len(pieces))]

    def of(kept: Sequence[tuple[int, int]]) -> Turns:
        chosen = set(kept)
        found = [[one for at, one in enumerate(turn) if (number, at) in chosen] for number, turn in enumerate(turns)]
        return [turn for turn in found if turn]

    size = len(places)
    while size := size // 2:
        at = 0
        while at < len(places):
            fewer = places[:at] + places[at + size :]
            if fails(of(fewer)):
                places = fewer
            else:
                at += size
    return of(places)
