"""A classic slave without a store: it reports an offset, drains the commit log, and acknowledges what it read.

    slave → master   offset(8)                              where to start, later: the end received so far
    master → slave   logOffset(8) size(4) | bytes…          size 0 is a heartbeat

Source: docs/internals/ha.md 2.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

from tandemq.load.results.report import OnProgress, ReplicateResult, Stopwatch, Ticker
from tandemq.load.wire.responses import LoadError
from tandemq.load.wire.sockets import connect

_head_at = struct.Struct(">qI").unpack_from
_HEAD_BYTES = 12
_BUFFER_BYTES = 1 << 20
_SILENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class ReplicateOptions:
    """Options of a replicate run."""

    address: str  # host:port of the HA listener.
    start_offset: int = 0  # Offset reported first; for 0 a master starts at its last file.
    end_offset: int = 0  # Stop here; 0: after `seconds`.
    seconds: float = 10.0  # At most this long.


class _Transfers:
    """Walks the frames of the stream; bodies are skipped, not kept."""

    __slots__ = ("_head", "_skip", "count", "first", "position", "received")

    def __init__(self) -> None:
        self.position = -1  # The end of what was received; -1 until the first frame.
        self.first = -1
        self.received = self.count = 0
        self._skip = 0
        self._head = b""

    def feed(self, view: memoryview) -> None:
        """Process received bytes.

        Raises:
            LoadError: a frame that does not follow the one before.
        """
        at, end = 0, len(view)
        while at < end:
            if self._skip:
                taken = min(self._skip, end - at)
                self._skip -= taken
                self.position += taken
                self.received += taken
                at += taken
            elif self._head or end - at < _HEAD_BYTES:
                taken = min(_HEAD_BYTES - len(self._head), end - at)
                self._head += view[at : at + taken].tobytes()
                at += taken
                if len(self._head) == _HEAD_BYTES:
                    self._begin(*_head_at(self._head))
                    self._head = b""
            else:
                self._begin(*_head_at(view, at))
                at += _HEAD_BYTES

    def _begin(self, offset: int, size: int) -> None:
        if self.position < 0:
            self.first = self.position = offset
        if offset != self.position:
            raise LoadError(f"the master sent offset {offset} where {self.position} should follow")
        self._skip = size
        self.count += size > 0


def replicate(options: ReplicateOptions, on_progress: OnProgress | None = None) -> ReplicateResult:
    """Follow the master and return the rate of its log.

    The measured time begins with the first bytes, so that a master's waits at the start do not count.

    Raises:
        NotConnected: no connection.
        LoadError: the master closed it or stays silent, or the stream is not in order.
    """
    ticker = Ticker(on_progress)
    transfers = _Transfers()
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    with connect(options.address) as master:
        sock = master.socket
        sock.settimeout(_SILENCE_S)
        sock.sendall(struct.pack(">q", options.start_offset))
        watch: Stopwatch | None = None
        started = time.perf_counter()
        while not _finished(options, transfers, watch.wall if watch else started):
            try:
                size = sock.recv_into(buffer)
            except OSError as error:
                raise LoadError(f"the master sent nothing for {_SILENCE_S:.0f} s: {error}") from error
            if not size:
                raise LoadError("the master closed the connection")
            if watch is None and size > _HEAD_BYTES:
                watch = Stopwatch()
            before = transfers.position
            transfers.feed(buffer[:size])
            if transfers.position != before:
                sock.sendall(struct.pack(">q", transfers.position))
            now = time.perf_counter()
            if ticker.due(now):
                ticker.report("replicate", transfers.received, now)
        seconds, cpu_share = (watch or Stopwatch()).read()
    return ReplicateResult(
        bytes=transfers.received,
        seconds=round(seconds, 3),
        mb_per_s=round(transfers.received / seconds / 1e6, 1),
        transfers=transfers.count,
        start_offset=transfers.first,
        end_offset=transfers.position,
        cpu_share=cpu_share,
    )


def _finished(options: ReplicateOptions, transfers: _Transfers, started: float) -> bool:
    if options.end_offset and transfers.position >= options.end_offset:
        return True
    return time.perf_counter() - started >= options.seconds
