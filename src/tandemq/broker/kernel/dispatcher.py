"""Requests of clients: from the bytes of a connection to a response.

Ordinary sends and pulls skip the general decoder: `FastSends`, `FastPulls`.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from tandemq.boundary import Buffer, LinkKind, Now, Turn
from tandemq.broker.kernel.acknowledgements import Acknowledgements
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Request
from tandemq.broker.kernel.guard import RequestGuard
from tandemq.broker.kernel.housekeeping import Housekeeping
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pop_acks import PopAcks
from tandemq.broker.kernel.pulls import ENGINE_PULLS, Pulls
from tandemq.broker.kernel.sends import ENGINE_SENDS
from tandemq.codec.remoting.frame import RawFrame, decode_command, encode_command
from tandemq.codec.remoting.header import FORM_JSON
from tandemq.engine import SigningUser
from tandemq.errors import ProtocolError, StoreError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.unsupported import unsupported_remark
from tandemq.not_cached import NotCached
from tandemq.telemetry.turn_times import UNKNOWN_CODE, AnswerKind

_TakeMany = Callable[[Link, bytes, int, Now, SigningUser | None], int]
"""See `FastSends.take_ordinary`, `PopAcks.take_ordinary`."""


class FastSends(Protocol):
    """Sends that are taken without decoding their headers in Python."""

    def take_ordinary(self, link: Link, data: bytes, position: int, now: Now, sender: SigningUser | None = None) -> int:
        """Accept the ordinary sends from a position on; return that of the first other or incomplete frame.

        `sender`: the user that has to have signed them; None: no user is needed, or it is known that it may send.
        """

    def take_large(self, link: Link, parts: list[Buffer], now: Now) -> bool:
        """Accept a large send, given as the parts in which its frame arrived; return whether it is an ordinary one."""

    def store_waiting(self) -> None:
        """Store the messages accepted since the last time, before anything else is stored."""


class FastPulls(Protocol):
    """Pulls that are taken without the general decoder."""

    def take_ordinary(
        self, link: Link, data: bytes, position: int, turn: Turn, now: Now, sender: SigningUser | None = None
    ) -> int:
        """Answer pulls from a position on that the engine can answer; return the end of the last one."""

    def take_frame(self, link: int, header: bytes, turn: Turn, now: Now) -> bool:
        """Answer or hold a pull from its JSON header; False if it must go through its handler."""


class Dispatcher:
    """Hands each request to its handler."""

    def __init__(self, kernel: Kernel, sends: FastSends, pulls: FastPulls) -> None:
        """Begin. All features have been added to the kernel."""
        self._sends = sends
        self._pulls = pulls
        self._acks = kernel.features.find(PopAcks)
        self._device_reads = kernel.features.find(Pulls)
        self._store = kernel.store
        self._links = kernel.links
        self._requests = kernel.features.requests
        self._housekeeping = kernel.features.find(Housekeeping)
        self._acknowledgements = kernel.features.find(Acknowledgements)
        self._guard = kernel.features.find(RequestGuard)
        self._client_calls = kernel.client_calls
        self._saver = kernel.saver
        self._turn = kernel.turn
        self._times = kernel.turn_times

    def receive(self, link: Link, data: bytes, turn: Turn, now: Now, is_over: Callable[[], bool]) -> bytes:
        """Handle the bytes that a client sent, at least one request; return what is left when the time is over."""
        if link.is_closed:
            return b""
        link.seen_ms = now.mono_ms
        decoder = link.decoder
        parts = decoder.large(data)
        if parts is not None and not self._guard.is_on and self._sends.take_large(link, parts, now):
            position = decoder.take_large()
        else:
            data, position = decoder.join(data), 0
        position = self._take_ordinary(link, data, position, turn, now, is_over)
        while position < len(data) and (frame := decoder.split(data, position)) is not None:
            after = self._take_acks(link, frame, data, position, now)
            if after == position:
                if not self._handle(link, frame, data, position, turn, now):
                    break
                after = decoder.position
            position = after
            if position < len(data):
                if is_over():
                    return data[position:]
                position = self._take_ordinary(link, data, position, turn, now, is_over)
        if decoder.error is not None:
            self._housekeeping.close_link(link, str(decoder.error), turn, now)
        return b""

    def _take_ordinary(
        self, link: Link, data: bytes, position: int, turn: Turn, now: Now, is_over: Callable[[], bool]
    ) -> int:
        """Have the engine take pulls, then sends, from a position on; return that of the first frame it leaves.

        A frame that it leaves is looked at in any case, so that each turn serves one.
        """
        while _is_pull(data, position):
            sender = self._guard.sender(link) if self._guard.is_on else None
            if self._guard.is_on and sender is None:
                return position
            after = self._pulls.take_ordinary(link, data, position, turn, now, sender)
            if after == position or is_over():
                return after
            position = after
        return (
            position if position == len(data) else self._take_many(self._sends.take_ordinary, link, data, position, now)
        )

    def _take_acks(self, link: Link, frame: RawFrame, data: bytes, position: int, now: Now) -> int:
        """Accept the ordinary acknowledgements from a position on, where a frame begins; return the end of the last."""
        form, header, _ = frame
        if form != FORM_JSON or _ACK_CODE not in header:
            return position
        return self._take_many(self._acks.take_ordinary, link, data, position, now)

    def _take_many(self, take: _TakeMany, link: Link, data: bytes, position: int, now: Now) -> int:
        """Have the engine accept requests; with access control those that the user of the connection has signed."""
        if not self._guard.is_on:
            return take(link, data, position, now, None)
        sender = self._guard.sender(link)
        return position if sender is None else take(link, data, position, now, sender)

    def _refusal(self, link: Link, command: Command, now: Now) -> str | None:
        """Return why a client may not send a request."""
        request = self._requests.get(command.code)
        if request is None or command.is_response or not self._guard.checks(command.code, request):
            return None
        return self._guard.refusal(link, command, now)

    def _handle(self, link: Link, frame: RawFrame, data: bytes, position: int, turn: Turn, now: Now) -> bool:
        """Answer any request, whose frame begins at a position; False if the connection has to be closed."""
        form, header, _ = frame
        is_checked = self._guard.is_on
        has_code = any(code in header for code in _PULL_CODES)
        is_pull = form == FORM_JSON and has_code and link.kind is LinkKind.REMOTING
        if is_pull and not is_checked and self._pulls.take_frame(link.number, header, turn, now):
            return True
        command = self._decoded(link, frame, turn, now)
        if command is None:
            return False
        refusal = self._refusal(link, command, now) if is_checked else None
        if is_checked and refusal is None and command.code in ENGINE_SENDS:
            own = data[position : link.decoder.position]
            if self._sends.take_ordinary(link, own, 0, now) == len(own):
                return True
        self._take(link, command, refusal, turn, now)
        return True

    def _decoded(self, link: Link, frame: RawFrame, turn: Turn, now: Now) -> Command | None:
        """Return the request in a frame; None if it is malformed, and the connection is closed."""
        try:
            return decode_command(frame)
        except ProtocolError as error:
            self._housekeeping.close_link(link, str(error), turn, now)
            return None

    def _take(self, link: Link, command: Command, refusal: str | None, turn: Turn, now: Now) -> None:
        """Answer any request. `refusal`: why its user may not send it."""
        self._sends.store_waiting()
        if command.code == RequestCode.HEART_BEAT:
            link.takes_go_away = command.takes_go_away
        if command.is_response:
            self._client_calls.answered(link.number, command, now)
            return
        asked = self._saver.asked
        request = self._requests.get(command.code, _UNKNOWN)
        answer = self._answer(request, link, command, refusal, now)
        if answer is not None:
            code = UNKNOWN_CODE if request is _UNKNOWN else command.code
            self._times.answered(AnswerKind(code, answer.code))
        if answer is not None and not command.is_oneway:
            data = encode_command(answer)
            self._housekeeping.responses.note(link.number, len(data))
            is_saved_first = self._saver.asked > asked or (request.is_saved and self._saver.is_behind)
            if is_saved_first or (request.is_recorded and answer.code == ResponseCode.SUCCESS):
                self._acknowledgements.hold_until_saved(link.number, command, answer, now)
            elif not self._turn.holds(link.number, command, answer):
                turn.send(link.number, data)

    def _answer(self, request: Request, link: Link, command: Command, refusal: str | None, now: Now) -> Command | None:
        refusal = self._turn.serving.refusal(request.right) or refusal
        if refusal is not None:
            return command.answer(ResponseCode.NO_PERMISSION, remark=refusal)
        if not (command.is_oneway or request.is_always_answered):
            busy = self._housekeeping.responses.refusal(link.number)
            if busy is not None:
                return command.answer(ResponseCode.SYSTEM_BUSY, remark=busy)
        if len(command.body) > request.body_bytes_max:
            return command.answer(
                ResponseCode.SYSTEM_ERROR,
                remark=f"the body has {len(command.body)} bytes, at most {request.body_bytes_max} are allowed",
            )
        try:
            return self._read(request, link, command, now) if request.only_reads else request.handle(link, command, now)
        except (ProtocolError, StoreError) as error:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))

    def _read(self, request: Request, link: Link, command: Command, now: Now) -> Command | None:
        """Answer a request that only reads; if it lacks bytes of a file, have them read, and answer it later.

        Raises:
            StoreError: the device does not return.
        """
        self._store.allow_waits(allowed=False)
        try:
            return request.handle(link, command, now)
        except NotCached as missing:
            if not self._device_reads.must_wait(missing):
                if self._device_reads.read_later(missing, link.number, partial(self._read_again, link, command)):
                    return None
                return command.answer(ResponseCode.SYSTEM_BUSY, remark="too many requests wait for the device")
        finally:
            self._store.allow_waits(allowed=True)
        return request.handle(link, command, now)

    def _read_again(self, link: Link, command: Command, error: StoreError | None, turn: Turn, now: Now) -> None:
        """Handle a request whose bytes were read from the device, or could not be."""
        if link.is_closed or link.number not in self._links:
            return
        if error is None:
            self._device_reads.note_time(now)
            self._take(link, command, None, turn, now)
        elif not command.is_oneway:
            turn.send(link.number, encode_command(command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))))


def _is_pull(data: bytes, position: int) -> bool:
    """Whether a frame begins like a pull: the engine, which takes sends, need not look at it."""
    return data.startswith(_PULL_STARTS, position + 8)


def _refuse_unknown(_link: Link, command: Command, _now: Now) -> Command:
    return command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=unsupported_remark(command.code))


_UNKNOWN = Request(_refuse_unknown)
_PULL_STARTS = (*(b'{"code":%d,' % code for code in ENGINE_PULLS), *(code.to_bytes(2) for code in ENGINE_PULLS))
"""What headers of pulls begin with, as JSON of most clients, and in binary form."""
_PULL_CODES = tuple(b'"code":%d,' % code for code in ENGINE_PULLS)
_ACK_CODE = b"%d" % RequestCode.ACK_MESSAGE
"""Whatever spaces and order the fields of a JSON header have; the engine looks at the rest."""
