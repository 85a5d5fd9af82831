"""Client of the registry in a name server: one connection, one session, requests and responses.

    ask ─► OPERATE ─► connection ─► name server    SessionUp ◄─ response to CONNECT
    RegistryResponse ◄───────────────────┘         Changed   ◄─ response to EVENTS, which is sent again at once
                                                   Confirmed ◄─ any response of the session, pings included

          ┌──────────── connection lost, or silent: SessionSuspended ────────────┐
          ▼                                                                      │
        AWAY ──connected──► CONNECTING ──response: SessionUp (SessionLost first ─► UP
          ▲                     │                if the session is a new one)    │
          └──── retry_ms ◄──────┴───────────── "over": SessionLost ◄─────────────┘

With a secret (`keyring`) a CHALLENGE is requested first, CONNECT is authenticated with the secret, and its response
must be too. A name server that requires no authentication is accepted with a warning, so that brokers can get their
secret before the name server has it; but not after it has authenticated itself to this client.

A connection is closed when there was no response for half the session timeout; operations in flight on it are Unknown.
The name server does not execute requests that arrive on a connection after the session has moved to another one.

Limits: `IN_FLIGHT_MAX` operations in flight; a further one is Unknown at once.
Owner: the node, which passes it connection events and the time. Uses no sockets and no clock.
Source: docs/internals/failover.md, "The registry in a name server".
"""

import logging
from collections.abc import Callable
from enum import Enum

from tandemq.boundary import Connect, LinkKind, Now, Turn
from tandemq.codec.proofs import (
    CHALLENGE,
    NONCE,
    NONCE_BYTES,
    PROOF,
    Keyring,
    answer_proof,
    carries,
    from_text,
    request_proof,
    to_text,
)
from tandemq.codec.registry import (
    ALIVE,
    CONNECTED,
    EVENTS,
    OVER,
    ROLES,
    decode_outcome,
    encode_operation,
    paths_of,
)
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.text import brief
from tandemq.registry import (
    Changed,
    Confirmed,
    RegistryEvent,
    RegistryRequest,
    RegistryResponse,
    SessionLost,
    SessionSuspended,
    SessionUp,
    Unknown,
)

PINGS_PER_TIMEOUT = 6
RETRY_MS = 100
RETRY_MS_MAX = 1_000
IN_FLIGHT_MAX = 1_000
_log = logging.getLogger(__name__)


class RegistrySessionState(Enum):
    """State of the client."""

    AWAY = "away"
    """No connection, or one that is not open yet."""
    CONNECTING = "connecting"
    """A connection on which the session is not confirmed yet."""
    UP = "up"
    """A session on a connection."""
    CLOSED = "closed"
    """Closed by its owner."""


class _Sent:
    """A request in flight. `token`: the owner's number, None for the client's own requests."""

    __slots__ = ("code", "sent_ms", "token")

    def __init__(self, code: RequestCode, sent_ms: int, token: int | None = None) -> None:
        self.code = code
        self.sent_ms = sent_ms
        self.token = token


