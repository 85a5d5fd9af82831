"""A missing compiled engine is noticed where it could be built."""

import sys

import pytest

from tandemq.engine import python
from tests.unit.engine import modules


def test_missing_module_fails_the_tests_if_there_is_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tandemq._engine", None)
    monkeypatch.setattr(modules, "has_compiler", lambda: True)
    with pytest.raises(pytest.fail.Exception, match="make setup"):
        modules.compiled_engine()
    monkeypatch.setattr(modules, "has_compiler", lambda: False)
    assert modules.compiled_engine() is python


def test_compiler_without_headers_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "get_path", lambda _: "nowhere")
    assert not modules.has_compiler()
