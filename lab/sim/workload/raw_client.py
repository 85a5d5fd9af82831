"""Raw client: requests by address, timers. The base of the raw workloads.

It makes requests and judges responses without the producers and consumers of the client library, so that it is known
what was sent, when, and on which connection, and a mistake of theirs cannot hide one of a broker. A response that does
not arrive in time, or cannot because the connection is closed, is None: the outcome is unknown.
"""

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tandemq.boundary import Closed, Event, Now, Turn
from tandemq.client.core.calls import Timers
from tandemq.client.core.connections import Answer, RemotingClient
from tandemq.client.core.settings import ClientConfig
from tandemq.model.access import Credentials
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command

Then = Callable[[Command | None], None]
NOWHERE = ("nowhere:1",)
"""Name server of clients that ask none."""


class Route:
    """Route of one topic: member addresses by group and id, write queues by group, leaders of logical queues."""

    __slots__ = ("leaders", "members", "queues")

    def __init__(self, raw: dict[str, Any]) -> None:
        """`raw`: a name server's response."""
        self.members: dict[str, dict[int, str]] = {
            str(group["brokerName"]): {int(number): str(where) for number, where in group["brokerAddrs"].items()}
            for group in raw["brokerDatas"]
        }
        self.queues: dict[str, int] = {
            str(data["brokerName"]): int(data["writeQueueNums"]) for data in raw["queueDatas"] if data["perm"] & 2
        }
        self.leaders: dict[int, str] = {}
        mappings = raw.get("topicQueueMappingByBroker") or {}
        for group, info in sorted(mappings.items(), key=lambda item: int(item[1]["epoch"])):
            self.leaders |= dict.fromkeys((int(number) for number in info["currIdMap"]), str(group))


class RawClient:
    """See `boundary.Node`. `act` is what a subclass does each time it is driven."""

    def __init__(self, name: str, random: Random, name_servers: tuple[str, ...], *, binary: bool = False) -> None:
        """A client without connections. `binary`: whether headers use the binary form."""
        self.name = name
        self.random = random
        self.name_servers = name_servers
        self.routes: dict[str, Route] = {}
        self.now = Now(0, 0)
        self._binary = binary
        self._timers = Timers()
        self.sign_as(None)
        self._begun = False

    def sign_as(self, credentials: Credentials | None) -> None:
        """Sign all requests as a user, or none. Called before the first turn."""
        config = ClientConfig(name_servers=self.name_servers or NOWHERE, client_id=self.name, credentials=credentials)
        self._remoting = RemotingClient(config, self._timers)
        self._remoting.on_request = self._pushed

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        """See `boundary.Node`. Bytes of a connection are handled before its end."""
        self.now = now
        for event in events:
            if not isinstance(event, Closed):
                self._remoting.on_event(event, now)
        for link, data in received:
            self._remoting.on_data(link, data, now)
        assert not self._remoting.malformed_count, f"{self.name} was answered with no frame"
        for event in events:
            if isinstance(event, Closed):
                self._remoting.on_event(event, now)
        if not self._begun:
            self._begun = True
            self.begin()
        self._timers.run(now)
        self._remoting.expire(now)
        self.act()
        return self._remoting.take_turn()

    def deadline_ms(self) -> int | None:
        """See `boundary.Node`."""
        return min(
            (time_ms for time_ms in (self._timers.next_ms(), self._remoting.next_ms()) if time_ms is not None),
            default=None,
        )

    def begin(self) -> None:
        """Called once, in the first turn."""

    def act(self) -> None:
        """Called at the end of each turn."""

    def pushed(self, address: str, command: Command) -> None:
        """Called with a request from a broker."""

    def _pushed(self, address: str, command: Command, _now: Now) -> None:
        self.pushed(address, command)

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Call an action later."""
        self._timers.at(self.now.mono_ms + max(1, delay_ms), lambda _: action())

    # Requests.

    def ask(self, address: str, command: Command, timeout_ms: int, then: Then) -> int:
        """Send a request; return the id of its connection."""

        def on_answer(answer: Answer, _now: Now) -> None:
            then(answer if isinstance(answer, Command) else None)

        command.binary = self._binary
        self._remoting.request(address, command, self.now, on_answer, timeout_ms=timeout_ms)
        return self._remoting.link_to(address)

    def send_oneway(self, address: str, command: Command) -> int:
        """Send a one-way request; return the id of its connection."""
        self._remoting.send_oneway(address, command, self.now)
        return self._remoting.link_to(address)

    # Routes.

    def fetch_route(self, topic: str) -> None:
        """Fetch a topic's route from a name server; the known one stays without a response."""
        server = self.random.choice(self.name_servers)
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        self.ask(
            server,
            Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields=fields),
            2_000,
            lambda answer: self._routed(topic, answer),
        )

    def _routed(self, topic: str, answer: Command | None) -> None:
        if answer is not None and answer.code == 0:
            new = Route(json.loads(answer.body))
            old = self.routes.get(topic)
            if old is not None:
                for name, members in old.members.items():
                    new.members[name] = members | new.members.get(name, {})
            self.routes[topic] = new
