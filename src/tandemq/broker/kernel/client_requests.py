"""Requests of the broker to clients: responses matched by connection and request id, with a timeout.

    call ──► on the connection ──► response of the client ──► on_answer(Command)
                   │ no response in time ───────────────────► on_answer(Missing.LATE)
                   │ the connection closes ─────────────────► on_answer(Missing.GONE)
                   └ too many requests wait already ────────► on_answer(Missing.CROWDED), at once

Source: docs/reference/requests.md, "relayed to clients"; RocketMQ Broker2Client.
"""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from tandemq.boundary import Now, Turn
from tandemq.broker.kernel.feature import Feature
from tandemq.codec.remoting.frame import encode_command
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command

WAITING_MAX = 10_000
"""Maximum number of requests to clients that wait; replies, which may be many, leave a part of it to others."""


class Missing(Enum):
    """Why there is no response."""

    LATE = "it did not answer in time"
    GONE = "its connection closed"
    CROWDED = f"{WAITING_MAX} requests to clients wait already"


OnAnswer = Callable[[Command | Missing, Now], None]
"""Called once, with the response or the reason why there is none."""


def notify(link: int, code: RequestCode, fields: dict[str, str], turn: Turn, body: bytes = b"") -> None:
    """Send a one-way request to a client on its connection."""
    turn.send(link, encode_command(Command(code, 0, 2, fields=fields, body=body)))


class _WaitingCall(NamedTuple):
    """A request that waits. `timeout_ms`: the list of `ClientCalls` that it is in."""

    on_answer: OnAnswer
    timeout_ms: int


class ClientCalls(Feature):
    """Requests that wait for the response of a client.

    Cost: that of the request at hand, however many wait.
    """

    def __init__(self) -> None:
        """Begin without requests."""
        self._waiting: dict[int, dict[int, _WaitingCall]] = {}
        """By connection and request id."""
        self._due: dict[int, dict[tuple[int, int], int]] = {}
        """Timeout to the requests that have it, each with the time when it is over: the oldest comes first."""
        self._opaque = 0

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return sum(map(len, self._due.values()))

    def call(self, link: int, command: Command, timeout_ms: int, on_answer: OnAnswer, turn: Turn, now: Now) -> None:
        """Send a request on a client's connection; sets its request id."""
        if len(self) >= WAITING_MAX:
            on_answer(Missing.CROWDED, now)
            return
        self._opaque = self._opaque % 0x7FFFFFFF + 1
        command.opaque = self._opaque
        self._waiting.setdefault(link, {})[command.opaque] = _WaitingCall(on_answer, timeout_ms)
        self._due.setdefault(timeout_ms, {})[link, command.opaque] = now.mono_ms + timeout_ms
        turn.send(link, encode_command(command))

    def answered(self, link: int, command: Command, now: Now) -> None:
        """Handle a response of a client; a response without a waiting request is dropped."""
        if command.opaque in self._waiting.get(link, ()):
            self._take(link, command.opaque).on_answer(command, now)

    def _take(self, link: int, opaque: int) -> _WaitingCall:
        calls = self._waiting[link]
        call = calls.pop(opaque)
        if not calls:
            del self._waiting[link]
        due = self._due[call.timeout_ms]
        del due[link, opaque]
        if not due:
            del self._due[call.timeout_ms]
        return call

    def link_closed(self, link: int, _turn: Turn, now: Now) -> None:
        """End the requests that wait on a closed connection."""
        for opaque in list(self._waiting.get(link, ())):
            self._take(link, opaque).on_answer(Missing.GONE, now)

    def run_due(self, _turn: Turn, now: Now) -> None:
        """End requests whose timeout has passed; the connection stays open, since the client may only be busy."""
        for due in list(self._due.values()):
            while due:
                link, opaque = next(iter(due))
                if due[link, opaque] > now.mono_ms:
                    break
                self._take(link, opaque).on_answer(Missing.LATE, now)

    def deadline_ms(self) -> int | None:
        """Return the earliest timeout, monotonic ms; None if no request waits."""
        return min((next(iter(due.values())) for due in self._due.values()), default=None)
