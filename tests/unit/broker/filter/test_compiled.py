"""Compiled and refused expressions, kept within a memory budget."""

import pytest

from tandemq.broker.filter import compiled as module
from tandemq.broker.filter.compiled import SqlExpressions
from tandemq.broker.filter.parser import EXPRESSION_CHARACTERS_MAX, SqlFilter, compile_filter
from tandemq.broker.filter.tokens import FilterInvalid


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The expressions that were compiled, in order."""
    found: list[str] = []

    def note(expression: str) -> SqlFilter:
        found.append(expression)
        return compile_filter(expression)

    monkeypatch.setattr(module, "compile_filter", note)
    return found


def test_refused_expression_is_compiled_once(compiled: list[str]) -> None:
    expressions = SqlExpressions()
    reasons = set()
    for _ in range(3):
        with pytest.raises(FilterInvalid) as refused:
            expressions.compile("a = 1 OR")
        reasons.add(str(refused.value))
    assert compiled == ["a = 1 OR"]
    assert len(reasons) == 1


def test_refused_and_compiled_expressions_share_the_memory_budget(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES_MAX", 100 * module.PART_BYTES)
    expressions = SqlExpressions()
    for number in range(300):
        with pytest.raises(FilterInvalid):
            expressions.compile(f"a = {number} OR")
        expressions.compile(f"b = {number}")
    assert expressions._memory_bytes <= module.KEPT_BYTES_MAX
    compiled.clear()
    with pytest.raises(FilterInvalid):
        expressions.compile("a = 299 OR")
    assert not compiled
    expressions.compile("b = 0")
    assert compiled == ["b = 0"]


def test_expression_beyond_the_limit_is_not_kept() -> None:
    expressions = SqlExpressions()
    with pytest.raises(FilterInvalid):
        expressions.compile("a" * (EXPRESSION_CHARACTERS_MAX + 1))
    assert not expressions._results
