"""Files of a lake as parts of a job's input.

Source: docs/guides/pipeline-lakes.md.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from tandemq.spark.runtime.location import Location


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file of a lake, as bytes `[start, end)` of the concatenation of its files."""

    start: int
    end: int
    path: str
    """Or its URL."""


def lake_files(sizes: Mapping[str, int]) -> list[LakeFile]:
    """Return files as parts of a job's input, by path. `sizes`: in bytes, by path or URL."""
    found: list[LakeFile] = []
    for path in sorted(sizes):
        start = found[-1].end if found else 0
        found.append(LakeFile(start, start + sizes[path], path))
    return found


@contextmanager
def open_parquet(lake: Location, name: str) -> Iterator[Any]:
    """Open a Parquet file of a lake; of a remote one only the parts that are used are read.

    Raises:
        TandemError: the storage refuses access or does not respond, or the remote file is missing or malformed, also in
            the body. FileNotFoundError, ArrowInvalid: the same for a local file.
    """
    with lake.errors(name), lake.open_input(name) as file, pq.ParquetFile(file) as found:
        yield found
