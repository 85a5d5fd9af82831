"""Client of the embedded registry, connected to a name server by a connection that the test controls."""

from random import Random

import pytest

from lab.samples import tiny_name_server
from lab.sim.world.disk import SimDisk
from tandemq.boundary import Closed, Event, JobDone, LinkKind, Now, Opened, Turn
from tandemq.codec.proofs import Keyring
from tandemq.codec.remoting.frame import encode_command
from tandemq.coordination.registry import embedded as module
from tandemq.coordination.registry.embedded import EmbeddedRegistry, RegistrySessionState
from tandemq.coordination.registry.interface import (
    PERSISTENT,
    Changed,
    Confirmed,
    Create,
    Done,
    NodeFound,
    Read,
    RegistryEvent,
    RegistryRequest,
    RegistryResponse,
    SessionLost,
    SessionSuspended,
    SessionUp,
    Unknown,
    Write,
)
from tandemq.model.codes import ResponseCode
from tandemq.model.command import FLAG_RESPONSE, Command
from tandemq.nameserver import NameServer

TIMEOUT_MS = 1_200
STEP_MS = 10


def keyring(secrets: tuple[bytes, ...], seed: int) -> Keyring | None:
    return Keyring(lambda: secrets, Random(seed)) if secrets else None


class Pair:
    """A client and a name server; bytes and events are passed on at the end of each step, unless blocked."""

    def __init__(
        self, *, hosts_registry: bool = True, ours: tuple[bytes, ...] = (), theirs: tuple[bytes, ...] = ()
    ) -> None:
        """`ours`: secrets of the machine; `theirs`: of the name server."""
        self.now = Now(50_000, 0)
        self.disk = SimDisk(Random(1))
        self._hosts_registry = hosts_registry
        self.start_server(theirs)
        self._links = 0
        self.machine = EmbeddedRegistry("10.0.0.9:9876", "me", TIMEOUT_MS, self._next_link, keyring(ours, 1))
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

    def start_server(self, secrets: tuple[bytes, ...] = ()) -> None:
        config = tiny_name_server(registry_enable=self._hosts_registry)
        self.server = NameServer(config, self.disk, keyring=keyring(secrets, 2))

    def _next_link(self) -> int:
        self._links -= 1
        return self._links

    def step(self, *asks: RegistryRequest, ms: int = STEP_MS) -> None:
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

    def answers(self) -> list[RegistryResponse]:
        return [event for event in self.told if isinstance(event, RegistryResponse)]

    def forge(self, data: bytes) -> None:
        self._to_machine.append((self._links, data))


def test_session_is_confirmed_from_the_send_time_of_the_request() -> None:
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


def test_operations_and_watches_work() -> None:
    pair = Pair().up()
    pair.step(
        RegistryRequest(1, Create("/a", b"x")),
        RegistryRequest(2, Read("/a", watch=True)),
        RegistryRequest(3, Write("/a", b"y", 0)),
    )
    for _ in range(5):
        pair.step()
    assert [(a.token, a.outcome) for a in pair.answers()] == [
        (1, Done(0)),
        (2, NodeFound(b"x", 0, PERSISTENT)),
        (3, Done(1)),
    ]
    assert Changed("/a") in pair.told


def test_silent_registry_suspends_the_session_and_operations_in_flight_are_unknown() -> None:
    pair = Pair().up()
    pair.is_silent = True
    silent_ms = pair.now.mono_ms
    pair.step(RegistryRequest(7, Create("/a", b"")))
    pair.until(SessionSuspended)
    assert TIMEOUT_MS // 2 - 200 <= pair.now.mono_ms - silent_ms <= TIMEOUT_MS // 2 + 2 * STEP_MS
    assert [(a.token, a.outcome) for a in pair.answers()] == [(7, Unknown())]
    assert pair.told.index(pair.answers()[0]) < pair.told.index(SessionSuspended())
    pair.step(RegistryRequest(8, Read("/a")))
    assert pair.answers()[-1].outcome == Unknown()
    assert "no response for" in pair.machine.problem
    pair.is_silent = False
    pair.until(SessionSuspended, SessionUp)
    assert pair.machine.session == 1
    assert pair.machine.problem == ""


def test_session_that_expired_is_lost_and_a_new_one_is_opened() -> None:
    pair = Pair().up()
    pair.is_silent = True
    pair.until(SessionSuspended)
    pair.step(ms=TIMEOUT_MS)
    pair.is_silent = False
    pair.until(SessionSuspended, SessionLost, SessionUp)
    assert pair.machine.session == 2


