"""Applications: they use the real client, `tandemq.client`, and hold it to what it promises.

    application ─► ClientNode ─► frames
                      witness watches ┘

A producing application is told what became of each message, and compares that with what was on the wire. A consuming
one consumes at once or a little later, gives some back, and looks whether offsets keep to what it has finished.

An application can be killed, be stopped cleanly, and be started again: see `world.host`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from tandemq.boundary import Event, Now, Turn
from tandemq.client.core.calls import Ticket, Timers
from tandemq.client.core.settings import ClientConfig
from tandemq.client.node import ClientNode
from tandemq.sim.checkers.model import Shadow
from tandemq.sim.checkers.wire_monitor import Member, Witness
from tandemq.sim.world.world import World


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every application needs to know. `members`: brokers by address."""

    world: World
    shadow: Shadow
    members: dict[str, Member]
    name_servers: tuple[str, ...]
    route_poll_ms: int

    def master(self, group: str) -> str:
        """The address of a group's master."""
        return next(address for address, member in self.members.items() if member == (group, 0))


class Application:
    """See `boundary.Node`. `begin`, `act` and `lost` are what a subclass does."""

    def __init__(self, around: Surroundings, name: str, ip: str, random: Random) -> None:
        """Its client begins with the first turn."""
        self.around = around
        self.name = name
        self.random = random
        self.witness = Witness(around.world, around.shadow, name, around.members)
        self.timers = Timers()
        self._config = ClientConfig(
            name_servers=around.name_servers,
            client_id=name,
            ip=ip,
            heartbeat_ms=9_000,
            silence_probe_ms=6_000,
            route_poll_ms=around.route_poll_ms,
            request_timeout_ms=1_500,
            connect_timeout_ms=1_500,
        )
        self._node: ClientNode | None = None
        self._is_leaving = False
        self._farewell: Ticket[None] | None = None

    @property
    def client(self) -> ClientNode:
        """The client that runs."""
        assert self._node is not None, "it runs"
        return self._node

    @property
    def is_ending(self) -> bool:
        """Whether it was asked to leave."""
        return self._farewell is not None

    @property
    def has_left(self) -> bool:
        """Whether a clean stop is over."""
        return self._farewell is not None and self._farewell.done

    def leave(self) -> None:
        """Stop cleanly, beginning with the next turn."""
        self._is_leaving = True

    def killed(self) -> None:
        """Its process is gone: the next turn is another's first."""
        self._node = self._farewell = None
        self._is_leaving = False
        self.timers = Timers()
        self.witness.begin_anew()

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        """See `boundary.Node`."""
        if self._node is None:
            self._node = ClientNode(self._config, Random(self.random.getrandbits(60)), now)
            self.begin(self._node, now)
        if self._is_leaving and self._farewell is None:
            self._farewell = self._node.close(now)
        self.witness.heard(received, events)
        self.timers.run(now)
        turn = self._node.turn(received, events, now)
        if self.act(now):
            _add(turn, self._node.turn((), (), now))
        self.witness.said(turn)
        lost, self.witness.lost = self.witness.lost, []
        for address in lost:
            self.lost(address, now)
        return turn

    def deadline_ms(self) -> int | None:
        """See `boundary.Node`."""
        ours, clients = self.timers.next_ms(), self.client.deadline_ms()
        return ours if clients is None or (ours is not None and ours < clients) else clients

    def begin(self, client: ClientNode, now: Now) -> None:
        """Called once for each client."""

    def act(self, _now: Now) -> bool:
        """Called after each turn of the client; whether something was asked of it."""
        return False

    def lost(self, _address: str, _now: Now) -> None:
        """A broker's link broke, or was given up."""

    def after(self, delay_ms: int, now: Now, action: Callable[[Now], None]) -> None:
        """Do something later, unless the process ends before."""
        self.timers.at(now.mono_ms + delay_ms, action)


def _add(turn: Turn, more: Turn) -> None:
    for link, buffers in more.sends.items():
        turn.send(link, *buffers)
    turn.closes += more.closes
    turn.connects += more.connects
