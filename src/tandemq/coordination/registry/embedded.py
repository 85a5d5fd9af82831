"""The broker's side of the registry inside a name server: one link, one session, requests and answers.

    ask ─► OPERATE ─► link ─► name server          SessionUp ◄─ CONNECT answered
    Answer ◄──────────────────────┘                Changed   ◄─ EVENTS answered; asked again at once
                                                   Confirmed ◄─ any answer of the session, pings included

          ┌─────────────── link gone, or silent: SessionSuspended ──────────────┐
          ▼                                                                     │
        AWAY ──link open──► CONNECTING ──answer: SessionUp (SessionLost first ──► UP
          ▲                     │               if the session is another)      │
          └──── retry_ms ◄──────┴───────────── "over": SessionLost ◄────────────┘

With a secret (`keyring`) CONNECT is proven with it, behind a CHALLENGE, and its answer has to be. A name server that
asks for no proof is connected to all the same, with a warning, so that brokers can get their secret before the name
server has it; but not once it has proven itself to this machine.

A link is given up when nothing was answered on it for half the session's timeout; what was under way on it is Unknown.
The name server carries nothing out that arrives on a link after the session moved to another.

Limits: `UNDER_WAY_MAX` operations under way; one more is Unknown at once.
Owner: the node it speaks for; it is driven by links and time like the node itself. Does not know: sockets, the clock.
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
UNDER_WAY_MAX = 1_000
_log = logging.getLogger(__name__)


class RegistrySessionState(Enum):
    """Where the machine stands."""

    AWAY = "away"
    """No link, or one that is not open yet."""
    CONNECTING = "connecting"
    """A link; the session has not been confirmed on it."""
    UP = "up"
    """A session on a link."""
    CLOSED = "closed"
    """Given up by its owner."""


class _Sent:
    """A request under way: the asker's number (None for our own requests) and when it left."""

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
        """A machine that connects at its first `tick`.

        Args:
            address: of the name server, "ip:port".
            client: a name of this process' life that no other has; with it, and only with it, the session is resumed.
            timeout_ms: of the session, as asked for.
            next_link: gives numbers for links this node asks for.
            keyring: what the session is proven with; None: nothing is proven.
        """
        self._keyring = keyring
        self._proven_with: tuple[bytes, Command] | None = None
        """The secret and the CONNECT whose answer has to be proven."""
        self._is_proof_known = False
        """Whether the name server proved itself before."""
        self.refusal = ""
        """Why the name server does not let us in; empty if it does, or has not answered."""
        self.address = address
        self._client = client
        self._timeout_ms = timeout_ms
        self._next_link = next_link
        self.state = RegistrySessionState.AWAY
        self.session = 0
        """Id of the session; 0 if there is none."""
        self.problem = "not connected yet"
        """Why there is no session at present; empty while there is one."""
        self._link: int | None = None
        self._is_open = False
        self._decoder = FrameDecoder()
        self._under_way: dict[int, _Sent] = {}
        self._opaque = 0
        self._heard_ms = 0
        """When the present link was asked for, or last answered."""
        self._ping_ms = 0
        self._retry_ms: int | None = 0
        self._failures = 0
        self._events: list[RegistryEvent] = []

    # What the owner asks.

    def ask(self, ask: RegistryRequest, turn: Turn, now: Now) -> None:
        """Send an operation; without a session it is Unknown at once."""
        if self.state is not RegistrySessionState.UP or len(self._under_way) >= UNDER_WAY_MAX:
            self._events.append(RegistryResponse(ask.token, Unknown(), now.mono_ms))
            return
        self._send(encode_operation(self.session, ask.operation), turn, now, ask.token)

    @property
    def has_events(self) -> bool:
        """Whether something happened since the last call of `take_events`."""
        return bool(self._events)

    def take_events(self) -> list[RegistryEvent]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def close(self, turn: Turn, now: Now) -> None:
        """End the session: its ephemeral nodes go at once. Nothing is answered any more."""
        if self.state is RegistrySessionState.UP:
            self._send(self._request(RequestCode.TANDEM_REGISTRY_CLOSE), turn, now)
        self.state = RegistrySessionState.CLOSED
        self._retry_ms = None

    def deadline_ms(self) -> int | None:
        """When `tick` is needed."""
        if self.state is RegistrySessionState.CLOSED:
            return None
        if self._link is None:
            return self._retry_ms
        silent_ms = self._heard_ms + self._silence_ms()
        return min(silent_ms, self._ping_ms) if self.state is RegistrySessionState.UP else silent_ms

    def tick(self, turn: Turn, now: Now) -> None:
        """Connect, ping, give up a silent link: whatever is due."""
        if self.state is RegistrySessionState.CLOSED:
            return
        if self._link is None:
            if self._retry_ms is not None and now.mono_ms >= self._retry_ms:
                self._connect(turn, now)
        elif now.mono_ms >= self._heard_ms + self._silence_ms():
            self._give_up(f"nothing was answered for {now.mono_ms - self._heard_ms} ms", turn, now)
        elif self.state is RegistrySessionState.UP and now.mono_ms >= self._ping_ms:
            self._ping_ms = now.mono_ms + self._timeout_ms // PINGS_PER_TIMEOUT
            self._send(self._request(RequestCode.TANDEM_REGISTRY_PING), turn, now)

    # The link.

    def owns(self, link: int) -> bool:
        """Whether a link is this machine's."""
        return link == self._link

    def opened(self, _link: int, turn: Turn, now: Now) -> None:
        """The link is open."""
        self._is_open = True
        if self.state is RegistrySessionState.CLOSED:
            return
        self.state = RegistrySessionState.CONNECTING
        if self._keyring is None:
            self._ask_session(None, turn, now)
        else:
            self._send(Command(RequestCode.TANDEM_REGISTRY_CHALLENGE), turn, now)

    def _ask_session(self, challenge: bytes | None, turn: Turn, now: Now) -> None:
        """Send CONNECT, proven if there is a challenge."""
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
        """The name server told a nonce, or that it asks for no proof."""
        challenge = from_text(answer.fields.get(CHALLENGE, "")) if answer.code == ResponseCode.SUCCESS else None
        if challenge is not None and len(challenge) == NONCE_BYTES:
            self._ask_session(challenge, turn, now)
            return
        why = f"the name server at {self.address} does not prove that it knows haSecretFile"
        if self._is_proof_known:
            self.refusal = f"{why} any more; give it the same haSecretFile"
            raise ProtocolError(self.refusal)
        if not self._failures:
            _log.warning("registry: %s, so anybody may write into the registry; give it the same haSecretFile", why)
        self._ask_session(None, turn, now)

    def closed(self, _link: int, reason: str, now: Now) -> None:
        """The link is gone, or could not be opened."""
        self._lose_link(reason, now)

    def received(self, link: int, data: bytes, turn: Turn, now: Now) -> None:
        """Bytes from the name server."""
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
        """The session may live on; what was under way may have happened."""
        was_up, self._link, self._is_open = self.state is RegistrySessionState.UP, None, False
        if self.state is RegistrySessionState.CLOSED:
            return
        self.state = RegistrySessionState.AWAY
        self.problem = reason
        self._retry_ms = now.mono_ms + min(RETRY_MS * (1 << min(self._failures, 8)), RETRY_MS_MAX)
        self._failures += 1
        self._forget_under_way()
        if was_up:
            _log.warning("registry suspended address=%s session=%d reason=%s", self.address, self.session, reason)
            self._events.append(SessionSuspended())
        elif self._failures == 1:
            _log.warning("registry not reached address=%s reason=%s", self.address, reason)

    def _forget_under_way(self) -> None:
        for sent in self._under_way.values():
            if sent.token is not None:
                self._events.append(RegistryResponse(sent.token, Unknown(), sent.sent_ms))
        self._under_way.clear()

    # Requests and answers.

    def _request(self, code: RequestCode) -> Command:
        return Command(code, fields={"sessionId": str(self.session)})

    def _send(self, command: Command, turn: Turn, now: Now, token: int | None = None) -> None:
        assert self._link is not None and self._is_open
        self._opaque = self._opaque % 0x7FFFFFFF + 1
        command.opaque = self._opaque
        self._under_way[self._opaque] = _Sent(RequestCode(command.code), now.mono_ms, token)
        turn.send(self._link, encode_command(command))

    def _answered(self, answer: Command, turn: Turn, now: Now) -> None:
        sent = self._under_way.get(answer.opaque)
        if sent is None:
            return
        if self.state is RegistrySessionState.CLOSED:
            if sent.code == RequestCode.TANDEM_REGISTRY_CLOSE and self._link is not None:
                turn.closes.append((self._link, "the session is closed"))
            return
        if sent.code == RequestCode.TANDEM_REGISTRY_CHALLENGE:
            del self._under_way[answer.opaque]
            self._heard_ms = now.mono_ms
            self._challenged(answer, turn, now)
            return
        if answer.code != ResponseCode.SUCCESS:
            trouble = f"the name server at {self.address} refused the registry: {brief(answer.remark, 1_000)}"
            if answer.code == ResponseCode.NO_PERMISSION:
                self.refusal = trouble
            raise ProtocolError(trouble)
        outcome = answer.fields.get("outcome", "")
        if outcome == OVER:
            self._session_over(turn, now)
            return
        if sent.token is not None:
            self._events.append(RegistryResponse(sent.token, decode_outcome(answer), sent.sent_ms))
        del self._under_way[answer.opaque]
        self._heard_ms = now.mono_ms
        if outcome == CONNECTED:
            self._session_up(answer, turn, now)
        elif outcome == EVENTS:
            self._events.extend(map(Changed, paths_of(answer)))
            self._send(self._request(RequestCode.TANDEM_REGISTRY_EVENTS), turn, now)
            return  # it was sent long ago: it proves nothing new
        elif outcome != ALIVE and sent.token is None:
            raise ProtocolError(f"{outcome!r:.64} answers no request of a session")
        self._events.append(Confirmed(sent.sent_ms))

    def _session_up(self, answer: Command, turn: Turn, now: Now) -> None:
        self._check_proof(answer)
        try:
            session, timeout_ms = int(answer.fields["sessionId"]), int(answer.fields["timeoutMs"])
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"the registry's answer to CONNECT is malformed: {error}") from error
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
        """Whether whoever answers a proven CONNECT knows the secret.

        Raises:
            ProtocolError: it does not.
        """
        if self._proven_with is not None:
            secret, request = self._proven_with
            if not carries(answer, answer_proof(ROLES, secret, request, answer)):
                self.refusal = f"the name server at {self.address} proves another haSecretFile than ours, or none"
                raise ProtocolError(self.refusal)
            self._is_proof_known = True
        self.refusal = ""

    def _session_over(self, turn: Turn, now: Now) -> None:
        """The registry ended the session; another is asked for on the same link."""
        _log.warning("registry session lost address=%s session=%d", self.address, self.session)
        self._forget_under_way()
        self.session = 0
        self.problem = "the registry ended the session"
        self._events.append(SessionLost())
        assert self._link is not None
        self.opened(self._link, turn, now)

    def _silence_ms(self) -> int:
        return max(self._timeout_ms // 2, 1)
