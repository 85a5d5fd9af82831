"""Applications on the real client, `tandemq.client`, checked against its guarantees.

    application ─► ClientNode ─► frames
                      ▲ WireMonitor

A producing application compares the result of each message with the frames on the wire. A consuming one finishes
messages at once or a little later, sends some back, and checks that commits do not pass unfinished messages.

An application can be killed, stopped cleanly, and started again (`host`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from lab.sim.checkers.model import BrokerRef, ExpectedState
from lab.sim.checkers.wire_monitor import WireMonitor
from lab.sim.world.world import World
from tandemq.boundary import Event, Now, Turn
from tandemq.client.core.calls import Ticket, Timers
from tandemq.client.core.settings import ClientConfig
from tandemq.client.node import ClientNode
from tandemq.model.access import Credentials


@dataclass(frozen=True, slots=True)
class ApplicationContext:
    """What the applications of a simulation share. `members`: brokers by address."""

    world: World
    expected: ExpectedState
    members: dict[str, BrokerRef]
    name_servers: tuple[str, ...]
    route_poll_ms: int

    def master(self, group: str) -> str:
        """Return the address of a group's master."""
        return next(address for address, member in self.members.items() if member == (group, 0))


class Application:
    """Base class of applications, a `boundary.Node`. A subclass overrides `begin`, `act` and `lost`."""

    def __init__(self, context: ApplicationContext, name: str, ip: str, random: Random) -> None:
        """An application whose client starts with the first turn."""
        self.context = context
        self.name = name
        self.random = random
        self.monitor = WireMonitor(context.world, context.expected, name, context.members)
        self.timers = Timers()
        self._config = ClientConfig(
            name_servers=context.name_servers,
            client_id=name,
            ip=ip,
            heartbeat_ms=9_000,
            silence_probe_ms=6_000,
            route_poll_ms=context.route_poll_ms,
            request_timeout_ms=1_500,
            connect_timeout_ms=1_500,
        )
        self._node: ClientNode | None = None
        self._is_leaving = False
        self._closing: Ticket[None] | None = None

    def sign_as(self, credentials: Credentials | None) -> None:
        """Sign all requests as a user, or none. Called before the first turn."""
        self._config = replace(self._config, credentials=credentials)

    @property
    def client(self) -> ClientNode:
        """Return the running client."""
        assert self._node is not None, "no client before the first turn"
        return self._node

    @property
    def is_ending(self) -> bool:
        """Return whether a clean stop was requested."""
        return self._closing is not None

    @property
    def has_left(self) -> bool:
        """Return whether a clean stop is complete."""
        return self._closing is not None and self._closing.done

    def leave(self) -> None:
        """Stop cleanly, from the next turn on."""
        self._is_leaving = True

    def killed(self) -> None:
        """Drop the client, as if its process were killed; the next turn starts another one."""
        self._node = self._closing = None
        self._is_leaving = False
        self.timers = Timers()
        self.monitor.restarted()

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        """See `boundary.Node`."""
        if self._node is None:
            self._node = ClientNode(self._config, Random(self.random.getrandbits(60)), now)
            self.begin(self._node, now)
        if self._is_leaving and self._closing is None:
            self._closing = self._node.close(now)
        self.monitor.received(received, events)
        self.timers.run(now)
        turn = self._node.turn(received, events, now)
        if self.act(now):
            _add(turn, self._node.turn((), (), now))
        self.monitor.sent(turn)
        lost, self.monitor.lost = self.monitor.lost, []
        for address in lost:
            self.lost(address, now)
        return turn

    def deadline_ms(self) -> int | None:
        """See `boundary.Node`."""
        timer_ms, client_ms = self.timers.next_ms(), self.client.deadline_ms()
        return timer_ms if client_ms is None or (timer_ms is not None and timer_ms < client_ms) else client_ms

    def begin(self, client: ClientNode, now: Now) -> None:
        """Called when a client has been created, before its first turn."""

    def act(self, _now: Now) -> bool:
        """Called after each turn of the client; return whether operations were called: the client needs a turn."""
        return False

    def lost(self, _address: str, _now: Now) -> None:
        """Called when the connection to a broker was lost or closed."""

    def after(self, delay_ms: int, now: Now, action: Callable[[Now], None]) -> None:
        """Call an action after a delay, unless the process is killed before."""
        self.timers.at(now.mono_ms + delay_ms, action)


def _add(turn: Turn, more: Turn) -> None:
    """Append the outputs of a second turn to the first."""
    for link, buffers in more.sends.items():
        turn.send(link, *buffers)
    turn.closes += more.closes
    turn.connects += more.connects
