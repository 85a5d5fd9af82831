"""Replication: sessions of slaves on a master, the session to a master on a slave.

`Replication` is what the node calls; `MasterSide` (ha.master) keeps the sessions of slaves, `SlaveSide` (ha.slave) the
one to a master.
"""

from collections.abc import Collection

from tandemq.boundary import HandshakeFailed, LinkKind, Now, Opened, Turn
from tandemq.broker.ha.lost_tail import LostTail
from tandemq.broker.ha.master import MasterSide
from tandemq.broker.ha.metadata_stream import MetadataStream
from tandemq.broker.ha.metadata_sync import MetadataSync
from tandemq.broker.ha.slave import SlaveSide
from tandemq.broker.ha.upstream import UpstreamByRecord, UpstreamBySettings
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.replicas import Replica, Replicas
from tandemq.codec.ha import Heartbeat
from tandemq.config.settings import BrokerConfig
from tandemq.storage.log.epochs import EpochTable
from tandemq.storage.recovery import clear_loss_flag

OFFSETS_SAVED_MS = 60_000


class Replication(Feature, Replicas):
    """Both sides. The role of the broker decides which one is in use.

    In a group with a registry a new epoch of the group begins a generation of the same number.
    """

    def __init__(self, kernel: Kernel, *, accept_loss: bool) -> None:
        """Begin without sessions, until the role is known.

        `accept_loss`: whether the operator accepts what a crash of the machine took from the log.
        """
        self._kernel = kernel
        self._store = kernel.store
        self._disk = kernel.disk
        self._lost_tail = LostTail(kernel, self._end_sessions)
        self.masters = MasterSide(kernel, self._lost_tail)
        self.stream = MetadataStream(kernel, self.masters)
        self._by_record = UpstreamByRecord(kernel, self.stream)
        self._generations = kernel.generations
        self._accept_loss = accept_loss
        self.slave: SlaveSide | None = None
        self.by_settings: UpstreamBySettings | None = None
        """How the slave's side finds its master, without a registry."""
        if accept_loss:
            self.masters.give_up_absent()
        kernel.every(OFFSETS_SAVED_MS, lambda _: self.masters.save_offsets())

    def begin_by_settings(self, now: Now, *, is_slave: bool, may_give_up: bool) -> None:
        """Begin as the settings say. `may_give_up`: see `lead`.

        Raises:
            StoreError: something could not be saved.
        """
        if is_slave:
            metadata = MetadataSync(self._kernel, lambda: self.slave)
            self.by_settings = UpstreamBySettings(self._kernel, metadata, now)
            self.slave = SlaveSide(self._kernel, self.by_settings)
        else:
            self._await_tail(now, may_give_up=may_give_up)
        clear_loss_flag(self._disk)

    def _end_sessions(self, reason: str) -> None:
        self.masters.end_sessions(reason)

    def replicas(self) -> list[Replica]:
        """See `Replicas`."""
        if not self._kernel.turn.serving.is_master:
            return [Replica("master", self.slave.asked_at() if self.slave is not None else "")]
        return [Replica(f"slave {number}", address) for number, address in sorted(self.masters.addresses().items())]

    def needs_log_from(self) -> dict[str, int]:
        """See `Feature`: what slaves lack."""
        return self.masters.needed()

    def master_found(self, address: str, ha_address: str, now: Now) -> None:
        """Take the master's addresses from a name server; "" if it knows none."""
        if self.by_settings is not None:
            self.by_settings.found(address, ha_address, now)

    @property
    def seeks_master(self) -> bool:
        """Whether this is a slave by its settings that does not know its master, or has no connection to it."""
        if self.by_settings is None or self.slave is None:
            return False
        return not self.by_settings.address or self.slave.session is None

    def connect_again(self, now: Now) -> None:
        """Let a slave by its settings connect at once: its master is there again."""
        if self.by_settings is not None:
            self.by_settings.connect_again(now)

    # In a group with a registry.

    def lead(self, now: Now, *, epoch: int, is_whole: bool, holders: Collection[int], may_give_up: bool) -> None:
        """Become the master, and begin the epoch at our log's end if it is a new one.

        Args:
            now: the time.
            epoch: of the group's record.
            is_whole: whether the log has all that the group's can have; else slaves may return what was lost here.
            holders: members in sync, which may do that.
            may_give_up: whether the loss is accepted when no slave has answered for a time.

        Raises:
            StoreError: that could not be saved.
        """
        if not is_whole:
            self._await_tail(now, holders, may_give_up=may_give_up)
            clear_loss_flag(self._disk)
            return
        end = self._store.log.written_end
        pairs = [pair for pair in self.generations if pair[1] <= end]
        if not pairs or pairs[-1][0] < epoch:
            self._generations.set([*pairs, (epoch, end)])
        self._lost_tail.settle()
        clear_loss_flag(self._disk)

    def _await_tail(self, now: Now, holders: Collection[int] = (), *, may_give_up: bool) -> None:
        self._lost_tail.begin(now, accept_loss=self._accept_loss, may_give_up=may_give_up, holders=holders)

    def follow(self, master: int, epoch: int, address: str, ha_address: str, turn: Turn, now: Now) -> None:
        """Copy the log of this member as long as the epoch lasts. Addresses: "ip:port", "" while unknown."""
        self._lost_tail.suspend()
        if self.slave is None:
            self.slave = SlaveSide(self._kernel, self._by_record)
        self.slave.follow(master, epoch, turn)
        self._by_record.found(address, ha_address, now)

    def keep_awaiting(self, members: Collection[int]) -> None:
        """Await the lost end of the log only from these slaves."""
        self._lost_tail.keep_awaiting(members)

    @property
    def awaits_tail(self) -> bool:
        """Whether slaves may still return the lost end of the log."""
        return bool(self._lost_tail.awaited)

    @property
    def is_tail_awaited(self) -> bool:
        """Whether the log may lack its end until a slave returns it."""
        return self._lost_tail.is_awaiting

    def close_connections(self, turn: Turn, reason: str) -> None:
        """Close the connections of an epoch that is over."""
        self.masters.close_connections(reason)
        if self.slave is not None:
            self.slave.close_connections(turn, reason)
            self._by_record.forget()

    def copy_again(self, turn: Turn, now: Now, reason: str) -> None:
        """Connect to the master again, which then sends all metadata."""
        if self.slave is not None:
            self.slave.connect_again(turn, now, reason)
            self._by_record.connect_again(now)

    def send_heartbeat(self, heartbeat: Heartbeat, turn: Turn, now: Now) -> None:
        """Send a heartbeat on every connection, behind what is in flight there."""
        for session in self.masters.sessions.values():
            session.send_heartbeat(heartbeat, now.mono_ms)
        self.masters.pump(turn, now)
        if self.slave is not None and self.slave.session is not None:
            self.slave.session.send_heartbeat(heartbeat, now.mono_ms)

    def transferred(self) -> dict[int, int]:
        """Return the bytes sent to slaves, or received from the master, by replication connection."""
        found = {link: session.transferred_bytes for link, session in self.masters.sessions.items()}
        if self.slave is not None and self.slave.session is not None:
            found[self.slave.link] = self.slave.session.received_bytes
        return found

    @property
    def generations(self) -> EpochTable:
        """The history of the log: (generation or epoch, first log offset)."""
        return self._generations.pairs

    @property
    def log_epoch(self) -> int:
        """The last epoch of which our log has anything, or the one that begins at its end; 0: none."""
        return self._generations.at(self._store.log.written_end)

    # Connections.

    def owns(self, link: int) -> bool:
        """Whether a connection is one of replication."""
        return link in self.masters.sessions or (self.slave is not None and self.slave.owns(link))

    def opened(self, event: Opened, now: Now) -> None:
        """A replication connection is open."""
        if event.kind is LinkKind.HA_MASTER:
            self.masters.opened(event, now)
        elif self.slave is not None:
            self.slave.opened(event, now)

    def handshake_failed(self, event: HandshakeFailed, now: Now) -> None:
        """TLS failed on a replication connection."""
        if event.kind is LinkKind.HA_MASTER:
            self.masters.refusals.note(event.peer, event.reason, now)
        elif self.slave is not None:
            self.slave.is_refused = True

    def closed(self, link: int, reason: str, now: Now) -> None:
        """A replication connection is closed."""
        if link in self.masters.sessions:
            self.masters.closed(link, reason, now)
        elif self.slave is not None:
            self.slave.closed(link, reason, now)

    def received(self, link: int, data: bytes, turn: Turn, now: Now) -> None:
        """Take bytes of a replication connection."""
        if link in self.masters.sessions:
            self.masters.received(link, data, turn, now)
        elif self.slave is not None:
            self.slave.received(link, data, turn, now)

    def save_tables(self) -> None:
        """See `Feature`."""
        self.masters.save_offsets()

    def run_due(self, turn: Turn, now: Now) -> None:
        """Connect, send heartbeats, close silent connections."""
        self.masters.tick(turn, now)
        if self.slave is not None:
            self.slave.tick(turn, now)

    def after_commit(self, turn: Turn, now: Now) -> None:
        """Send new records to slaves; acknowledge copied records to the master."""
        self.masters.pump(turn, now)
        if self.slave is not None:
            self.slave.report(turn, now)

    def adopt_config(self, config: BrokerConfig) -> None:
        """Apply changed settings: the rate limit per slave, on open connections too."""
        for session in self.masters.sessions.values():
            session.limit_rate(config.ha_bytes_per_second)

    def deadline_ms(self) -> int | None:
        """Return when `tick` is needed."""
        ours = self.masters.deadline_ms()
        copying = self.slave.deadline_ms() if self.slave is not None else None
        return copying if ours is None or (copying is not None and copying < ours) else ours
