"""How a slave finds its master, and how it gets the tables that stand beside the log.

    settings, name servers    UpstreamBySettings    asks for the tables (`metadata_sync`); the master may be Java's
    record of the group       UpstreamByRecord      tables come with the log (`ha.metadata_stream`)

Source: docs/internals/ha.md; requirements M01-M05.
"""

import logging
from typing import Protocol

from tandemq.boundary import Now, Turn
from tandemq.broker.ha.metadata_sync import MetadataSync
from tandemq.broker.kernel.kernel import Kernel
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command

log = logging.getLogger(__name__)
REQUEST_TIMEOUT_MS = 3_000
RECONNECT_MS = 200
"""In a group with a registry, whose members connect as soon as they agree on the epoch."""
COPYING_RECONNECT_MS = 100
"""After a connection that was copying."""
FIRST_SYNC_MS = 3_000


class Upstream(Protocol):
    """The master of a slave."""

    @property
    def address(self) -> str:
        """Where it takes requests; "" while that is unknown."""

    @property
    def ha_address(self) -> str:
        """Where it takes replication connections; "" while that is unknown."""

    @property
    def is_classic(self) -> bool:
        """Whether it speaks Java's replication protocol."""

    @property
    def has_tables(self) -> bool:
        """Whether every table of the master was received once."""

    @property
    def has_followed(self) -> bool:
        """Whether all tables that came with the log are applied."""

    def connect_at_ms(self) -> int | None:
        """Return from when on it may be connected, monotonic ms; None: it may not, as far as is known."""

    def is_prepared(self, turn: Turn, now: Now) -> bool:
        """Return whether the master's protocol is known, so that it may be connected; ask for it if not."""

    def closed(self, now: Now, *, was_copying: bool) -> None:
        """Note that the connection closed."""

    def take_table(self, kind: int, payload: bytes) -> None:
        """Apply a table that came with the log."""


class UpstreamBySettings:
    """The master that the settings or name servers name; an `Upstream`."""

    def __init__(self, kernel: Kernel, metadata: MetadataSync, now: Now) -> None:
        """Ask for the tables periodically, from `now` on."""
        config = kernel.current.config
        self.metadata = metadata
        self._peers = kernel.peers
        self._own = kernel.own
        self._current = kernel.current
        self._is_authenticated = kernel.keyring is not None
        """Whether the master has to prove itself."""
        self.address = ""
        self.ha_address = config.ha_master_address
        self._protocol = config.ha_protocol
        self._connect_at_ms = now.mono_ms
        self._is_asking = False
        """Whether the master was asked whether it is a TandemQ broker."""
        self._classic_at = ""
        """The master that was logged as speaking the classic protocol: each new connection asks again."""
        period_ms = config.metadata_sync_ms
        kernel.schedule.every(period_ms, self.sync_metadata, first_ms=now.mono_ms + min(FIRST_SYNC_MS, period_ms))

    @property
    def is_classic(self) -> bool:
        """See `Upstream`."""
        return self._protocol == "classic"

    @property
    def has_tables(self) -> bool:
        """See `Upstream`."""
        return self.metadata.is_complete()

    @property
    def has_followed(self) -> bool:
        """See `Upstream`: none come with the log."""
        return True

    def sync_metadata(self, now: Now) -> None:
        """Ask the master for its tables."""
        if self.address not in ("", self._own.address):
            self.metadata.sync(self.address, now)

    def found(self, address: str, ha_address: str, now: Now) -> None:
        """Take the master's addresses from a name server; "" if it knows none."""
        config = self._current.config
        is_new = bool(address) and address != self.address
        self.address = address
        if ha_address and not config.ha_master_address:
            if ha_address != self.ha_address:
                self._connect_at_ms = now.mono_ms
            self.ha_address = ha_address
        if is_new:
            self._protocol = config.ha_protocol
            self.sync_metadata(now)

    def connect_at_ms(self) -> int | None:
        """See `Upstream`."""
        return self._connect_at_ms if self.ha_address and not self._is_asking else None

    def is_prepared(self, turn: Turn, now: Now) -> bool:
        """See `Upstream`."""
        if self._protocol != "auto":
            return True
        if self._is_authenticated:
            # The answer to the question whether the master is Java's would not be authenticated.
            self._protocol = "tandemq"
        elif self.address:
            self._is_asking = True
            command = Command(RequestCode.TANDEM_PEER_INFO)
            self._peers.call(self.address, command, REQUEST_TIMEOUT_MS, self._answered, turn, now)
            return False
        else:
            log.warning(
                "replication: the master's broker address is unknown, so it is taken for a TandemQ broker; "
                "set haProtocol = classic if it is Java's"
            )
            self._protocol = "tandemq"
        return True

    def _answered(self, answer: Command | None, now: Now) -> None:
        self._is_asking = False
        if answer is None:
            self._connect_at_ms = now.mono_ms + self._current.config.ha_reconnect_ms
            return
        self._protocol = "tandemq" if answer.code == ResponseCode.SUCCESS else "classic"
        if self.is_classic and self._classic_at != self.address:
            log.warning(
                "replication: master=%s says that it is no TandemQ broker: goes on with the classic protocol, "
                "which proves nothing; if it is not Java's, set haProtocol = tandemq",
                self.address,
            )
        else:
            log.info("replication: master=%s speaks %s", self.address, self._protocol)
        self._classic_at = self.address if self.is_classic else ""
        self._connect_at_ms = now.mono_ms

    def connect_again(self, now: Now) -> None:
        """Allow a new connection at once."""
        self._connect_at_ms = now.mono_ms

    def closed(self, now: Now, *, was_copying: bool) -> None:
        """See `Upstream`."""
        config = self._current.config
        wait_ms = min(config.ha_reconnect_ms, COPYING_RECONNECT_MS) if was_copying else config.ha_reconnect_ms
        self._connect_at_ms = now.mono_ms + wait_ms
        if config.ha_protocol == "auto":
            self._protocol = "auto"

    def take_table(self, kind: int, payload: bytes) -> None:
        """See `Upstream`: none come with the log."""


