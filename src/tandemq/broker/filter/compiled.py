"""Cache of compiled and refused filter expressions, within a memory budget.

Source: docs/reference/guarantees.md, "memory".
"""

from tandemq.broker.filter.parser import EXPRESSION_CHARACTERS_MAX, SqlFilter, compile_filter
from tandemq.broker.filter.tokens import FilterInvalid

KEPT_BYTES_MAX = 16 << 20
PART_BYTES = 1_000
"""Estimated memory of one constant or property of a compiled expression, and of a cache entry without them."""


def memory_of_filter(compiled: SqlFilter) -> int:
    """Estimate the memory of a compiled expression, bytes."""
    return PART_BYTES * (1 + compiled.parts) + 4 * len(compiled.text)


class SqlExpressions:
    """Cache of compiled and refused expressions by text; the oldest are evicted first."""

    def __init__(self) -> None:
        """Create an empty cache."""
        self._results: dict[str, SqlFilter | str] = {}
        """The compiled expression, or why it is refused, by text; oldest first."""
        self._memory_bytes = 0

    def compile(self, expression: str) -> SqlFilter:
        """Return a compiled expression.

        Raises:
            FilterInvalid: it does not compile.
        """
        result = self._results.get(expression)
        if result is None:
            try:
                result = compile_filter(expression)
            except FilterInvalid as error:
                result = str(error)
            self._keep(expression, result)
        if isinstance(result, str):
            raise FilterInvalid(result)
        return result

    def _keep(self, expression: str, result: SqlFilter | str) -> None:
        if len(expression) > EXPRESSION_CHARACTERS_MAX:  # compiling it fails at once
            return
        self._results[expression] = result
        self._memory_bytes += _memory_of(expression, result)
        while self._memory_bytes > KEPT_BYTES_MAX:
            oldest = next(iter(self._results))
            self._memory_bytes -= _memory_of(oldest, self._results.pop(oldest))


def _memory_of(expression: str, result: SqlFilter | str) -> int:
    return PART_BYTES + 4 * len(expression) if isinstance(result, str) else memory_of_filter(result)
