"""The node with the offsets that consumers commit at the reader of a slave-consume group.

The reader writes it, on condition of the version that it knows; the master reads it when the reader is gone.
Source: docs/internals/failover.md, "Offset handover"; requirement F42.
"""

from tandemq.coordination.registry.interface import (
    Create,
    Done,
    NodeFound,
    NodeMissing,
    Operation,
    Outcome,
    Read,
    RegistryRefused,
    Write,
)
from tandemq.coordination.registry.records import CopiedOffsets, offsets_from_node, offsets_to_node
from tandemq.errors import ConfigError


class OffsetsNode:
    """State of the offsets node, as far as it was read. Owner: one `RegistryView`."""

    def __init__(self, path: str) -> None:
        """Nothing was read."""
        self._path = path
        self._version: int | None = None
        """None: unknown; -1: the node is missing."""
        self._is_busy = False
        self.is_read = False
        """Whether the last `read` was answered."""
        self.copied: CopiedOffsets | None = None
        """Contents of the last answer; None: there are none, or they cannot be decoded."""
        self.written: CopiedOffsets | None = None
        """Offsets of the last write, if nothing else can have been written since."""

    @property
    def may_write(self) -> bool:
        """Whether the version is known and no request is in flight."""
        return self._version is not None and not self._is_busy

    @property
    def needs_read(self) -> bool:
        """Whether the version is unknown and no request is in flight."""
        return self._version is None and not self._is_busy

    def forget(self) -> None:
        """A connection has begun: earlier requests may be without an answer."""
        self._version, self._is_busy, self.is_read, self.written = None, False, False, None

    def read(self) -> Operation:
        """Return the request that reads the node."""
        self._is_busy, self.is_read = True, False
        return Read(self._path)

    def write(self, copied: CopiedOffsets) -> Operation:
        """Return the request that writes the node; see `may_write`."""
        assert self._version is not None, "see may_write"
        self._is_busy, self.written = True, copied
        data = offsets_to_node(copied)
        return Create(self._path, data) if self._version < 0 else Write(self._path, data, self._version)

    def answered(self, outcome: Outcome, *, is_read: bool) -> None:
        """Take the outcome of a request; `is_read`: of a read."""
        self._is_busy = False
        if is_read:
            self._take(outcome)
        elif isinstance(outcome, Done):
            self._version = outcome.version
        else:
            self._version = self.written = None

    def _take(self, outcome: Outcome) -> None:
        self.is_read = isinstance(outcome, NodeFound | NodeMissing | RegistryRefused)
        self.copied = self._version = None
        if isinstance(outcome, NodeMissing):
            self._version = -1
        elif isinstance(outcome, NodeFound):
            self._version = outcome.version
            try:
                self.copied = offsets_from_node(outcome.data)
            except ConfigError:
                return  # nothing can be merged; the reader replaces it
