"""Tables of a master besides the log, which its slaves copy.

    a slave without a registry, or Java's    requests each table by its code, periodically      `ha.metadata_sync`
    a member of a group with a registry      gets changes on the replication connection         `ha.metadata_stream`

A feature declares its tables (`Feature.tables`); those of the kernel are in `shared_tables`. The file of a table is a
`storage.json_tables.TableFile`.
"""

# ruff: noqa: B027  # a table overrides only the methods that it needs
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

from tandemq.boundary import Now
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command


class Polled(NamedTuple):
    """A master's response to the request for a table."""

    body: bytes
    master: str
    """Address of the master's request port, "ip:port"."""
    is_log_accepted: bool
    """Whether a TandemQ master has confirmed that this slave's log is a part of its own history."""
    now: Now


class Table(ABC):
    """A table that slaves request. `take…` methods raise ProtocolError or StoreDamaged for unreadable tables."""

    code: RequestCode
    """Code of the request for the table."""
    is_optional = False
    """Whether older masters do not support the request; the tables of a slave are complete without this one."""
    may_be_ahead = False
    """Whether a slave's table may be newer than its master's: consumers that read from a slave commit there."""

    def request_fields(self) -> dict[str, str]:
        """Return header fields of a slave's request for the table: what it has, for a table that is large."""
        return {}

    @abstractmethod
    def polled(self, command: Command) -> bytes:
        """Return the response body to a slave's request for the table."""

    @abstractmethod
    def take_polled(self, polled: Polled) -> None:
        """Apply the response body of the master."""

    @property
    def has_more(self) -> bool:
        """Whether the master has more than its last response had, so that it is to be requested again at once."""
        return False

    def correct(self) -> None:
        """After the log was truncated: lower offsets beyond the end of their queue to the end, and save the table."""


class StreamedTable(Table):
    """A table that a master also sends on the replication connection, in a group with a registry."""

    kind: int
    """Kind of the table's frames on a replication connection."""
    precedes_log = False
    """Whether changes are sent before the log bytes of the same turn; if not, after them."""
    is_waited_for = True
    """Whether responses that wait for replication also wait for slaves to have the table's changes."""
    is_needed = True
    """Whether a slave must have received the whole table (`WHOLE`) before it can become the master."""

    @property
    def has_changes(self) -> bool:
        """Whether the table changed since the last `take_changes`."""
        return False

    def collect_changes(self, *, is_wanted: bool) -> None:
        """Start or stop collecting changes for `take_changes`."""

    @abstractmethod
    def take_changes(self) -> bytes | None:
        """Return the changes since the last call, as JSON; None if there are none."""

    @abstractmethod
    def whole(self) -> bytes:
        """Return the whole table, as JSON."""

    def pieces(self) -> Iterable[bytes]:
        """Return the whole table in pieces, each as JSON, which are taken in this order."""
        return (self.whole(),)

    @abstractmethod
    def take(self, table: dict[str, Any], payload: bytes) -> None:
        """Apply the master's changes or whole table. `payload`: the JSON text that `table` was decoded from."""

    # Journal, for a table whose changes are written to the disk before slaves and clients get them.

    @property
    def is_unnoted(self) -> bool:
        """Whether writing changes has failed, so that the whole table must be written."""
        return False

    def note(self, changes: bytes) -> None:
        """Write changes to the disk."""

    def note_all(self) -> None:
        """Write the whole table to the disk, after changes could not be written."""

    # Handover of mastership.

    handed_as = ""
    """Key of the table in the request that hands it over; "": it is not handed over."""

    def handed(self) -> dict[str, Any]:
        """Return the table for the next master."""
        return {}

    def take_handed(self, raw: dict[str, Any]) -> None:
        """Merge the table of the previous active member into this one, and save it; responses wait for that."""
