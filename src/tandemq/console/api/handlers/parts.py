"""Parts of lists: cursors are the names of the last items, so that a part stays right while items come and go."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def part_of(items: Iterable[T], name: Callable[[T], str], cursor: str, limit: int) -> tuple[list[T], str | None]:
    """Return the items behind a cursor, by name, at most `limit`, and the cursor of the next part."""
    found = sorted((item for item in items if not cursor or name(item) > cursor), key=name)
    return found[:limit], name(found[limit - 1]) if len(found) > limit else None
