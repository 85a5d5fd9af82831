"""Damage of one table of a member that is not the active one: it has to be as the others have it in the end.

Tables are those of topics, groups, consumer offsets, delayed and timed messages, roles, with their journals and
backups. Not those of users and limits, which a broker without them would not apply, and with a static topic not its
mapping: a broker with an older one takes messages of queues that have moved away.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

KINDS = ("empty", "missing", "cut", "zeroed", "flip", "swapped", "older")
PATTERNS = ("config/*.json", "config/*.json.bak", "config/*.changes-*", "config/timermetrics", "epochFileCheckpoint")
_NEVER = ("accessControl.", "quotas.")
_MAPPINGS = ("topics.", "topicQueueMapping.")
Contents = dict[Path, bytes]


def contents(store: Path, *, has_static_topic: bool) -> Contents:
    """Return the tables of a store at this moment."""
    excluded = _NEVER + _MAPPINGS if has_static_topic else _NEVER
    found: Contents = {}
    for path in sorted(path for pattern in PATTERNS for path in store.glob(pattern)):
        if not path.name.startswith(excluded):
            try:
                found[path] = path.read_bytes()
            except FileNotFoundError:  # a broker that runs has replaced it
                continue
    return found


def damage(now: Contents, older: Contents, random: Random) -> tuple[str, str]:
    """Damage one table; return its name and the kind; "", "" if there is none.

    Args:
        now: the tables as they are.
        older: contents at an earlier time.
        random: draws table and kind.
    """
    kind = random.choice(KINDS)
    paths = [path for path, data in now.items() if data]
    changed_since = [path for path in paths if older.get(path, now[path]) != now[path]]
    if kind == "older" and changed_since:
        paths = changed_since
    elif kind == "older":
        kind = "missing"
    if not paths:
        return "", ""
    path = random.choice(paths)
    data = now[path]
    if kind == "missing":
        path.unlink(missing_ok=True)
        return path.name, kind
    at = random.randrange(len(data))
    changed = {
        "empty": b"",
        "cut": data[:at],
        "zeroed": bytes(len(data)),
        "flip": data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :],  # another digit could not be detected
        "swapped": random.choice(list(now.values())),
        "older": older.get(path, b""),
    }
    path.write_bytes(changed[kind])
    return path.name, kind