def test_session_that_expired_on_an_open_connection_is_replaced_on_it() -> None:
    pair = Pair().up()
    links = pair._links
    pair._turn_server()
    pair.now.mono_ms += TIMEOUT_MS + 1
    pair._turn_server()  # the machine's process was stopped meanwhile
    pair.until(SessionLost, SessionUp)
    assert pair.machine.session == 2
    assert pair._links == links


def test_cut_connection_is_replaced_at_once_and_refusals_are_backed_off() -> None:
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


def test_name_server_without_a_registry_is_retried_and_reported() -> None:
    pair = Pair(hosts_registry=False)
    for _ in range(500):
        pair.step()
    assert pair.machine.state is not RegistrySessionState.UP
    assert not pair.told
    assert "refused a registry request" in pair.machine.problem
    assert 3 <= pair.connects <= 10


def test_closed_session_deletes_its_nodes_and_reports_nothing_more() -> None:
    pair = Pair().up()
    pair.step(RegistryRequest(1, Create("/live", b"", ephemeral=True)))
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
def test_malformed_response_only_closes_the_connection(answer: bytes) -> None:
    pair = Pair().up()
    pair.forge(answer)  # number 2 is the request for events
    pair.until(SessionSuspended, SessionUp)
    assert pair.machine.session == 1


def test_operations_in_flight_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_FLIGHT_MAX", 4)
    pair = Pair().up()
    pair.step(*(RegistryRequest(n, Read("/a")) for n in range(10)))
    assert {a.outcome for a in pair.answers()} == {Unknown()}
    assert 6 <= len(pair.answers()) <= 8


# Secrets.

SECRET, OTHER = b"s" * 32, b"o" * 32


def test_session_is_authenticated_both_ways_on_each_connection() -> None:
    pair = Pair(ours=(SECRET,), theirs=(OTHER, SECRET)).up()
    pair.step(RegistryRequest(1, Create("/a", b"x")))
    pair.step(ms=20)
    pair.step(ms=20)
    assert [answer.outcome for answer in pair.answers()] == [Done(0)]
    pair.told.clear()
    pair.cut()
    pair.until(SessionSuspended, SessionUp)
    assert pair.machine.refusal == ""
    pair.told.clear()
    tree = pair.server.registry
    assert tree is not None
    tree._tree.close_session(pair.machine.session)
    pair.until(SessionLost, SessionUp)


@pytest.mark.parametrize(("ours", "problem"), [((), "got no proof"), ((OTHER,), "got a wrong proof")])
def test_session_without_the_secret_is_refused_with_the_setting_to_use(
    caplog: pytest.LogCaptureFixture, ours: tuple[bytes, ...], problem: str
) -> None:
    pair = Pair(ours=ours, theirs=(SECRET,))
    for _ in range(1_000):
        pair.step()
    assert [event for event in pair.told if isinstance(event, SessionUp)] == []
    assert problem in pair.machine.refusal
    assert "haSecretFile" in pair.machine.problem
    assert "--secret-file" in pair.machine.problem
    assert pair.server.registry is not None
    assert pair.server.registry.session_count == 0
    assert len([line for line in caplog.messages if "request refused" in line]) == 1
    pair.start_server(ours)
    pair.until(SessionUp)
    assert pair.machine.refusal == ""


def test_unauthenticated_name_server_is_used_with_a_warning_until_it_has_authenticated_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pair = Pair(ours=(SECRET,)).up()
    assert len([line for line in caplog.messages if "does not authenticate with haSecretFile" in line]) == 1
    pair.start_server((SECRET,))
    pair.cut()
    pair.until(SessionSuspended, SessionUp)
    pair.told.clear()
    pair.start_server()
    pair.cut()
    for _ in range(500):
        pair.step()
    assert not any(isinstance(event, SessionUp) for event in pair.told)
    assert "does not authenticate" in pair.machine.refusal


def test_unauthenticated_response_to_connect_is_rejected() -> None:
    pair = Pair(ours=(SECRET,), theirs=(SECRET,))
    while not pair.machine._proven_with:
        pair.step()
    _, request = pair.machine._proven_with
    fields = {"outcome": "connected", "sessionId": "7", "timeoutMs": "1200"}
    pair.is_silent = True
    pair._to_server.clear()
    pair.forge(encode_command(Command(0, request.opaque, FLAG_RESPONSE, fields=fields)))
    pair.step()
    assert pair.machine.session == 0
    assert "has another haSecretFile than this broker, or none" in pair.machine.refusal


def test_name_server_without_a_registry_is_reported() -> None:
    pair = Pair(hosts_registry=False, ours=(SECRET,))
    for _ in range(20):
        pair.step()
    assert "not supported" in pair.machine.problem
