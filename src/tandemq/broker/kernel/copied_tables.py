"""Tables that a master keeps beside the log, and that its slaves copy.

    a slave without a registry, or Java's    asks for a table by its code, from time to time    `ha.metadata_sync`
    a member of a group with a registry      gets changes on the replication connection         `ha.metadata_stream`

A feature declares its tables (`Feature.tables`); those of the kernel are in `shared_tables`. The file of a table is a
`storage.json_tables.TableFile`.
"""

# ruff: noqa: B027  # a table leaves out what it does not need
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from tandemq.boundary import Now
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command


class Polled(NamedTuple):
    """A table as a master returned it."""

    body: bytes
    master: str
    """Where the master takes requests, "ip:port"."""
    is_log_accepted: bool
    """Whether a TandemQ master has found that our log shares its history."""
    now: Now


class Table(ABC):
    """A table that slaves ask for. `take…` methods raise ProtocolError or StoreDamaged for what they cannot read."""

    code: RequestCode
    """Of the request by which a slave asks for it."""
    is_optional = False
    """Whether masters of older versions do not know the code."""
    may_be_ahead = False
    """Whether a slave may know more than its master: consumers commit where they read."""

    @abstractmethod
    def polled(self, command: Command) -> bytes:
        """Return the body of the response to such a request."""

    @abstractmethod
    def take_polled(self, polled: Polled) -> None:
        """Apply such a body."""

    def correct(self) -> None:
        """Set offsets beyond the end of a queue to that end, and save the table: the log ends earlier than before."""


class StreamedTable(Table):
    """A table that a master also sends with the log, in a group with a registry."""

    kind: int
    """Of its frames on a replication connection."""
    precedes_log = False
    """Whether slaves get changes ahead of the log bytes of the same turn; if not, behind them."""
    is_waited_for = True
    """Whether responses wait, where they must, until slaves have its changes."""
    is_needed = True
    """Whether a slave has to receive it whole (`WHOLE`) before it can continue as the master."""

    @property
    def has_changes(self) -> bool:
        """Whether it changed since the last `take_changes`."""
        return False

    def collect_changes(self, *, is_wanted: bool) -> None:
        """Begin or stop collecting changes."""

    @abstractmethod
    def take_changes(self) -> bytes | None:
        """Return the changes since the last call, as JSON; None if there are none."""

    @abstractmethod
    def whole(self) -> bytes:
        """Return the table, as JSON."""

    @abstractmethod
    def take(self, table: dict[str, Any], payload: bytes) -> None:
        """Apply changes or a whole table of the master. `payload`: the same as it was received."""

    # On the disk, for a table whose changes are written before slaves and clients get them.

    @property
    def is_unnoted(self) -> bool:
        """Whether changes could not be written."""
        return False

    def note(self, changes: bytes) -> None:
        """Write changes."""

    def note_all(self) -> None:
        """Write the whole table, since changes could not be written."""

    # When mastership is handed over.

    handed_as = ""
    """Key of the table in a handover of mastership; "": it is not handed over."""

    def handed(self) -> dict[str, Any]:
        """Return the table as it is handed to the next master."""
        return {}

    def take_handed(self, raw: dict[str, Any]) -> None:
        """Merge the table of another member, and save it; responses wait for the save."""
