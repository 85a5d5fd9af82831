"""Upsert of micro-batches into a Delta table of the user: for `foreachBatch`, exactly once.

    rows.writeStream.foreachBatch(Upsert("/data/gold_minutes", ["minute"])).option("checkpointLocation", …)

The commit of a micro-batch carries a transaction identifier (id of the query, number of the batch). Spark repeats a
batch if the driver died before Spark had recorded its end; it is then in the table already, and skipped. The id of a
query is that of its checkpoint; with a new checkpoint all rows are merged again.

Rows are merged by the driver: for results of aggregations and joins, not for bulk data.
Source: docs/guides/pipeline.md, "The lake"; Delta protocol, "transaction identifiers".
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql import DataFrame

from tandemq.errors import ConfigError, LocalError
from tandemq.spark.lake.delta import open_table
from tandemq.spark.lake.table_checks import check_features
from tandemq.spark.runtime.location import ICEBERG, Place, locate

QUERY_ID = "sql.streaming.queryId"
"""Local property in which Spark passes the id of a query to `foreachBatch`."""


class Upsert:
    """Function for `foreachBatch`: inserts rows into a Delta table, or replaces those with the same key."""

    def __init__(
        self,
        path: Place,
        key: Sequence[str],
        *,
        latest: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Name a table; it is created with the first rows.

        Args:
            path: a directory, or a URL.
            key: the columns that identify a row.
            latest: a column that grows from one version of a row to the next: of rows with the same key, in a
                micro-batch and in the table, the greatest remains; a row of the table with NULL there is replaced.
                Without it a micro-batch has each key once, and replaces the rows of the table.
            options: storage options of a URL; those of the environment are added.

        Raises:
            ConfigError: the URL is not supported, such as that of an Iceberg table, or there is no key.
        """
        if not key:
            raise ConfigError("an upsert needs a key", hint="give the columns that identify a row")
        self._place = locate(path, "the table", options)
        if self._place.scheme == ICEBERG:
            raise ConfigError(
                f"{self._place} is an Iceberg table; only Delta tables are upserted", hint="give a directory or a URL"
            )
        self._key = list(key)
        self._latest = latest

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Merge a micro-batch, unless the table has it already.

        Raises:
            ConfigError: the table has other columns, or features that are not written here, or a column of the key is
                missing; nothing is written.
            LocalError: there are two rows with the same key, or one without key, or another writer was faster, or the
                storage refuses access or does not respond; nothing is written.
        """
        query = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        if query is None:
            raise LocalError("this is no micro-batch of a streaming query", hint="pass Upsert(…) to foreachBatch")
        # Also of a batch that is skipped below: the state of its query is stored by the tasks that compute the rows.
        rows = self._checked(frame.toArrow())
        table = self._table()
        if table is not None:
            done = table.transaction_version(query)
            if done is not None and done >= batch:
                return
        if not rows.num_rows:
            return
        try:
            with self._place.errors():
                table = table or self._created(rows.schema)
                self._check_columns(table, rows.schema)
                self._merge(table, rows, Transaction(query, batch))
        except DeltaError as error:
            raise LocalError(
                f"{self._place}: the rows could not be merged: {str(error).splitlines()[0]}",
                hint="if another program has changed the table meanwhile, start the query again: the micro-batch is "
                "repeated",
            ) from error

    def _table(self) -> DeltaTable | None:
        try:
            table = open_table(self._place)
        except TableNotFoundError:
            return None
        check_features(self._place, table, allows_mapped=True)
        return table

    def _created(self, schema: Any) -> DeltaTable:
        options = self._place.storage_options()
        return DeltaTable.create(self._place.url, _nullable(schema), mode="error", storage_options=options)

    def _checked(self, rows: Any) -> Any:
        """Return the rows, of each key the latest one."""
        for name in (*self._key, *([] if self._latest is None else [self._latest])):
            if name not in rows.column_names:
                raise ConfigError(f"the rows have no column {name!r}", hint=f"there are {', '.join(rows.column_names)}")
            if rows.column(name).null_count:
                raise LocalError(f"{self._place}: a row has no value in column {name!r}; nothing was written")
        if self._latest is not None:
            order = [(name, "ascending") for name in self._key]
            rows = rows.sort_by([*order, (self._latest, "ascending")])
            number = pa.array(range(rows.num_rows), pa.int64())
            newest = rows.select(self._key).append_column("#", number).group_by(self._key).aggregate([("#", "max")])
            return rows.take(newest.column("#_max"))
        if rows.group_by(self._key).aggregate([]).num_rows != rows.num_rows:
            raise LocalError(
                f"{self._place}: two rows of a micro-batch have the same {', '.join(self._key)}; nothing was written",
                hint="give latest=, the column that tells which one is newer",
            )
        return rows

    def _check_columns(self, table: DeltaTable, given: Any) -> None:
        found, wanted = (
            {field.name: field.type for field in schema.fields} for schema in (table.schema(), Schema.from_arrow(given))
        )
        if found != wanted:
            names = [name for name in found | wanted if found.get(name) != wanted.get(name)]
            raise ConfigError(
                f"{self._place}: the table and the rows differ in column {names[0]!r}; nothing was written",
                hint="write into another table, or change this one first",
            )

    def _merge(self, table: DeltaTable, rows: Any, batch: Transaction) -> None:
        match = " AND ".join(f"new.`{name}` = old.`{name}`" for name in self._key)
        # A row of the table without a value there is older than every other one.
        name = self._latest
        newer = None if name is None else f"old.`{name}` IS NULL OR new.`{name}` >= old.`{name}`"
        (
            table.merge(
                rows,
                match,
                source_alias="new",
                target_alias="old",
                commit_properties=CommitProperties(app_transactions=[batch]),
            )
            .when_matched_update_all(newer)
            .when_not_matched_insert_all()
            .execute()
        )


def _nullable(schema: Any) -> Any:
    return pa.schema([field.with_nullable(True) for field in schema])