class EmbeddedRegistry:
    """A session at the registry that a name server hosts."""

    def __init__(
        self, address: str, client: str, timeout_ms: int, next_link: Callable[[], int], keyring: Keyring | None = None
    ) -> None:
        """Create a client that connects at its first `tick`.

        Args:
            address: name server, "ip:port".
            client: unique name of this process run, which is required to resume the session.
            timeout_ms: requested session timeout.
            next_link: returns ids for new outgoing connections.
            keyring: secrets for authentication; None: no authentication.
        """
        self._keyring = keyring
        self._proven_with: tuple[bytes, Command] | None = None
        """The secret and the CONNECT request whose response must be authenticated."""
        self._is_proof_known = False
        """Whether the name server has authenticated itself before."""
        self.refusal = ""
        """Why the name server refuses the session; "" if it does not, or has not answered."""
        self.address = address
        self._client = client
        self._timeout_ms = timeout_ms
        self._next_link = next_link
        self.state = RegistrySessionState.AWAY
        self.session = 0
        """Id of the session; 0 if there is none."""
        self.problem = "not connected yet"
        """Why there is no session at present; "" while there is one."""
        self._link: int | None = None
        self._is_open = False
        self._decoder = FrameDecoder()
        self._in_flight: dict[int, _Sent] = {}
        self._opaque = 0
        self._heard_ms = 0
        """When the present connection was requested, or last had a response."""
        self._ping_ms = 0
        self._retry_ms: int | None = 0
        self._failures = 0
        self._events: list[RegistryEvent] = []

    # Requests of the owner.

    def ask(self, ask: RegistryRequest, turn: Turn, now: Now) -> None:
        """Send an operation; without a session it is Unknown at once."""
        if self.state is not RegistrySessionState.UP or len(self._in_flight) >= IN_FLIGHT_MAX:
            self._events.append(RegistryResponse(ask.token, Unknown(), now.mono_ms))
            return
        self._send(encode_operation(self.session, ask.operation), turn, now, ask.token)

    @property
    def has_events(self) -> bool:
        """Whether there are events since the last call of `take_events`."""
        return bool(self._events)

    def take_events(self) -> list[RegistryEvent]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def close(self, turn: Turn, now: Now) -> None:
        """End the session; its ephemeral nodes are deleted at once. No further responses are reported."""
        if self.state is RegistrySessionState.UP:
            self._send(self._request(RequestCode.TANDEM_REGISTRY_CLOSE), turn, now)
        self.state = RegistrySessionState.CLOSED
        self._retry_ms = None

    def deadline_ms(self) -> int | None:
        """Return when `tick` is needed next."""
        if self.state is RegistrySessionState.CLOSED:
            return None
        if self._link is None:
            return self._retry_ms
        silent_ms = self._heard_ms + self._silence_ms()
        return min(silent_ms, self._ping_ms) if self.state is RegistrySessionState.UP else silent_ms

    def tick(self, turn: Turn, now: Now) -> None:
        """Connect, ping, or close a silent connection, as due."""
        if self.state is RegistrySessionState.CLOSED:
            return
        if self._link is None:
            if self._retry_ms is not None and now.mono_ms >= self._retry_ms:
                self._connect(turn, now)
        elif now.mono_ms >= self._heard_ms + self._silence_ms():
            self._give_up(f"no response for {now.mono_ms - self._heard_ms} ms", turn, now)
        elif self.state is RegistrySessionState.UP and now.mono_ms >= self._ping_ms:
            self._ping_ms = now.mono_ms + self._timeout_ms // PINGS_PER_TIMEOUT
            self._send(self._request(RequestCode.TANDEM_REGISTRY_PING), turn, now)

    # The connection.

    def owns(self, link: int) -> bool:
        """Return whether a connection belongs to this client."""
        return link == self._link

    def opened(self, _link: int, turn: Turn, now: Now) -> None:
        """Take the event that the connection is open."""
        self._is_open = True
        if self.state is RegistrySessionState.CLOSED:
            return
        self.state = RegistrySessionState.CONNECTING
        if self._keyring is None:
            self._ask_session(None, turn, now)
        else:
            self._send(Command(RequestCode.TANDEM_REGISTRY_CHALLENGE), turn, now)

    def _ask_session(self, challenge: bytes | None, turn: Turn, now: Now) -> None:
        """Send CONNECT, authenticated if there is a challenge."""
        request = Command(
            RequestCode.TANDEM_REGISTRY_CONNECT,
            fields={"client": self._client, "timeoutMs": str(self._timeout_ms), "sessionId": str(self.session)},
        )
        self._proven_with = None
        if challenge is not None:
            assert self._keyring is not None, "there was a challenge"
            secret = self._keyring.secrets()[0]
            request.fields |= {CHALLENGE: to_text(challenge), NONCE: to_text(self._keyring.nonce())}
            request.fields[PROOF] = to_text(request_proof(ROLES, secret, request))
            self._proven_with = secret, request
        self._send(request, turn, now)

    def _challenged(self, answer: Command, turn: Turn, now: Now) -> None:
        """Take the response to CHALLENGE: a nonce, or no authentication."""
        challenge = from_text(answer.fields.get(CHALLENGE, "")) if answer.code == ResponseCode.SUCCESS else None
        if challenge is not None and len(challenge) == NONCE_BYTES:
            self._ask_session(challenge, turn, now)
            return
        why = f"the name server at {self.address} does not authenticate with haSecretFile"
        if self._is_proof_known:
            self.refusal = f"{why} any more; give it the same haSecretFile"
            raise ProtocolError(self.refusal)
        if not self._failures:
            _log.warning("registry: %s, so any peer can write to the registry; give it the same haSecretFile", why)
        self._ask_session(None, turn, now)

    def closed(self, _link: int, reason: str, now: Now) -> None:
        """Take the event that the connection was closed, or could not be opened."""
        self._lose_link(reason, now)

    def received(self, link: int, data: bytes, turn: Turn, now: Now) -> None:
        """Take bytes from the name server."""
        try:
            for frame in self._decoder.feed(data):
                command = decode_command(frame)
                if link == self._link and command.is_response:
                    self._answered(command, turn, now)
            if self._decoder.error is not None:
                raise self._decoder.error
        except ProtocolError as error:
            self._give_up(str(error), turn, now)

    def _connect(self, turn: Turn, now: Now) -> None:
        self._link = self._next_link()
        self._is_open = False
        self._decoder = FrameDecoder()
        self._heard_ms = now.mono_ms
        self._retry_ms = None
        turn.connects.append(Connect(self._link, LinkKind.PEER, self.address))

    def _give_up(self, reason: str, turn: Turn, now: Now) -> None:
        if self._link is not None:
            turn.closes.append((self._link, reason))
            self._lose_link(reason, now)

    def _lose_link(self, reason: str, now: Now) -> None:
        """Handle a lost connection: the session may still exist; operations in flight have an unknown outcome."""
        was_up, self._link, self._is_open = self.state is RegistrySessionState.UP, None, False
        if self.state is RegistrySessionState.CLOSED:
            return
        self.state = RegistrySessionState.AWAY
        self.problem = reason
        self._retry_ms = now.mono_ms + min(RETRY_MS * (1 << min(self._failures, 8)), RETRY_MS_MAX)
        self._failures += 1
        self._drop_in_flight()
        if was_up:
            _log.warning("registry suspended address=%s session=%d reason=%s", self.address, self.session, reason)
            self._events.append(SessionSuspended())
        elif self._failures == 1:
            _log.warning("registry unreachable address=%s reason=%s", self.address, reason)

    def _drop_in_flight(self) -> None:
        for sent in self._in_flight.values():
            if sent.token is not None:
                self._events.append(RegistryResponse(sent.token, Unknown(), sent.sent_ms))
        self._in_flight.clear()

    # Requests and responses.

    def _request(self, code: RequestCode) -> Command:
        return Command(code, fields={"sessionId": str(self.session)})

    def _send(self, command: Command, turn: Turn, now: Now, token: int | None = None) -> None:
        assert self._link is not None and self._is_open
        self._opaque = self._opaque % 0x7FFFFFFF + 1
        command.opaque = self._opaque
        self._in_flight[self._opaque] = _Sent(RequestCode(command.code), now.mono_ms, token)
        turn.send(self._link, encode_command(command))

    def _answered(self, answer: Command, turn: Turn, now: Now) -> None:
        sent = self._in_flight.get(answer.opaque)
        if sent is None:
            return
        if self.state is RegistrySessionState.CLOSED:
            if sent.code == RequestCode.TANDEM_REGISTRY_CLOSE and self._link is not None:
                turn.closes.append((self._link, "the session is closed"))
            return
        if sent.code == RequestCode.TANDEM_REGISTRY_CHALLENGE:
            del self._in_flight[answer.opaque]
            self._heard_ms = now.mono_ms
            self._challenged(answer, turn, now)
            return
        if answer.code != ResponseCode.SUCCESS:
            problem = f"the name server at {self.address} refused a registry request: {brief(answer.remark, 1_000)}"
            if answer.code == ResponseCode.NO_PERMISSION:
                self.refusal = problem
            raise ProtocolError(problem)
        outcome = answer.fields.get("outcome", "")
        if outcome == OVER:
            self._session_over(turn, now)
            return
        if sent.token is not None:
            self._events.append(RegistryResponse(sent.token, decode_outcome(answer), sent.sent_ms))
        del self._in_flight[answer.opaque]
        self._heard_ms = now.mono_ms
        if outcome == CONNECTED:
            self._session_up(answer, turn, now)
        elif outcome == EVENTS:
            self._events.extend(map(Changed, paths_of(answer)))
            self._send(self._request(RequestCode.TANDEM_REGISTRY_EVENTS), turn, now)
            return  # not a confirmation: EVENTS was sent long ago
        elif outcome != ALIVE and sent.token is None:
            raise ProtocolError(f"unexpected outcome {outcome!r:.64} of a session request")
        self._events.append(Confirmed(sent.sent_ms))

    def _session_up(self, answer: Command, turn: Turn, now: Now) -> None:
        self._check_proof(answer)
        try:
            session, timeout_ms = int(answer.fields["sessionId"]), int(answer.fields["timeoutMs"])
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"the registry's response to CONNECT is malformed: {error}") from error
        if self.session and session != self.session:
            self._events.append(SessionLost())
        _log.info("registry session up address=%s session=%d timeout_ms=%d", self.address, session, timeout_ms)
        self.state = RegistrySessionState.UP
        self.problem = ""
        self.session = session
        self._timeout_ms = timeout_ms
        self._failures = 0
        self._ping_ms = now.mono_ms
        self._events.append(SessionUp(session, timeout_ms))
        self._send(self._request(RequestCode.TANDEM_REGISTRY_EVENTS), turn, now)

    def _check_proof(self, answer: Command) -> None:
        """Check that the response to an authenticated CONNECT is authenticated.

        Raises:
            ProtocolError: it is not.
        """
        if self._proven_with is not None:
            secret, request = self._proven_with
            if not carries(answer, answer_proof(ROLES, secret, request, answer)):
                self.refusal = f"the name server at {self.address} has another haSecretFile than this broker, or none"
                raise ProtocolError(self.refusal)
            self._is_proof_known = True
        self.refusal = ""

    def _session_over(self, turn: Turn, now: Now) -> None:
        """Handle the end of the session by the registry: request a new one on the same connection."""
        _log.warning("registry session lost address=%s session=%d", self.address, self.session)
        self._drop_in_flight()
        self.session = 0
        self.problem = "the registry ended the session"
        self._events.append(SessionLost())
        assert self._link is not None
        self.opened(self._link, turn, now)

    def _silence_ms(self) -> int:
        return max(self._timeout_ms // 2, 1)
