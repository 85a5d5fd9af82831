"""Reading store directories from outside, for comparing twins. Written apart from `tandemq.storage` on purpose.

    record  size(4) magic(4) …        blank  size(4) magic(4), the rest of the file

Source: docs/reference/compatibility.md; RocketMQ CommitLog.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from tests.interop.wire import loads_lenient

_RECORDS = {0xDAA320A7, 0xDAA320AB}
_BLANK = 0xCBD43194


@dataclass(frozen=True, slots=True)
class Log:
    """The valid bytes of a commit log: offsets `[start, end)`."""

    start: int
    data: bytes
    records: tuple[int, ...]

    @property
    def end(self) -> int:
        """Offset after the last record."""
        return self.start + len(self.data)


def read_log(store: Path) -> Log:
    """The commit log below a store directory up to its last whole record; empty if there is none."""
    files = sorted(path for path in (store / "commitlog").glob("*") if path.name.isdigit())
    if not files:
        return Log(0, b"", ())
    start = int(files[0].name)
    data = b"".join(path.read_bytes() for path in files)
    file_size = files[0].stat().st_size
    at = end = 0
    records = []
    while at + 8 <= len(data):
        size, magic = struct.unpack_from(">iI", data, at)
        if magic in _RECORDS and size > 0:
            records.append(start + at)
            at = end = at + size
        elif magic == _BLANK:
            at += file_size - at % file_size
        else:
            break
    return Log(start, data[:end], tuple(records))


def assert_twins(logs: tuple[Log, Log]) -> None:
    """Both logs end at the same offset and hold the same bytes wherever both hold any; neither is empty.

    A slave of a Java master begins at the master's last file, so their starts may differ.
    """
    one, other = logs
    assert one.data and other.data, (one.end, other.end)
    assert one.end == other.end
    start = max(one.start, other.start)
    assert start < one.end
    assert one.data[start - one.start :] == other.data[start - other.start :]


def offsets_of(store: Path, topic: str, group: str) -> dict[str, int]:
    """Queue -> stored offset of a group, as consumerOffset.json has it; empty if it does not know the group."""
    path = store / "config" / "consumerOffset.json"
    if not path.exists():
        return {}
    try:
        table = loads_lenient(path.read_text())["offsetTable"]
    except (json.JSONDecodeError, KeyError):
        # It is being written at this moment.
        return {}
    return dict(table.get(f"{topic}@{group}", {}))
