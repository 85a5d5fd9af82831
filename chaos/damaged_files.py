"""A file of a store that is empty, cut, missing, or an older copy of itself while its broker is down.

Only files that a start rebuilds or can do without: of queues and index, marks, checkpoint, timer check, scrub table.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

PATTERNS = (
    "consumequeue/*/*/*",
    "index/*",
    "tandemq.marks",
    "checkpoint",
    "config/timercheck",
    "config/scrub.json",
)
KINDS = ("empty", "cut", "missing", "older")
_BYTES_MAX = 8 << 20
"""Size of the largest file of which copies are kept."""


def copies(store: Path) -> dict[Path, bytes]:
    """Return the contents of these files at this moment."""
    found: dict[Path, bytes] = {}
    for path in _paths(store):
        try:
            found[path] = path.read_bytes() if path.stat().st_size <= _BYTES_MAX else b""
        except FileNotFoundError:
            continue
    return found


def damage(store: Path, older: dict[Path, bytes], random: Random) -> tuple[str, str]:
    """Damage one file of a store whose broker is down; return its path below the store and the kind; "", "" if none.

    Args:
        store: the store.
        older: contents of its files at an earlier time.
        random: draws file and kind.
    """
    pattern, kind = random.choice(PATTERNS), random.choice(KINDS)
    paths = [path for path in _paths(store) if path.relative_to(store).match(pattern)]
    if kind == "older":
        paths = [path for path in paths if older.get(path) not in (None, b"", path.read_bytes())]
    if not paths:
        return "", ""
    path = random.choice(paths)
    if kind == "missing":
        path.unlink()
    elif kind == "older":
        path.write_bytes(older[path])
    else:
        with path.open("r+b") as file:
            file.truncate(0 if kind == "empty" else random.randrange(path.stat().st_size + 1))
    return str(path.relative_to(store)), kind


def _paths(store: Path) -> list[Path]:
    return sorted(path for pattern in PATTERNS for path in store.glob(pattern) if path.is_file())
