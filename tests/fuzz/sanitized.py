"""The engine compiled with AddressSanitizer and UndefinedBehaviorSanitizer."""

import os
import subprocess
import sys
import sysconfig
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCES = ROOT / "src" / "tandemq" / "engine"
DIRECTORY = ROOT / "build" / "fuzz"
MODULE = "tandemq._engine"
PATH = "TANDEMQ_FUZZED_ENGINE"
"""Environment variable of the process that fuzzes: the path of the module."""
FLAGS = (
    "-O1",
    "-g",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-shared",
    "-fPIC",
)


def build() -> Path:
    """Return the path of the module, compiled again if its sources are newer."""
    source, generated, module = SOURCES / "engine.pyx", DIRECTORY / "engine.c", DIRECTORY / "_engine.so"
    newest = max(path.stat().st_mtime for path in (source, *SOURCES.glob("*.pxi"), *SOURCES.glob("*.h")))
    if module.exists() and module.stat().st_mtime > newest:
        return module
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    cython = [sys.executable, "-m", "cython", "-3", "--module-name", MODULE, str(source), "-o", str(generated)]
    subprocess.run(cython, check=True)
    includes = [f"-I{SOURCES}", f"-I{sysconfig.get_path('include')}"]
    subprocess.run([_compiler(), *FLAGS, *includes, str(generated), "-o", str(module)], check=True)
    return module


def _compiler() -> str:
    return os.environ.get("CC", "cc")


def environment(module: Path) -> dict[str, str]:
    """Return the environment of a process that loads the module: sanitizers, and malloc as Python's allocator."""
    libraries = [
        subprocess.run([_compiler(), f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout
        for name in ("libasan.so", "libubsan.so")
    ]
    return os.environ | {
        "LD_PRELOAD": " ".join(library.strip() for library in libraries),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "TANDEMQ_ENGINE": "compiled",
        PATH: str(module),
    }


class Finder:
    """Finds the module that is fuzzed in place of the installed one; an entry of `sys.meta_path`."""

    def __init__(self, path: str) -> None:
        """Find the module at this path."""
        self._path = path

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return the spec of the compiled engine, None for all other modules."""
        return spec_from_file_location(name, self._path) if name == MODULE else None
