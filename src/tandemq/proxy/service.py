"""The service of gRPC clients: each method with what carries it out, and the form of its responses.

    message of a call ─► request ─► operation (`Steps`) ─► response, with a status in any case

Outcomes stand in the responses, and the gRPC status is OK, except for messages that cannot be decoded, invalid
settings, and methods that there are not.

Source: docs/reference/grpc.md; RocketMQ GrpcMessagingApplication.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from tandemq.boundary import Now
from tandemq.client.core.calls import Ticket
from tandemq.client.core.operations import OperationRunner, Steps
from tandemq.errors import TandemError
from tandemq.grpc.server import Call, GrpcStatus, Method
from tandemq.proxy.access import ProxyAccess, needs_of
from tandemq.proxy.acknowledging import Acknowledging
from tandemq.proxy.clients import GrpcClients
from tandemq.proxy.names import Caller
from tandemq.proxy.protocol import messaging_pb2 as pb
from tandemq.proxy.receiving import Received, Receiving
from tandemq.proxy.routing import Routing
from tandemq.proxy.sending import Sending
from tandemq.proxy.status import OK, CallRefused, code_of, make_status, status_of
from tandemq.proxy.transactions import GrpcTransactions

log = logging.getLogger(__name__)
NAME = "apache.rocketmq.v2.MessagingService"
CLIENT_ID, AUTHORIZATION, DATE = "x-mq-client-id", "authorization", "x-mq-date-time"
CLIENT_ID_CHARACTERS_MAX = 512
REQUEST_BYTES_MAX = 64 * 1024
"""Maximum size of a request, unless it has messages, acknowledgements or settings: what is in it goes to brokers, or is
in the response many times."""
_LARGE = frozenset({"SendMessage", "AckMessage"})
T = TypeVar("T")
Q = TypeVar("Q", bound=Message)
_NO_MESSAGE = make_status(pb.Code.MESSAGE_NOT_FOUND, "no new message")
_SAID_ON_STREAMS = (pb.Code.UNSUPPORTED, pb.Code.TOO_MANY_REQUESTS, pb.Code.UNAUTHORIZED)
"""Codes of refused settings that clients get as a command; others end the stream with INVALID_ARGUMENT."""
NO_CLIENT_ID = f"the metadata {CLIENT_ID} is missing, or too long"


class MessagingService:
    """The methods of the service."""

    def __init__(
        self,
        runner: OperationRunner,
        access: ProxyAccess,
        clients: GrpcClients,
        routing: Routing,
        sending: Sending,
        receiving: Receiving,
        acknowledging: Acknowledging,
        transactions: GrpcTransactions,
    ) -> None:
        """`runner`: runs the operations; `access`: says whether a client may have them."""
        self._runner = runner
        self._access = access
        self._clients = clients
        self._receiving = receiving
        self._transactions = transactions
        self._polls: dict[Call, None] = {}
        """ReceiveMessage calls that wait for messages."""
        self._streams: dict[Call, str] = {}
        """Streams of clients, each with the id of its client."""
        self._settling: dict[Call, None] = {}
        """Streams whose last settings are not answered."""
        self._is_leaving = False
        self._now = Now(0, 0)
        self.outcomes: dict[tuple[str, int], int] = {}
        """Number of calls by method and status code."""
        unary: dict[str, tuple[type[Message], type[Message], Callable[[Caller, Any], Steps[Any]]]] = {
            "QueryRoute": (pb.QueryRouteRequest, pb.QueryRouteResponse, routing.route),
            "QueryAssignment": (pb.QueryAssignmentRequest, pb.QueryAssignmentResponse, routing.assignment),
            "Heartbeat": (pb.HeartbeatRequest, pb.HeartbeatResponse, clients.heartbeat),
            "SendMessage": (pb.SendMessageRequest, pb.SendMessageResponse, sending.send),
            "RecallMessage": (pb.RecallMessageRequest, pb.RecallMessageResponse, sending.recall),
            "EndTransaction": (pb.EndTransactionRequest, pb.EndTransactionResponse, transactions.end),
            "AckMessage": (pb.AckMessageRequest, pb.AckMessageResponse, acknowledging.acknowledge),
            "ChangeInvisibleDuration": (
                pb.ChangeInvisibleDurationRequest,
                pb.ChangeInvisibleDurationResponse,
                acknowledging.change,
            ),
            "ForwardMessageToDeadLetterQueue": (
                pb.ForwardMessageToDeadLetterQueueRequest,
                pb.ForwardMessageToDeadLetterQueueResponse,
                acknowledging.forward,
            ),
            "NotifyClientTermination": (
                pb.NotifyClientTerminationRequest,
                pb.NotifyClientTerminationResponse,
                clients.terminate,
            ),
            "SyncLiteSubscription": (
                pb.SyncLiteSubscriptionRequest,
                pb.SyncLiteSubscriptionResponse,
                _refuse_lite,
            ),
        }
        self.methods: Mapping[str, Method] = {
            f"/{NAME}/{name}": Method(partial(self._unary, name, request, response, run))
            for name, (request, response, run) in unary.items()
        } | {
            f"/{NAME}/ReceiveMessage": Method(self._receive),
            f"/{NAME}/Telemetry": Method(self._telemetry, is_streamed=True, opened=self._stream_opened),
        }
        """By path."""

    @property
    def checked(self) -> int:
        """Number of checks of transactions that were handed to clients."""
        return self._transactions.checked

    def begin_turn(self, now: Now) -> None:
        """Note the time: operations end without one."""
        self._now = now

    # Calls with one response.

    def _unary(
        self,
        name: str,
        request: type[Message],
        response: type[Message],
        run: Callable[[Caller, Any], Steps[Any]],
        call: Call,
        message: bytes,
        now: Now,
    ) -> None:
        query = _decoded(request, call, message)
        if query is None:
            return
        try:
            caller = _admitted(call, 0 if name in _LARGE else len(message))
        except CallRefused as refused:
            self._respond(call, name, response(status=status_of(refused)))
            return
        ticket = self._run(caller, query, run, now)
        ticket.then(partial(self._answer, call, name, response))

    def _run(self, caller: Caller, query: Q, run: Callable[[Caller, Q], Steps[T]], now: Now) -> Ticket[T]:
        """Run an operation for a client, if it may have it."""
        steps = self._checked(caller, query, run) if self._access.is_on else run(caller, query)
        return self._runner.start(_guarded(steps), now)

    def _checked(self, caller: Caller, query: Q, run: Callable[[Caller, Q], Steps[T]]) -> Steps[T]:
        caller = yield from self._access.check(caller, needs_of(query))
        return (yield from run(caller, query))

    def _answer(self, call: Call, name: str, response: type[Message], ticket: Ticket[Any]) -> None:
        error = ticket.error
        self._respond(call, name, ticket.result() if error is None else response(status=status_of(error)))

    def _respond(self, call: Call, name: str, response: Any) -> None:
        self._count(name, response.status.code)
        call.respond(response.SerializeToString())

    def _count(self, name: str, code: int) -> None:
        self.outcomes[name, code] = self.outcomes.get((name, code), 0) + 1

    # ReceiveMessage.

    def _receive(self, call: Call, message: bytes, now: Now) -> None:
        query = _decoded(pb.ReceiveMessageRequest, call, message)
        if query is None:
            return
        try:
            caller = _admitted(call, len(message))
        except CallRefused as refused:
            self._deliver(call, status_of(refused), [])
            return
        if self._is_leaving:
            self._deliver(call, _NO_MESSAGE, [])
            return
        self._polls[call] = None
        call.on_cancel = lambda _now: void(self._polls.pop(call, None))
        ticket = self._run(caller, query, self._receiving.receive, now)
        ticket.then(partial(self._received, call, caller, query))

    def _received(self, call: Call, caller: Caller, query: pb.ReceiveMessageRequest, ticket: Ticket[Received]) -> None:
        self._polls.pop(call, None)
        call.on_cancel = None
        error = ticket.error
        if error is not None:
            self._deliver(call, status_of(error), [])
            return
        found = ticket.result()
        if not found.messages:
            self._deliver(call, _NO_MESSAGE, [])
            return

        def return_messages(now: Now) -> None:
            self._receiving.return_messages(caller.client_id, query, found, now)

        if call.is_over:
            return_messages(self._now)
            return
        call.on_cancel = return_messages
        self._deliver(call, OK, found.messages)

    def _deliver(self, call: Call, status: pb.Status, messages: list[pb.Message]) -> None:
        self._count("ReceiveMessage", status.code)
        last = pb.ReceiveMessageResponse()
        last.delivery_timestamp.FromMilliseconds(self._now.wall_ms)
        responses = [
            pb.ReceiveMessageResponse(status=status),
            *(pb.ReceiveMessageResponse(message=message) for message in messages),
            last,
        ]
        call.send(*[response.SerializeToString() for response in responses])
        call.end()

    # Telemetry.

    def _stream_opened(self, call: Call, _now: Now) -> None:
        if self._is_leaving:
            call.end()
            return
        self._streams[call] = call.metadata.get(CLIENT_ID, "")
        call.on_end = lambda now: self._stream_ended(call, now)
        call.on_cancel = lambda now: self._stream_ended(call, now)

    def _stream_ended(self, call: Call, now: Now) -> None:
        client_id = self._streams.pop(call, "")  # a call that has ended has no metadata
        self._clients.stream_ended(client_id, call, now)
        call.end()

    def _telemetry(self, call: Call, message: bytes, now: Now) -> None:
        command = _decoded(pb.TelemetryCommand, call, message)
        if command is None:
            self._stream_ended(call, now)
            return
        caller = caller_of(call)
        if caller is None:
            missing = make_status(pb.Code.CLIENT_ID_REQUIRED, NO_CLIENT_ID)
            call.send(pb.TelemetryCommand(status=missing).SerializeToString())
            self._stream_ended(call, now)
        elif command.HasField("settings"):
            if call in self._settling:
                call.end(GrpcStatus.RESOURCE_EXHAUSTED, "settings follow settings that have not been answered")
                self._stream_ended(call, now)
                return
            self._settling[call] = None
            ticket = self._run(
                caller, command.settings, lambda caller, settings: self._clients.settings(caller, call, settings), now
            )
            ticket.then(partial(self._settings_taken, call, caller))
        else:
            self._clients.on_answer(call, command, now)

    def _settings_taken(self, call: Call, caller: Caller, ticket: Ticket[pb.Settings]) -> None:
        self._settling.pop(call, None)
        error = ticket.error
        if error is not None:
            self._count("Telemetry", code_of(error))
            self._streams.pop(call, None)
            self._clients.stream_ended(caller.client_id, call, self._now)
            if code_of(error) in _SAID_ON_STREAMS:
                call.send(pb.TelemetryCommand(status=status_of(error)).SerializeToString())
                call.end()
            else:
                call.end(GrpcStatus.INVALID_ARGUMENT, str(error))
            return
        self._count("Telemetry", pb.Code.OK)
        call.send(pb.TelemetryCommand(status=OK, settings=ticket.result()).SerializeToString())
        expected = self._clients.expect_checks(caller, self._transactions.expect_checks)
        self._runner.start(_guarded(expected), self._now)

    # All calls.

    @property
    def streams(self) -> int:
        """Number of telemetry streams that are remembered."""
        return len(self._streams)

    def forget_ended(self) -> None:
        """Forget streams that were ended elsewhere; to be called every few seconds."""
        for call in [call for call in self._streams if call.is_over]:
            del self._streams[call]

    def leave(self, now: Now) -> None:
        """End the calls that wait, so that clients go elsewhere."""
        self._is_leaving = True
        for call in list(self._streams):
            self._stream_ended(call, now)
        for call in list(self._polls):
            self._polls.pop(call, None)
            call.on_cancel = None
            self._deliver(call, _NO_MESSAGE, [])


def caller_of(call: Call) -> Caller | None:
    """Return the client of a call; None if it has no valid id."""
    client_id = call.metadata.get(CLIENT_ID, "")
    if not 0 < len(client_id) <= CLIENT_ID_CHARACTERS_MAX:
        return None
    metadata = call.metadata
    authorization, date = metadata.get(AUTHORIZATION, ""), metadata.get(DATE, "")
    return Caller(client_id, call.peer, call.deadline_ms, authorization, date, call.link)


def _admitted(call: Call, size: int) -> Caller:
    """Return the client of a call.

    Raises:
        CallRefused: it has no valid id, or its request has too many bytes.
    """
    caller = caller_of(call)
    if caller is None:
        raise CallRefused(pb.Code.CLIENT_ID_REQUIRED, NO_CLIENT_ID)
    if size > REQUEST_BYTES_MAX:
        text = f"the request has {size} bytes, the maximum is {REQUEST_BYTES_MAX}"
        raise CallRefused(pb.Code.BAD_REQUEST, text)
    return caller


def _refuse_lite(_caller: Caller, _query: pb.SyncLiteSubscriptionRequest) -> Steps[pb.SyncLiteSubscriptionResponse]:
    raise CallRefused(pb.Code.UNSUPPORTED, "lite topics are not supported")
    yield  # an operation is a generator


M = TypeVar("M", bound=Message)


def _decoded(kind: type[M], call: Call, message: bytes) -> M | None:
    """Return a message; None after the call was ended because it cannot be decoded."""
    try:
        return kind.FromString(message)
    except DecodeError as error:
        call.end(GrpcStatus.INTERNAL, f"the message cannot be decoded: {error}")
        return None


def _guarded(steps: Steps[T]) -> Steps[T]:
    """Run an operation; a fault in it fails the call alone.

    Raises:
        TandemError: of the operation.
    """
    try:
        return (yield from steps)
    except TandemError:
        raise
    except Exception as error:
        log.exception("a call failed")
        raise CallRefused(pb.Code.INTERNAL_SERVER_ERROR, f"fault of the proxy: {error!r}") from error


def void(_value: object) -> None:
    """Ignore a value, in a lambda that must return None."""
