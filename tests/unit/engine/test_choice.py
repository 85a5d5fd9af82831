"""Choice of the engine: the compiled one if it was built, unless TANDEMQ_ENGINE selects another."""

from types import ModuleType

import pytest

from tandemq import engine
from tandemq.engine import choice, python


def missing(name: str) -> ModuleType:
    raise ModuleNotFoundError(f"No module named {name!r}")


def test_engine_in_python_is_used_if_it_is_chosen_or_no_other_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEMQ_ENGINE", "python")
    assert choice._load() is python
    monkeypatch.delenv("TANDEMQ_ENGINE")
    monkeypatch.setattr(choice, "import_module", missing)
    assert choice._load() is python


def test_compiled_engine_that_is_missing_is_an_error_only_if_it_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "import_module", missing)
    monkeypatch.setenv("TANDEMQ_ENGINE", "compiled")
    with pytest.raises(ImportError, match="make setup"):
        choice._load()


def test_unknown_engine_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEMQ_ENGINE", "rust")
    with pytest.raises(ImportError, match="'rust': it must be python or compiled"):
        choice._load()


def test_both_engines_have_the_same_names() -> None:
    compiled = {name for name in dir(choice.chosen) if not name.startswith("_")}
    assert {name for name in engine.__all__ if hasattr(choice, name)} <= compiled & set(dir(python))
