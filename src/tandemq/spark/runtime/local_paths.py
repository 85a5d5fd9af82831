"""Validation of paths of lakes, stores and related files: only local paths are supported.

Code that writes files would take `s3://bucket/lake` for a local folder named `s3:`. Every path is therefore checked
where it enters the program, before anything is created. `file://` URLs are refused too, so that a path has only one
form.

Source: docs/guides/pipeline.md, "Paths".
"""

import re
from pathlib import Path

from tandemq.errors import ConfigError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
"""One slash: pathlib collapses the two slashes of a URL."""
LOCAL_ONLY = "only local paths are supported, no object stores and no URLs"


def scheme_of(path: str | Path) -> str | None:
    """Return the scheme of a URL, None for a path. A folder whose name looks like a scheme needs an absolute path."""
    found = _SCHEME.match(str(path))
    return None if found is None else found[1]


def local_path(path: str | Path, what: str) -> Path:
    """Return a path that is known to be local. `what`: its name in error messages.

    Raises:
        ConfigError: the path is a URL.
    """
    scheme = scheme_of(path)
    if scheme is not None:
        raise ConfigError(f"{what} {path}: {scheme}: is not supported: {LOCAL_ONLY}", hint=local_hint(scheme))
    return Path(path)


def local_hint(scheme: str) -> str:
    """Return the hint to give a path instead of a URL."""
    return "give the path without file://" if scheme.lower() == "file" else "give a directory of a mounted file system"
