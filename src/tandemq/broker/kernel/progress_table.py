"""What replication asks of a table of progress, which follows the log to the slaves."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from tandemq.storage.json_tables import DataVersion


class CorrectedLevel(NamedTuple):
    """Progress of a level that pointed beyond the end of its queue."""

    level: int
    before: int
    now: int


class ProgressTable(Protocol):
    """The progress of delayed messages, as replication sees it."""

    @property
    def version(self) -> DataVersion:
        """Version of the table; its counter grows with each change."""

    def as_json(self) -> dict[str, Any]:
        """Return the table as peers and the file have it."""

    def adopt(self, raw: dict[str, Any]) -> None:
        """Replace the table by that of a master.

        Raises:
            StoreDamaged: it is not such a table.
        """

    def adopt_body(self, body: bytes) -> None:
        """Replace the table by that in a master's response.

        Raises:
            ProtocolError: it cannot be read.
        """

    def advance(self, raw: dict[str, Any]) -> None:
        """Count what another member has done as done.

        Raises:
            StoreDamaged: it is not such a table.
        """

    def correct(self) -> Sequence[CorrectedLevel]:
        """Set progress beyond the end of its queue to that end. Returns what was changed."""

    def save(self, *, is_awaited: bool = False) -> None:
        """Write the file if something changed."""
