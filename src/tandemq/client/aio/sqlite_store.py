"""Handled messages in an SQLite file, for the consumers of one machine.

    PushConsumer(…, deduplicate=Deduplication(store=SQLiteStore("handled.db")))

Several processes may use one file. A note survives the end of the process; a machine that loses power may lose the
latest notes (`synchronous=NORMAL` of a write-ahead log), whose messages may then be delivered again. Entries are kept
for `keep_s` seconds. Do not put the file on a network file system.
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tandemq.errors import ConfigError

KEEP_S = 7 * 24 * 3600
BUSY_MS = 2_000
EXPIRE_EVERY_S = 10.0
EXPIRED_MAX = 20_000
"""Maximum number of entries deleted at a time."""
_TABLE = """
CREATE TABLE IF NOT EXISTS handled (
    consumer_group TEXT NOT NULL,
    identity TEXT NOT NULL,
    handled_s INTEGER NOT NULL,
    PRIMARY KEY (consumer_group, identity)
) WITHOUT ROWID
"""
_FIND = """
SELECT identity FROM json_each(?) JOIN handled ON identity = value WHERE consumer_group = ? AND handled_s >= ?
"""
_EXPIRE = """
DELETE FROM handled WHERE (consumer_group, identity) IN
    (SELECT consumer_group, identity FROM handled WHERE handled_s < ? LIMIT ?)
"""


class SQLiteStore:
    """See `DuplicateStore`. Calls run in a thread of their own."""

    def __init__(self, path: str | Path, *, keep_s: int = KEEP_S) -> None:
        """`keep_s`: for how long a handled message is remembered. The file is opened by the first call.

        Raises:
            ConfigError: `keep_s` is below 1.
        """
        if keep_s < 1:
            raise ConfigError(f"keep_s is {keep_s}; it must be at least 1")
        self._path = Path(path)
        self._keep_s = keep_s
        self._thread = ThreadPoolExecutor(1, "tandemq-duplicates")
        self._connection: sqlite3.Connection | None = None
        self._expired_s = 0.0

    async def find(self, group: str, identities: Sequence[str]) -> Collection[str]:
        """See `DuplicateStore`."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._find, group, list(identities))

    async def add(self, group: str, identities: Sequence[str]) -> None:
        """See `DuplicateStore`."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._add, group, list(identities))

    async def close(self) -> None:
        """Close the file; has no effect a second time. A later call opens it again."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)

    # In the thread.

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            try:
                connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
                connection.execute(_TABLE)
                connection.execute("CREATE INDEX IF NOT EXISTS handled_by_time ON handled (handled_s)")
            except sqlite3.Error:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _find(self, group: str, identities: list[str]) -> set[str]:
        rows = self._open().execute(_FIND, (json.dumps(identities), group, int(time.time()) - self._keep_s))
        return {identity for (identity,) in rows}

    def _add(self, group: str, identities: list[str]) -> None:
        connection, now_s = self._open(), time.time()
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany(
                "INSERT OR REPLACE INTO handled VALUES (?, ?, ?)",
                [(group, identity, int(now_s)) for identity in identities],
            )
            if now_s - self._expired_s >= EXPIRE_EVERY_S:
                self._expired_s = now_s
                connection.execute(_EXPIRE, (int(now_s) - self._keep_s, EXPIRED_MAX))
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
