"""What consumers commit at the reader of a slave-consume group, in the form of the registry's node.

    reader    commits ─► `recent` ─► JSON, compressed ─► MemberMachine.copy_offsets ─► node
    master    node ─► MergeOffsets ─► merged: the higher offset wins, or the one reset last ─► saved

Only what was committed since this broker became the reader: the master has the rest. After a restart of the reader that
is not known, and everything counts. Source: docs/internals/failover.md, "A reader that does not return".
"""

import logging
import zlib
from typing import Any

from tandemq.boundary import Now
from tandemq.broker.state.consumer_offsets import ConsumerOffsets
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.coordination.member.copied_offsets import COPY_MS
from tandemq.coordination.registry.interface import DATA_BYTES_MAX
from tandemq.coordination.registry.records import GroupMode, GroupState
from tandemq.errors import ProtocolError, StoreDamaged

log = logging.getLogger(__name__)
TABLE_BYTES_MAX = DATA_BYTES_MAX - 1024
"""Maximum size of a compressed table."""
PLACES_MAX = 32_000
"""Maximum number of queues in a table: making one takes some milliseconds."""
PER_INTERVAL = 10_000
"""Maximum number of queues copied once per COPY_MS; more are copied more rarely, so that the share of time stays."""
UNPACKED_BYTES_MAX = 16 << 20


class ReaderOffsets:
    """Collects the offsets that the reader has to copy to the registry."""

    def __init__(self, offsets: ConsumerOffsets) -> None:
        """This broker is not the reader."""
        self._offsets = offsets
        self._has_followed = False
        self._copied = 0
        """Value of `offsets.commits` at the last copy."""
        self._next_ms = 0
        self._is_cut = False

    def follow(self, state: GroupState | None, broker_id: int) -> None:
        """Record commits of offsets while the group's record names this broker as the reader."""
        if state is None:
            return
        if state.mode is not GroupMode.SLAVE_CONSUME or state.reader != broker_id:
            self._has_followed, self._is_cut = True, False
            self._offsets.forget_commits()
        elif self._offsets.recent is None:
            self._offsets.record_commits(of_all=not self._has_followed)
            self._copied, self._next_ms = -1, 0

    def next_copy(self, now: Now) -> bytes | None:
        """Return the table to copy; None if nothing was committed since the last one, or it is not due."""
        recent, commits = self._offsets.recent, self._offsets.commits
        if not recent or commits == self._copied or now.mono_ms < self._next_ms:
            return None
        self._copied = commits
        self._next_ms = now.mono_ms + COPY_MS * -(-len(recent) // PER_INTERVAL)
        return self._encode(list(recent))

    def _encode(self, places: list[tuple[str, int]]) -> bytes:
        """Encode the latest commits, as many as a node of the registry has room for."""
        kept = places[-PLACES_MAX:]
        while len(data := zlib.compress(dumps(self._offsets.of_places(kept)), 1)) > TABLE_BYTES_MAX:
            kept = kept[len(kept) // 2 :]
        if len(kept) < len(places) and not self._is_cut:
            log.warning(
                "failover: offsets of %d queues were committed here, and the registry has room for %d: if this broker "
                "does not return, messages of the others are delivered again",
                len(places),
                len(kept),
            )
        self._is_cut = len(kept) < len(places)
        return data


def decode(table: bytes) -> dict[str, Any]:
    """Decode the offsets that a reader has copied.

    Raises:
        StoreDamaged: it cannot be decoded, or is larger than any reader's table.
    """
    unpack = zlib.decompressobj()
    try:
        data = unpack.decompress(table, UNPACKED_BYTES_MAX)
    except zlib.error as error:
        raise StoreDamaged(f"copied offsets: {error}") from error
    if not unpack.eof:
        raise StoreDamaged(f"copied offsets: {len(table)} bytes that are no whole table")
    try:
        raw = loads(data, is_trusted=True)
    except ProtocolError as error:
        raise StoreDamaged(f"copied offsets: {error}") from error
    if not isinstance(raw, dict):
        raise StoreDamaged("copied offsets: no JSON object")
    return raw
