"""Writing a history, from one or more threads."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from hashlib import blake2b
from itertools import count
from typing import IO, Any

from judge.history import FORMAT, INVOKE, OK, VERSION


def hash_of(*parts: bytes) -> str:
    """Return the hash of a message's content: the body, and what else must not change."""
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(4) + part)
    return digest.hexdigest()


class HistoryWriter:
    """Writes the lines in the order of the calls: what was called after a return is behind it in the file."""

    def __init__(
        self,
        file: IO[str],
        now_ms: Callable[[], float],
        *,
        run: str = "",
        system: str = "",
        promises: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the header. `now_ms`: one clock for all processes of the run; `promises`: see `history.Promises`."""
        self._file = file
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._numbers = count(1)
        header = {"format": FORMAT, "version": VERSION, "run": run, "system": system, "promises": dict(promises or {})}
        self._file.write(json.dumps(header) + "\n")

    def invoke(self, process: str, f: str, *, t: float | None = None, **fields: object) -> int:
        """Write that an operation begins; return its number."""
        op = next(self._numbers)
        self._write(process, f, INVOKE, t, {"op": op, **fields})
        return op

    def end(self, process: str, f: str, op: int, type_: str = OK, *, t: float | None = None, **fields: object) -> None:
        """Write the outcome of an operation: "ok", "fail": it certainly has no effect, or "unknown"."""
        self._write(process, f, type_, t, {"op": op, **fields})

    def note(self, process: str, f: str, *, t: float | None = None, **fields: object) -> None:
        """Write an operation of one line."""
        self._write(process, f, OK, t, fields)

    def flush(self) -> None:
        """Flush the file."""
        with self._lock:
            self._file.flush()

    def _write(self, process: str, f: str, type_: str, t: float | None, fields: Mapping[str, object]) -> None:
        kept = {name: value for name, value in fields.items() if value is not None}
        with self._lock:
            at = round(self._now_ms() if t is None else t, 3)
            line = {"t": at, "p": process, "f": f, "type": type_, **kept}
            self._file.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")
