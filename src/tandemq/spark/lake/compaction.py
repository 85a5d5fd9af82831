"""Parts of a compaction that do not depend on the format of the table: which files are merged, the merge, the lock.

Source: docs/guides/pipeline.md, "Archive"; docs/guides/pipeline-lakes.md, "Maintenance".
"""

import fcntl
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

from tandemq.errors import LocalError, StoreLocked
from tandemq.spark.lake.files import open_parquet
from tandemq.spark.runtime.location import Location
from tandemq.spark.sources.log.parquet_writer import lake_schema, write_file

LOCK = "_tandemq/compact.lock"
COMPACT_BYTES = 256 << 20
COMPACT_ROWS = 1 << 15
"""Rows that a compaction reads at once."""


class ListedFile(NamedTuple):
    """A file of a table, as the table's metadata describes it."""

    name: str
    rows: int | None
    bytes: int
    first: int | None
    """Least log offset; None if it is not known."""


def files_to_merge(found: Iterable[ListedFile]) -> list[list[ListedFile]]:
    """Return the groups of files to merge, in the order of their log offsets; only files that fit together."""
    groups: list[list[ListedFile]] = [[]]
    room = COMPACT_BYTES
    for file in sorted(found, key=lambda one: (one.first is not None, one.first, one.name)):
        if file.bytes > COMPACT_BYTES // 2:
            continue
        if file.bytes > room:
            groups.append([])
            room = COMPACT_BYTES
        groups[-1].append(file)
        room -= file.bytes
    return [group for group in groups if len(group) > 1]


def merge_files(location: Location, names: Sequence[str], rows: int | None, number: int) -> dict[str, Any]:
    """Write the rows of some files to a new one, and return its row of `files_schema`.

    Args:
        rows: their number of rows; None if it is not known.
        number: part of the new file's name.
    Raises:
        LocalError: they have another number of rows; the new file is deleted.
    """
    schema = lake_schema()

    def batches() -> Iterator[Any]:
        for name in names:
            with open_parquet(location, name) as file:
                for batch in file.iter_batches(COMPACT_ROWS, columns=schema.names):
                    yield batch.select(schema.names).cast(schema)

    new = f"part-{number:05d}-{uuid4().hex}.parquet"
    (row,) = write_file(location, new, batches(), 0, 0).to_pylist()
    if rows is not None and row["rows"] != rows:
        location.delete(new)
        raise LocalError(f"{location}: files have other numbers of rows than their commits say")
    return dict(row)


@contextmanager
def locked(location: Location) -> Iterator[None]:
    """Hold the lock of a local lake that excludes other compactions, vacuums and rewritings.

    Raises:
        StoreLocked: another process holds it.
    """
    if not location.is_local:
        yield
        return
    path = location.path / LOCK
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreLocked(
                f"{location.path} is being compacted or vacuumed by another process; nothing was changed",
                hint="try later",
            ) from error
        except OSError as error:
            raise LocalError(
                f"{path} cannot be locked: {error.strerror}",
                hint="the lake's file system must support locks (flock)",
            ) from error
        yield
