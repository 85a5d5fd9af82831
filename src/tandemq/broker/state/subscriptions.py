"""Tag expressions of subscriptions, parsed once and kept within a memory budget.

Source: docs/reference/guarantees.md, "memory"; docs/reference/requests.md, "PULL_MESSAGE".
"""

from tandemq.model.group import parse_tag_expression, tag_codes

EXPRESSION_BYTES_MAX = 64 * 1024
TAGS_MAX = 2048
KEPT_BYTES_MAX = 16 << 20
CODE_BYTES = 100
"""Memory of a tags code in a set."""

Codes = frozenset[int] | None
"""Tags codes that match; None: all messages."""


class TagExpressions:
    """Parsed expressions, oldest first."""

    def __init__(self) -> None:
        """Begin without expressions."""
        self._kept: dict[str | None, Codes] = {}
        self.kept_bytes = 0

    def parse(self, expression: str | None) -> Codes:
        """Return the tags codes of an expression such as `a || b`.

        Raises:
            ValueError: the expression contains no tag or too many, or is too long.
        """
        if expression in self._kept:
            return self._kept[expression]
        check_expression(expression)
        tags = parse_tag_expression(expression)
        if tags is not None and len(tags) > TAGS_MAX:
            raise ValueError(f"the subscription names {len(tags)} tags, at most {TAGS_MAX} are allowed")
        codes = None if tags is None else frozenset(tag_codes(tags))
        self.kept_bytes += _memory(expression, codes)
        self._kept[expression] = codes
        while self.kept_bytes > KEPT_BYTES_MAX:
            oldest = next(iter(self._kept))
            self.kept_bytes -= _memory(oldest, self._kept.pop(oldest))
        return codes


def check_expression(expression: str | None) -> None:
    """Refuse an expression that is too long.

    Raises:
        ValueError: it has more than EXPRESSION_BYTES_MAX bytes.
    """
    size = len((expression or "").encode("utf-8", "surrogatepass"))
    if size > EXPRESSION_BYTES_MAX:
        raise ValueError(f"the subscription takes {size} bytes, at most {EXPRESSION_BYTES_MAX} are allowed")


def _memory(expression: str | None, codes: Codes) -> int:
    return 256 + 4 * len(expression or "") + CODE_BYTES * len(codes or ())
