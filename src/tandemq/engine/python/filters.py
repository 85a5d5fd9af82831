"""SQL92 filters, evaluated over the properties of records as they are stored."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tandemq.engine.program import FilterStep
from tandemq.engine.python.pulls import LogSources
from tandemq.model.message import decode_properties


class FilterProgram:
    """An SQL92 filter over stored properties."""

    __slots__ = ("_matches", "parts")

    def __init__(self, steps: Sequence[FilterStep], parts: int, matches: Callable[[dict[str, str]], bool]) -> None:
        """Take a filter.

        Args:
            steps: its evaluation; the last step is the whole.
            parts: number of its constants and properties.
            matches: the same in Python, which decides what is unusual, and without a compiler everything.
        """
        self.parts = parts
        self._matches = matches

    def matches(self, properties: bytes) -> bool:
        """Return whether stored properties match."""
        return self._matches(decode_properties(properties.decode("utf-8", "replace")))


class Selected(NamedTuple):
    """Records that match a filter, one behind the other."""

    data: bytes
    messages: int
    next_offset: int
    """Queue offset behind the last examined entry."""
    examined: int
    """Bytes of the records that the filter was evaluated for."""
    cost: int
    """Cost of these evaluations (`evaluation_cost`)."""


def select_messages(
    entries: bytes,
    queue_offset: int,
    queue_id: int,
    topic: bytes,
    program: FilterProgram,
    most: int,
    bytes_max: int,
    examined_max: int,
    cost_max: int,
    limit: int,
    written_end: int,
    recent_start: int,
    recent: bytearray,
    sources: LogSources,
) -> Selected | None:
    """Return the records of queue entries that match a filter; None: the caller reads and examines them one by one.

    None is returned for unusual entries and records, and always without a compiler. The other arguments are those of
    `gather_messages`.

    Args:
        examined_max: bytes of examined records from which on no more are examined.
        cost_max: cost of evaluations (`evaluation_cost`) from which on no more are examined.

    Raises:
        Exception: what `sources.load` raises.
    """
    return None


def evaluation_cost(parts: int, size: int) -> int:
    """Return the cost of a filter with a number of constants and properties, for properties of a size in bytes."""
    return (1 + parts) * (64 + size)
