"""Requests of clients: from the bytes of a connection to a response.

Ordinary sends and pulls skip the general decoder: `SendPath.take_ordinary`, `PullPath.take_frame`.
"""

from collections.abc import Callable, Mapping

from tandemq.boundary import LinkKind, Now, Turn
from tandemq.broker.connections.client_requests import ClientCalls
from tandemq.broker.kernel.connection import Handler, Link
from tandemq.broker.kernel.context import CurrentTurn
from tandemq.broker.kernel.role import Holder
from tandemq.broker.maintenance.housekeeping import Housekeeping
from tandemq.broker.pull.processor import PULLS, PullPath
from tandemq.broker.send.acknowledgements import RECORDED, Acknowledgements
from tandemq.broker.send.processor import SendPath
from tandemq.broker.state.persistence import SAVED_FIRST, Saver
from tandemq.broker.static_topics.processor import StaticTopics
from tandemq.codec.remoting.frame import RawFrame, decode_command, encode_command
from tandemq.codec.remoting.header import FORM_JSON
from tandemq.errors import ProtocolError, StoreError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.unsupported import unsupported_remark
from tandemq.telemetry.turn_times import UNKNOWN_CODE, AnswerKind, TurnTimes

SENDS = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})


class Dispatcher:
    """Hands each request to its handler."""

    def __init__(
        self,
        send: SendPath,
        pull: PullPath,
        static_topics: StaticTopics,
        handlers: Mapping[int, Handler],
        housekeeping: Housekeeping,
        client_calls: ClientCalls,
        acknowledgements: Acknowledgements,
        saver: Saver,
        holds: Holder,
        current_turn: CurrentTurn,
        times: TurnTimes,
    ) -> None:
        """Begin. `handlers`: by request code, for all but sends and pulls. `holds`: see `BrokerRole`."""
        self._send = send
        self._pull = pull
        self._static_topics = static_topics
        self._handlers = handlers
        self._housekeeping = housekeeping
        self._client_calls = client_calls
        self._acknowledgements = acknowledgements
        self._saver = saver
        self._holds = holds
        self._turn = current_turn
        self._times = times

    def receive(self, link: Link, data: bytes, turn: Turn, now: Now, is_over: Callable[[], bool]) -> bytes:
        """Handle the bytes that a client sent, at least one request; return what is left when the time is over."""
        if link.is_closed:
            return b""
        link.seen_ms = now.mono_ms
        decoder = link.decoder
        data = decoder.join(data)
        at = self._send.take_ordinary(link, data, 0, now)
        while at < len(data) and (frame := decoder.split(data, at)) is not None:
            form, header, _ = frame
            is_pull = form == FORM_JSON and b'"code":11,' in header and link.kind is LinkKind.REMOTING
            if not (is_pull and self._pull.take_frame(link.number, header, turn, now)) and not self._handle(
                link, frame, turn, now
            ):
                break
            at = decoder.position
            if at < len(data):
                if is_over():
                    return data[at:]
                at = self._send.take_ordinary(link, data, at, now)
        if link.decoder.error is not None:
            self._housekeeping.close_link(link, str(link.decoder.error), turn, now)
        return b""

    def _handle(self, link: Link, frame: RawFrame, turn: Turn, now: Now) -> bool:
        """Answer any request; False if the connection has to be closed."""
        self._send.store_waiting()
        try:
            command = decode_command(frame)
        except ProtocolError as error:
            self._housekeeping.close_link(link, str(error), turn, now)
            return False
        if command.code == RequestCode.HEART_BEAT:
            link.takes_go_away = command.takes_go_away
        if command.is_response:
            self._client_calls.answered(link.number, command, now)
            return True
        asked = self._saver.asked
        answer = self._answer(link, command, turn, now)
        if answer is not None:
            known = command.code in self._handlers or command.code in PULLS
            self._times.answered(AnswerKind(command.code if known else UNKNOWN_CODE, answer.code))
        if answer is not None and not command.is_oneway:
            data = encode_command(answer)
            self._housekeeping.responses.note(link.number, len(data))
            is_saved_first = self._saver.asked > asked or (self._saver.is_behind and command.code in SAVED_FIRST)
            if is_saved_first or (command.code in RECORDED and answer.code == ResponseCode.SUCCESS):
                self._acknowledgements.hold_until_saved(link.number, command, answer, now)
            elif not self._holds(link.number, command, answer):
                turn.send(link.number, data)
        return True

    def _answer(self, link: Link, command: Command, turn: Turn, now: Now) -> Command | None:
        refusal = self._turn.serving.refusal(command.code)
        if refusal is not None:
            return command.answer(ResponseCode.NO_PERMISSION, remark=refusal)
        is_send = command.code in SENDS
        busy = None if command.is_oneway or is_send else self._housekeeping.responses.refusal(link.number)
        if busy is not None:
            return command.answer(ResponseCode.SYSTEM_BUSY, remark=busy)
        try:
            takes_pulls = link.kind is LinkKind.REMOTING
            static = self._static_topics
            if static.table and static.owns(command) and (takes_pulls or command.code not in PULLS):
                return static.take(link, command, now)
            if is_send:
                self._send.take(link, command, now)
                return None
            if command.code in PULLS:
                if takes_pulls:
                    return self._pull.take(link.number, command, turn, now)
            elif command.code in self._handlers:
                return self._handlers[command.code](link, command, now)
        except (ProtocolError, StoreError) as error:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        return command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=unsupported_remark(command.code))