class StreamedTables(Protocol):
    """Tables that come with the log."""

    @property
    def is_whole(self) -> bool:
        """Whether every table was received whole."""

    @property
    def has_followed(self) -> bool:
        """Whether all that was received is applied."""

    def take(self, kind: int, payload: bytes) -> None:
        """Apply a table or a change of one."""


class UpstreamByRecord:
    """The master that the record of the group names; an `Upstream`."""

    is_classic = False

    def __init__(self, kernel: Kernel, tables: StreamedTables) -> None:
        """Begin without a master."""
        self._tables = tables
        self._current = kernel.current
        self.address = self.ha_address = ""
        self._connect_at_ms = 0

    @property
    def has_tables(self) -> bool:
        """See `Upstream`."""
        return self._tables.is_whole

    @property
    def has_followed(self) -> bool:
        """See `Upstream`."""
        return self._tables.has_followed

    def found(self, address: str, ha_address: str, now: Now) -> None:
        """Take the master's addresses; "" if they are not known yet."""
        self.address, self.ha_address = address, ha_address
        self._connect_at_ms = now.mono_ms

    def connect_at_ms(self) -> int | None:
        """See `Upstream`."""
        return self._connect_at_ms if self.ha_address else None

    def is_prepared(self, _turn: Turn, _now: Now) -> bool:
        """See `Upstream`."""
        return True

    def connect_again(self, now: Now) -> None:
        """Allow a new connection at once."""
        self._connect_at_ms = now.mono_ms

    def forget(self) -> None:
        """Stop naming a master."""
        self.address = self.ha_address = ""

    def closed(self, now: Now, *, was_copying: bool) -> None:
        """See `Upstream`."""
        wait_ms = min(self._current.config.ha_reconnect_ms, RECONNECT_MS)
        self._connect_at_ms = now.mono_ms + (min(wait_ms, COPYING_RECONNECT_MS) if was_copying else wait_ms)

    def take_table(self, kind: int, payload: bytes) -> None:
        """See `Upstream`."""
        self._tables.take(kind, payload)
