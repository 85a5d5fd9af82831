"""Replication tied to the broker's links, store and tables.

`Replication` is what the node talks to; `MasterSide` (masterside) keeps the sessions of slaves, `SlaveSide` (slaveside)
the one to a master.
"""

from typing import TYPE_CHECKING

from tandemq.boundary import LinkKind, Now, Turn
from tandemq.broker.masterside import MasterSide
from tandemq.broker.slaveside import SlaveSide
from tandemq.config import BrokerConfig
from tandemq.storage.epochs import Pairs, load_epochs, save_epochs

if TYPE_CHECKING:
    from tandemq.broker.node import Broker


class Replication:
    """Both sides; a broker is on one of them by its role."""

    def __init__(self, broker: "Broker", now: Now, *, accept_loss: bool) -> None:
        """Sessions begin when links open."""
        self._broker = broker
        self.generations: Pairs = load_epochs(broker.disk)
        self.masters = MasterSide(broker, self, now, accept_loss=accept_loss)
        self.slave = SlaveSide(broker, self, now) if broker.config.role == "SLAVE" else None

    def set_generations(self, pairs: Pairs) -> None:
        """Take over a history once it is saved.

        Raises:
            StoreError: it could not be saved; the history is as it was.
        """
        if pairs != self.generations:
            save_epochs(self._broker.disk, pairs)
            self.generations = list(pairs)

    def owns(self, link: int) -> bool:
        """Whether a link is a replication link."""
        return link in self.masters.sessions or (self.slave is not None and self.slave.link == link)

    def opened(self, link: int, kind: LinkKind, peer: str, now: Now) -> None:
        """A replication link is open."""
        if kind is LinkKind.HA_MASTER:
            self.masters.opened(link, peer, now)
        elif self.slave is not None:
            self.slave.opened(now)

    def closed(self, link: int, reason: str, now: Now) -> None:
        """A replication link is gone."""
        if link in self.masters.sessions:
            self.masters.closed(link, reason)
        elif self.slave is not None:
            self.slave.closed(reason, now)

    def received(self, link: int, data: bytes, turn: Turn, now: Now) -> None:
        """Bytes on a replication link."""
        if link in self.masters.sessions:
            self.masters.received(link, data, turn, now)
        elif self.slave is not None:
            self.slave.received(data, turn, now)

    def tick(self, turn: Turn, now: Now) -> None:
        """Time passed."""
        self.masters.tick(turn, now)
        if self.slave is not None:
            self.slave.tick(turn, now)

    def after_commit(self, turn: Turn, now: Now) -> None:
        """What was written can be copied, and what was copied to us can be reported."""
        self.masters.pump(turn, now)
        if self.slave is not None:
            self.slave.report(turn, now)

    def adopt_config(self, config: BrokerConfig) -> None:
        """The settings changed: the rate at which each slave may copy holds for open links too."""
        for session in self.masters.sessions.values():
            session.limit_rate(config.ha_bytes_per_second)

    def deadline_ms(self) -> int | None:
        """When `tick` is needed."""
        times = [session.deadline_ms() for session in self.masters.sessions.values()]
        times.append(self.masters.deadline_ms())
        if self.slave is not None:
            times.append(self.slave.deadline_ms())
        return min((time for time in times if time is not None), default=None)
