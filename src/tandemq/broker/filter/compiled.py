"""Compiled expressions, kept within a memory budget.

Source: docs/reference/guarantees.md, "memory".
"""

from tandemq.broker.filter.parser import SqlFilter, compile_filter

KEPT_BYTES_MAX = 16 << 20
PART_BYTES = 1_000
"""Memory of a constant or property of a compiled expression, and of what is around it."""


def memory_of_filter(compiled: SqlFilter) -> int:
    """Estimate the memory of a compiled expression, bytes."""
    return PART_BYTES * (1 + compiled.parts) + 4 * len(compiled.text)


class SqlExpressions:
    """Compiled expressions by their text, oldest first."""

    def __init__(self) -> None:
        """Begin without expressions."""
        self._kept: dict[str, SqlFilter] = {}
        self._kept_bytes = 0

    def compile(self, expression: str) -> SqlFilter:
        """Return a compiled expression.

        Raises:
            FilterInvalid: it does not compile.
        """
        found = self._kept.get(expression)
        if found is None:
            found = self._kept[expression] = compile_filter(expression)
            self._kept_bytes += memory_of_filter(found)
            while self._kept_bytes > KEPT_BYTES_MAX:
                self._kept_bytes -= memory_of_filter(self._kept.pop(next(iter(self._kept))))
        return found
