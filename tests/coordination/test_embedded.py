"""The broker's side of the embedded registry, against a name server on a link that the test holds in its hands."""

from random import Random

import pytest

from tandemq.boundary import Closed, Event, JobDone, LinkKind, Now, Opened, Turn
from tandemq.codec.frame import encode_command
from tandemq.config import tiny_name_server
from tandemq.coordination import embedded as module
from tandemq.coordination.embedded import EmbeddedRegistry, State
from tandemq.coordination.registry import (
    PERSISTENT,
    Answer,
    Ask,
    Changed,
    Confirmed,
    Create,
    Done,
    Found,
    Read,
    RegistryEvent,
    SessionLost,
    SessionSuspended,
    SessionUp,
    Unknown,
    Write,
)
from tandemq.model.codes import ResponseCode
from tandemq.model.command import FLAG_RESPONSE, Command
from tandemq.nameserver import NameServer
from tandemq.sim.disk import SimDisk

TIMEOUT_MS = 1_200
STEP_MS = 10


class Pair:
    """A machine and a name server; bytes and events pass at the end of each step, if the link lets them."""

    def __init__(self, *, hosts_registry: bool = True) -> None:
        self.now = Now(50_000, 0)
        self.server = NameServer(tiny_name_server(registry_enable=hosts_registry), SimDisk(Random(1)))
        self._links = 0
        self.machine = EmbeddedRegistry("10.0.0.9:9876", "me", TIMEOUT_MS, self._next_link)
        self.told: list[RegistryEvent] = []
        self.is_silent = False
        """Bytes vanish both ways."""
        self.refuses = False
        """Connections are refused."""
        self.connects = 0
        self._to_server: list[tuple[int, bytes]] = []
        self._to_machine: list[tuple[int, bytes]] = []
        self._server_events: list[Event] = []
        self._machine_events: list[Event] = []

    def _next_link(self) -> int:
        self._links -= 1
        return self._links

    def step(self, *asks: Ask, ms: int = STEP_MS) -> None:
        self.now.mono_ms += ms
        turn = Turn()
        events, self._machine_events = self._machine_events, []
        for event in events:
            if isinstance(event, Opened) and self.machine.owns(event.link):
                self.machine.opened(event.link, turn, self.now)
            elif isinstance(event, Closed) and self.machine.owns(event.link):
                self.machine.closed(event.link, event.reason, self.now)
        data, self._to_machine = self._to_machine, []
        for link, received in data:
            if self.machine.owns(link):
                self.machine.received(link, received, turn, self.now)
        for ask in asks:
            self.machine.ask(ask, turn, self.now)
        self.machine.tick(turn, self.now)
        self.told += self.machine.take_events()
        self._carry(turn)
        self._turn_server()

    def _carry(self, turn: Turn) -> None:
        for link, buffers in turn.sends.items():
            if not self.is_silent:
                self._to_server.append((link, b"".join(buffers)))
        for link, reason in turn.closes:
            self._server_events.append(Closed(link, reason))
        for connect in turn.connects:
            self.connects += 1
            if self.refuses:
                self._machine_events.append(Closed(connect.link, "connection refused"))
            elif not self.is_silent:
                self._machine_events.append(Opened(connect.link, LinkKind.PEER, connect.address))
                self._server_events.append(Opened(connect.link, LinkKind.REMOTING, "10.0.0.1:1"))

    def _turn_server(self) -> None:
        received, self._to_server = self._to_server, []
        events, self._server_events = self._server_events, []
        turn = self.server.turn(received, events, self.now)
        for job in turn.jobs:
            job.run()
            self._server_events.append(JobDone(job))
        for link, buffers in turn.sends.items():
            if not self.is_silent:
                self._to_machine.append((link, b"".join(map(bytes, buffers))))
        for link, reason in turn.closes:
            self._machine_events.append(Closed(link, reason))

    def until(self, *kinds: type[RegistryEvent], ms: int = 20_000) -> None:
        """Step until the last session events are these; then forget what was told."""
        for _ in range(ms // STEP_MS):
            seen = [type(e) for e in self.told if isinstance(e, SessionUp | SessionSuspended | SessionLost)]
            if seen == list(kinds):
                return
            self.step()
        raise AssertionError(f"{kinds} did not come: {self.told[-10:]}")

    def up(self) -> "Pair":
        self.until(SessionUp)
        self.told.clear()
        return self

    def cut(self) -> None:
        link = self._links
        self._machine_events.append(Closed(link, "cut"))
        self._server_events.append(Closed(link, "cut"))

    def answers(self) -> list[Answer]:
        return [event for event in self.told if isinstance(event, Answer)]

    def forge(self, data: bytes) -> None:
        self._to_machine.append((self._links, data))


def test_a_session_is_up_and_confirmed_from_when_the_request_left() -> None:
    pair = Pair()
    pair.until(SessionUp)
    connected_ms = pair.now.mono_ms
    up = pair.told[0]
    assert up == SessionUp(1, TIMEOUT_MS)
    for _ in range(TIMEOUT_MS // STEP_MS):
        pair.step()
    confirmed = [event.sent_ms for event in pair.told if isinstance(event, Confirmed)]
    assert len(confirmed) >= module.PINGS_PER_TIMEOUT
    assert confirmed == sorted(confirmed)
    assert confirmed[0] < connected_ms
    assert confirmed[-1] >= pair.now.mono_ms - TIMEOUT_MS // module.PINGS_PER_TIMEOUT - 4 * STEP_MS


def test_operations_and_watches_pass() -> None:
    pair = Pair().up()
    pair.step(Ask(1, Create("/a", b"x")), Ask(2, Read("/a", watch=True)), Ask(3, Write("/a", b"y", 0)))
    for _ in range(5):
        pair.step()
    assert [(a.token, a.outcome) for a in pair.answers()] == [
        (1, Done(0)), (2, Found(b"x", 0, PERSISTENT)), (3, Done(1)),
    ]  # fmt: skip
    assert Changed("/a") in pair.told


def test_a_silent_registry_suspends_and_what_was_under_way_is_unknown() -> None:
    pair = Pair().up()
    pair.is_silent = True
    silent_ms = pair.now.mono_ms
    pair.step(Ask(7, Create("/a", b"")))
    pair.until(SessionSuspended)
    assert TIMEOUT_MS // 2 - 200 <= pair.now.mono_ms - silent_ms <= TIMEOUT_MS // 2 + 2 * STEP_MS
    assert [(a.token, a.outcome) for a in pair.answers()] == [(7, Unknown())]
    assert pair.told.index(pair.answers()[0]) < pair.told.index(SessionSuspended())
    pair.step(Ask(8, Read("/a")))
    assert pair.answers()[-1].outcome == Unknown()
    assert "nothing was answered" in pair.machine.problem
    pair.is_silent = False
    pair.until(SessionSuspended, SessionUp)
    assert pair.machine.session == 1
    assert pair.machine.problem == ""


def test_a_session_that_ended_meanwhile_is_lost_and_another_begins() -> None:
    pair = Pair().up()
    pair.is_silent = True
    pair.until(SessionSuspended)
    pair.step(ms=TIMEOUT_MS)
    pair.is_silent = False
    pair.until(SessionSuspended, SessionLost, SessionUp)
    assert pair.machine.session == 2


def test_a_session_that_ended_while_the_link_stayed_is_lost_and_another_begins_on_it() -> None:
    pair = Pair().up()
    links = pair._links
    pair._turn_server()
    pair.now.mono_ms += TIMEOUT_MS + 1
    pair._turn_server()  # the machine's process was stopped meanwhile
    pair.until(SessionLost, SessionUp)
    assert pair.machine.session == 2
    assert pair._links == links


def test_a_cut_link_is_replaced_at_once_and_refusals_are_backed_off() -> None:
    pair = Pair().up()
    pair.cut()
    pair.until(SessionSuspended, SessionUp, ms=500)
    pair.told.clear()
    pair.refuses = True
    pair.cut()
    pair.until(SessionSuspended)
    before = pair.connects
    for _ in range(1_000):
        pair.step()
    assert 8 <= pair.connects - before <= 14, "ten seconds, at most one attempt a second but for the first"
    assert pair.machine.problem == "connection refused"


def test_a_name_server_without_the_registry_is_asked_again_and_said_to_have_none() -> None:
    pair = Pair(hosts_registry=False)
    for _ in range(500):
        pair.step()
    assert pair.machine.state is not State.UP
    assert not pair.told
    assert "refused the registry" in pair.machine.problem
    assert 3 <= pair.connects <= 10


def test_a_closed_session_takes_its_nodes_along_and_nothing_follows() -> None:
    pair = Pair().up()
    pair.step(Ask(1, Create("/live", b"", ephemeral=True)))
    turn = Turn()
    pair.machine.close(turn, pair.now)
    pair._carry(turn)
    for _ in range(5):
        pair._turn_server()
    assert pair.server.registry is not None
    assert pair.server.registry.session_count == 0
    assert pair.machine.deadline_ms() is None
    for _ in range(300):
        pair.step()
    assert pair.connects == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff\xff\xff\xff",
        encode_command(Command(0, 2, FLAG_RESPONSE, fields={"outcome": "nonsense"})),
        encode_command(Command(0, 2, FLAG_RESPONSE, fields={"outcome": "events"}, body=b"{")),
        encode_command(Command(ResponseCode.SYSTEM_ERROR, 2, FLAG_RESPONSE, "disk failed")),
    ],
)
def test_nonsense_from_a_name_server_costs_the_link_only(answer: bytes) -> None:
    pair = Pair().up()
    pair.forge(answer)  # number 2 is the request for events
    pair.until(SessionSuspended, SessionUp)
    assert pair.machine.session == 1


def test_operations_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNDER_WAY_MAX", 4)
    pair = Pair().up()
    pair.step(*(Ask(n, Read("/a")) for n in range(10)))
    assert {a.outcome for a in pair.answers()} == {Unknown()}
    assert 6 <= len(pair.answers()) <= 8
