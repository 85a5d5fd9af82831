"""Byte-by-byte comparison of two closed stores: the commit log and every consume queue.

Index files are not compared: each broker names them by its own clock, and they can be rebuilt from the log.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

COMPARED = ("commitlog", "consumequeue")
_CHUNK_BYTES = 1 << 20


@dataclass(slots=True)
class Comparison:
    """Result of a comparison."""

    files: int = 0
    bytes: int = 0
    differences: list[str] = field(default_factory=list)


def compare_stores(first: Path, second: Path) -> Comparison:
    """Compare two stores."""
    found = Comparison()
    for part in COMPARED:
        names = {path.relative_to(first) for path in _files(first / part)}
        names |= {path.relative_to(second) for path in _files(second / part)}
        for name in sorted(names):
            _compare(first / name, second / name, str(name), found)
    return found


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def _compare(first: Path, second: Path, name: str, found: Comparison) -> None:
    for path in (first, second):
        if not path.exists():
            found.differences.append(f"{name} is missing in {path.parents[len(Path(name).parents) - 1].name}")
            return
    found.files += 1
    position = 0
    for first_chunk, second_chunk in zip(_chunks(first), _chunks(second), strict=False):
        if first_chunk != second_chunk:
            index = next(
                (i for i, (a, b) in enumerate(zip(first_chunk, second_chunk, strict=False)) if a != b),
                min(len(first_chunk), len(second_chunk)),
            )
            found.differences.append(f"{name} differs at byte {position + index}")
            return
        position += len(first_chunk)
    found.bytes += position
    if first.stat().st_size != second.stat().st_size:
        found.differences.append(f"{name} has {first.stat().st_size} bytes here and {second.stat().st_size} there")


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
