"""The compiled engine for the tests that compare it with the one in Python."""

import shutil
from importlib import import_module
from pathlib import Path
from sysconfig import get_config_var, get_path
from types import ModuleType

import pytest

from tandemq.engine import python

MISSING = "the compiled engine is missing, though there is a C compiler: `make setup` builds it"


def compiled_engine() -> ModuleType:
    """Return the compiled engine; where no C compiler can build it the one in Python, which is then compared to itself.

    A missing module fails the test if there is a C compiler with Python's headers.
    """
    try:
        return import_module("tandemq._engine")
    except ModuleNotFoundError:
        if has_compiler():
            pytest.fail(MISSING)
        return python


def has_compiler() -> bool:
    """Whether there is a C compiler with Python's headers."""
    compiler = (get_config_var("CC") or "cc").split()[0]
    headers = Path(get_path("include")) / "Python.h"
    return headers.is_file() and any(shutil.which(name) for name in (compiler, "cc", "gcc", "clang"))
