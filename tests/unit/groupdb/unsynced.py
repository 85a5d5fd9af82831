"""SQLite that does not wait for the disk: no test loses power, and each database costs dozens of syncs."""

from typing import Any

from sqlalchemy import Engine, event


def use_unsynced_sqlite() -> None:
    """Let connections of this process write without syncs from now on."""
    if not event.contains(Engine, "connect", _adapt):
        event.listen(Engine, "connect", _adapt)


def _adapt(connection: Any, _record: object) -> None:
    if "sqlite" in type(connection).__module__:
        connection.execute("PRAGMA synchronous=OFF")
