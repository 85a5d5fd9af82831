"""The broker's session at its registry: operations out, events in, once per turn.

    zookeeper://…, etcd://…   operations leave in `Turn.asks`, events come with the turn: the shell has the session
    namesrv://…               `EmbeddedRegistry` speaks remoting on a connection of the broker's own

Give it all events, and the bytes of connections it `owns`; then call `tick`, then `take_events`.
Source: docs/internals/failover.md, "The registry".
"""

from collections.abc import Callable, Iterable

from tandemq.boundary import Closed, Event, Now, Opened, Turn
from tandemq.codec.proofs import Keyring
from tandemq.coordination.registry.embedded import EmbeddedRegistry
from tandemq.coordination.registry.interface import (
    Changed,
    Confirmed,
    RegistryEvent,
    RegistryRequest,
    RegistryResponse,
    SessionLost,
    SessionSuspended,
    SessionUp,
)
from tandemq.registry import NAME_SERVER, RegistryAddress

_EVENTS = (RegistryResponse, Changed, Confirmed, SessionLost, SessionSuspended, SessionUp)


class BrokerRegistry:
    """One session at the registry."""

    def __init__(
        self,
        address: RegistryAddress,
        client: str,
        timeout_ms: int,
        next_link: Callable[[], int],
        keyring: Keyring | None = None,
    ) -> None:
        """Prepare the session. It begins with the first `tick`, or is begun by the shell.

        Args:
            address: of the registry.
            client: a unique name of this process' life.
            timeout_ms: requested timeout of the session.
            next_link: returns the id for a new outgoing connection.
            keyring: authenticates the session at a name server; not used elsewhere.
        """
        self.address = address
        self.is_up = False
        self._embedded = (
            EmbeddedRegistry(address.hosts, client, timeout_ms, next_link, keyring)
            if address.kind == NAME_SERVER
            else None
        )
        self._events: list[RegistryEvent] = []

    def ask(self, asks: Iterable[RegistryRequest], turn: Turn, now: Now) -> None:
        """Begin operations; their results come as events."""
        if self._embedded is None:
            turn.asks.extend(asks)
            return
        for ask in asks:
            self._embedded.ask(ask, turn, now)

    def on_event(self, event: Event, turn: Turn, now: Now) -> bool:
        """Take an event; False if it is not one of the registry."""
        if isinstance(event, _EVENTS):
            self._events.append(event)
            return True
        machine = self._embedded
        if machine is None or not isinstance(event, Opened | Closed) or not machine.owns(event.link):
            return False
        if isinstance(event, Opened):
            machine.opened(event.link, turn, now)
        else:
            machine.closed(event.link, event.reason, now)
        return True

    def owns(self, link: int) -> bool:
        """Whether a connection belongs to the session."""
        return self._embedded is not None and self._embedded.owns(link)

    def received(self, link: int, data: bytes, turn: Turn, now: Now) -> None:
        """Take bytes of a connection it owns."""
        assert self._embedded is not None
        self._embedded.received(link, data, turn, now)

    def tick(self, turn: Turn, now: Now) -> None:
        """Send keep-alives and reconnect, as due."""
        if self._embedded is not None:
            self._embedded.tick(turn, now)

    def deadline_ms(self) -> int | None:
        """Return when `tick` is needed, monotonic ms; None: never."""
        return self._embedded.deadline_ms() if self._embedded is not None else None

    @property
    def has_events(self) -> bool:
        """Whether there are events for `take_events`."""
        return bool(self._events) or (self._embedded is not None and self._embedded.has_events)

    def take_events(self) -> list[RegistryEvent]:
        """Return the events since the last call, in order."""
        if self._embedded is not None:
            self._events += self._embedded.take_events()
        events, self._events = self._events, []
        for event in events:
            if isinstance(event, SessionUp | SessionSuspended | SessionLost):
                self.is_up = isinstance(event, SessionUp)
        return events

    def close(self, turn: Turn, now: Now) -> None:
        """End the session, so that its ephemeral nodes are removed at once. The shell ends a session of its own."""
        if self._embedded is not None:
            self._embedded.close(turn, now)
