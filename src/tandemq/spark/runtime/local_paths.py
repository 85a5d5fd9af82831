"""Paths of lakes, stores and what goes with them: local ones only, so far.

`s3://bucket/lake` would be a local folder named `s3:` to everything that writes files. Hence every such path is checked
where it comes in, before anything is made. `file://` is refused too: one rule, and no second way to write a path.

Source: docs/guides/pipeline.md, "Paths".
"""

import re
from pathlib import Path

from tandemq.errors import ConfigError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
"""One slash: pathlib has made one of two by the time that a Path comes in."""
LOCAL_ONLY = "only local paths are supported, no object stores and no URLs"


def scheme_of(path: str | Path) -> str | None:
    """The scheme of a URL, None of a path. A folder that is really named like one has an absolute path."""
    found = _SCHEME.match(str(path))
    return None if found is None else found[1]


def local_path(path: str | Path, what: str) -> Path:
    """A path that is local. `what`: its name in errors.

    Raises:
        ConfigError: it is a URL.
    """
    scheme = scheme_of(path)
    if scheme is not None:
        raise ConfigError(f"{what} {path}: {scheme}: is not supported: {LOCAL_ONLY}", hint=local_hint(scheme))
    return Path(path)


def local_hint(scheme: str) -> str:
    """What to give instead of a URL."""
    return "give the path without file://" if scheme.lower() == "file" else "give a directory of a mounted file system"
