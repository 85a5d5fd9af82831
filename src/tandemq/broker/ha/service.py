"""Replication tied to the broker's links, store and tables.

`Replication` is what the node talks to; `MasterSide` (masterside) keeps the sessions of slaves, `SlaveSide` (slaveside)
the one to a master.
"""

import logging
from typing import TYPE_CHECKING

from tandemq.boundary import HandshakeFailed, LinkKind, Now, Opened, Turn
from tandemq.broker.ha.master import MasterSide
from tandemq.broker.ha.slave import SlaveSide
from tandemq.broker.ha.truncation import correct_progress
from tandemq.codec.ha import Heartbeat
from tandemq.config.settings import BrokerConfig
from tandemq.errors import StoreError
from tandemq.refusals import Refusals
from tandemq.storage.log.epochs import EpochTable, load_epochs, restore_epoch_copies, save_epochs
from tandemq.storage.recovery import clear_loss_flag

if TYPE_CHECKING:
    from tandemq.broker.node import Broker

log = logging.getLogger(__name__)
OFFSETS_SAVED_MS = 60_000


class Replication:
    """Both sides; a broker is on one of them by its role: by its settings, or as the registry has it.

    In a group with a registry the generations are the epochs of an `elect` group.
    """

    def __init__(self, broker: "Broker", now: Now, *, accept_loss: bool) -> None:
        """Sessions begin when links open; in a group with a registry once our role is known."""
        self._broker = broker
        self._accept_loss = accept_loss
        self.generations: EpochTable = load_epochs(broker.disk)
        try:
            restore_epoch_copies(broker.disk, self.generations)
        except StoreError as error:
            log.warning("replication: there is one copy only of the table of generations: %s", error)
        self.masters = MasterSide(broker, self)
        if accept_loss:
            self.masters.give_up_absent()
        broker.schedule.every(
            OFFSETS_SAVED_MS, lambda _: self.masters.save_offsets(), first_ms=now.mono_ms + OFFSETS_SAVED_MS
        )
        self.slave: SlaveSide | None = None
        self.unproven = Refusals()
        """Members whose answers were not proven, by address."""
        if broker.failover is None:
            self.begin_by_settings(now)

    def begin_by_settings(self, now: Now) -> None:
        """Our settings say whether we are the master."""
        if self._broker.config.role == "SLAVE":
            self.slave = SlaveSide(self._broker, self, now)
        else:
            self.masters.begin(now, accept_loss=self._accept_loss)
        clear_loss_flag(self._broker.disk)

    # In a group with a registry.

    def lead(self, now: Now, *, epoch: int | None) -> None:
        """Our log is the one that counts: serve slaves. `epoch`: begin it at our log's end, if it is a new one.

        Raises:
            StoreError: that could not be saved.
        """
        if epoch is None:
            self.masters.begin(now, accept_loss=self._accept_loss)
            return
        end = self._broker.store.log.written_end
        pairs = [pair for pair in self.generations if pair[1] <= end]
        if not pairs or pairs[-1][0] < epoch:
            self.set_generations([*pairs, (epoch, end)])
        correct_progress(self._broker.store, self._broker.offsets, self._broker.delay)

    def follow(self, master: int, epoch: int, address: str, ha_address: str, turn: Turn, now: Now) -> None:
        """Copy the log of this member, "ip:port" or "" if that is not known yet, for as long as the epoch lasts."""
        if self.slave is None:
            self.slave = SlaveSide(self._broker, self, now)
        self.slave.follow(master, epoch, address, ha_address, turn, now)

    def let_go(self, turn: Turn, reason: str) -> None:
        """Another epoch: all links of the one before are closed."""
        self.masters.let_go(reason)
        if self.slave is not None:
            self.slave.let_go(turn, reason)

    def beat(self, heartbeat: Heartbeat, turn: Turn, now: Now) -> None:
        """Send a heartbeat on every link, behind what is on its way there."""
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
    def log_epoch(self) -> int:
        """The last epoch of which our log has anything, or the one that begins at its end; 0: none."""
        end = self._broker.store.log.written_end
        return next((epoch for epoch, start in reversed(self.generations) if start <= end), 0)

    # Generations and links.

    def set_generations(self, pairs: EpochTable) -> None:
        """Take over a history once it is saved.

        Raises:
            StoreError: it could not be saved; the history is as it was.
        """
        if pairs != self.generations:
            save_epochs(self._broker.disk, pairs)
            self.generations = list(pairs)

    def owns(self, link: int) -> bool:
        """Whether a link is a replication link."""
        return link in self.masters.sessions or (self.slave is not None and self.slave.owns(link))

    def opened(self, event: Opened, now: Now) -> None:
        """A replication link is open."""
        if event.kind is LinkKind.HA_MASTER:
            self.masters.opened(event, now)
        elif self.slave is not None:
            self.slave.opened(event, now)

    def turned_away(self, event: HandshakeFailed, now: Now) -> None:
        """TLS failed on a replication link."""
        if event.kind is LinkKind.HA_MASTER:
            self.masters.refused(event.peer, event.reason, now)
        elif self.slave is not None:
            self.slave.is_refused = True

    def closed(self, link: int, reason: str, now: Now) -> None:
        """A replication link is gone."""
        if link in self.masters.sessions:
            self.masters.closed(link, reason, now)
        elif self.slave is not None:
            self.slave.closed(link, reason, now)

    def received(self, link: int, data: bytes, turn: Turn, now: Now) -> None:
        """Bytes on a replication link."""
        if link in self.masters.sessions:
            self.masters.received(link, data, turn, now)
        elif self.slave is not None:
            self.slave.received(link, data, turn, now)

    def tick(self, turn: Turn, now: Now) -> None:
        """Time passed."""
        self.masters.tick(turn, now)
        if self.slave is not None:
            self.slave.tick(turn, now)

    def after_commit(self, turn: Turn, now: Now) -> None:
        """What was written can be copied, and what was copied to us can be reported."""
        if self._broker.failover is not None:
            self._broker.failover.before_copy(now)
        self.masters.pump(turn, now)
        if self.slave is not None:
            self.slave.report(turn, now)

    def adopt_config(self, config: BrokerConfig) -> None:
        """The settings changed: the rate at which each slave may copy holds for open links too."""
        for session in self.masters.sessions.values():
            session.limit_rate(config.ha_bytes_per_second)

    def deadline_ms(self) -> int | None:
        """When `tick` is needed."""
        ours = self.masters.deadline_ms()
        copying = self.slave.deadline_ms() if self.slave is not None else None
        return copying if ours is None or (copying is not None and copying < ours) else ours
