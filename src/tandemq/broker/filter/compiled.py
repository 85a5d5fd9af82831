"""Compiled and refused expressions, kept within a memory budget.

Source: docs/reference/guarantees.md, "memory".
"""

from tandemq.broker.filter.parser import EXPRESSION_CHARACTERS_MAX, SqlFilter, compile_filter
from tandemq.broker.filter.tokens import FilterInvalid

KEPT_BYTES_MAX = 16 << 20
PART_BYTES = 1_000
"""Memory of a constant or property of a compiled expression, and of what is around it."""


def memory_of_filter(compiled: SqlFilter) -> int:
    """Estimate the memory of a compiled expression, bytes."""
    return PART_BYTES * (1 + compiled.parts) + 4 * len(compiled.text)


class SqlExpressions:
    """Expressions that were compiled or refused, by their text, oldest first."""

    def __init__(self) -> None:
        """Begin without expressions."""
        self._kept: dict[str, SqlFilter | str] = {}
        """Compiled expressions, or why they are refused."""
        self._kept_bytes = 0

    def compile(self, expression: str) -> SqlFilter:
        """Return a compiled expression.

        Raises:
            FilterInvalid: it does not compile.
        """
        found = self._kept.get(expression)
        if found is None:
            try:
                found = compile_filter(expression)
            except FilterInvalid as error:
                found = str(error)
            self._keep(expression, found)
        if isinstance(found, str):
            raise FilterInvalid(found)
        return found

    def _keep(self, expression: str, found: SqlFilter | str) -> None:
        if len(expression) > EXPRESSION_CHARACTERS_MAX:  # refused at once each time
            return
        self._kept[expression] = found
        self._kept_bytes += _memory_of(expression, found)
        while self._kept_bytes > KEPT_BYTES_MAX:
            oldest = next(iter(self._kept))
            self._kept_bytes -= _memory_of(oldest, self._kept.pop(oldest))


def _memory_of(expression: str, found: SqlFilter | str) -> int:
    return PART_BYTES + 4 * len(expression) if isinstance(found, str) else memory_of_filter(found)
