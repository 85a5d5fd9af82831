"""Choice of the engine: what there is, or what TANDEMQ_ENGINE says."""

from types import ModuleType

import pytest

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
    for name in choice.__all__:
        assert hasattr(python, name), name
