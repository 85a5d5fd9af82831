"""Lease of a directory at a URL: one process at a time changes its files, although object stores have no locks.

    directory/_tandemq_lease/_delta_log/….json     one commit per acquisition, renewal and release; its mark is the
                                                   time until which the lease is held, 0 if it was released

Of two commits of one mark at once one fails (docs/guides/pipeline-lakes.md), so that at most one process acquires the
lease, and a renewal fails after another process has acquired it. A lease that was not released, because its process was
killed, ends by itself. Clocks of the machines may differ by less than `HELD_MS`, minus the time of a request.

Source: Delta protocol, "transaction identifiers".
"""

import time
from contextlib import suppress
from datetime import UTC, datetime

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError

from tandemq.errors import StoreLocked, TandemError
from tandemq.spark.lake.delta import open_table
from tandemq.spark.runtime.location import Location

NAME = "_tandemq_lease"
MARK = "tandemq-lease"
HELD_MS = 600_000
"""Time after which a lease that is not renewed may be acquired by another process."""


class DirectoryLease:
    """A held lease."""

    def __init__(self, directory: Location) -> None:
        """Acquire the lease of a directory.

        Raises:
            StoreLocked: another process holds it. LocalError: the storage refuses access or does not respond.
        """
        self._directory = directory
        self._place = directory.within(NAME)
        self.is_released = False
        self._table = self._opened()
        left_ms = (self._table.transaction_version(MARK) or 0) - time.time_ns() // 1_000_000
        if left_ms > 0:
            raise self._locked(
                f"repeat the command in {left_ms // 1000 + 1} s, if that process was killed or lost its credentials"
            )
        self._commit(HELD_MS)

    def renew(self) -> None:
        """Hold the lease for its full time from now on. Raises as the constructor."""
        self._commit(HELD_MS)

    def keep(self) -> None:
        """Renew the lease if a tenth of its time has passed. Raises as the constructor."""
        if time.monotonic() - self._renewed_s > HELD_MS / 10_000:
            self.renew()

    def release(self) -> None:
        """End the lease; one that cannot be released ends by itself."""
        with suppress(TandemError):
            self._commit(0)
            self.is_released = True

    def describe_end(self) -> str:
        """Return when a lease that could not be released ends, for error messages."""
        end = datetime.fromtimestamp(-(-self._until_ms // 1000), UTC)
        return f"not before {end:%H:%M:%S} UTC: until then this run holds the lease, which it could not release"

    def _opened(self) -> DeltaTable:
        try:
            return open_table(self._place)
        except TableNotFoundError:
            pass
        try:
            with self._place.errors():
                schema = pa.schema({"unused": pa.int64()})
                options = self._place.storage_options()
                return DeltaTable.create(self._place.url, schema, mode="error", storage_options=options)
        except DeltaError:  # another process has created it in the meantime
            return open_table(self._place)

    def _commit(self, held_ms: int) -> None:
        until = time.time_ns() // 1_000_000 + held_ms if held_ms else 0
        version = self._table.version() + 1
        properties = CommitProperties(app_transactions=[Transaction(MARK, until)])
        try:
            with self._place.errors():
                self._table.create_write_transaction(
                    [], mode="append", schema=self._table.schema(), partition_by=[], commit_properties=properties
                )
                self._table.update_incremental()
        except DeltaError as error:
            raise self._locked("repeat the command later") from error
        self._renewed_s, self._until_ms = time.monotonic(), until
        if (self._table.version(), self._table.transaction_version(MARK)) != (version, until):
            raise self._locked("repeat the command later")

    def _locked(self, hint: str) -> StoreLocked:
        return StoreLocked(
            f"another process changes the files in {self._directory}; this one has stopped before its next change",
            hint=hint,
        )
