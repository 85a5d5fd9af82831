"""Commands of operators to consumers: brokers relay them to the proxy, and the proxy on the client's telemetry stream.

    309 consume a message directly ─► VerifyMessageCommand ─► VerifyMessageResult ─► response to the broker
    307 running information ─┬─ with thread stacks ─► PrintThreadStackTraceCommand ─► ThreadStackTrace ─► response
                             └─ without ─► response at once, of what the client's settings say

    no answer within `COMMAND_MS`, or the stream ends ─► an error that says so

A command has a nonce, which only the stream that it was sent on can answer, and only once; other answers are dropped.

Source: docs/reference/grpc.md, "What operators see"; RocketMQ ProxyChannel, GrpcClientChannel, ClientActivity.
"""

import logging
from functools import partial
from random import Random
from typing import Any, NamedTuple

from tandemq.boundary import Now
from tandemq.client.core.calls import Timer, Timers
from tandemq.client.core.connections import RemotingClient
from tandemq.codec.record.record import decode_message
from tandemq.codec.remoting.fastjson import dumps, dumps_java
from tandemq.grpc.server import Call
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import RETRY_TOPIC
from tandemq.model.proxied import ProxiedKey
from tandemq.model.topic import RETRY_PREFIX
from tandemq.proxy.clients import GrpcClients
from tandemq.proxy.consumers import GrpcConsumer
from tandemq.proxy.messages import received
from tandemq.proxy.names import resource_of
from tandemq.proxy.protocol.messaging_pb2 import (
    Code,
    PrintThreadStackTraceCommand,
    Status,
    TelemetryCommand,
    ThreadStackTrace,
    VerifyMessageCommand,
    VerifyMessageResult,
)

log = logging.getLogger(__name__)
COMMAND_MS = 4_500
"""How long a client may take: mqadmin waits for 5 s, brokers for 10."""
WAITING_MAX = 1_000
"""Maximum number of commands that wait."""
STACKS_CHARACTERS_MAX = 1 << 20
TEXT_CHARACTERS_MAX = 500
"""Of what a client says in an error."""
_RESULTS = {
    Code.OK: "CR_SUCCESS",
    Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}
"""Outcomes of a consumption, as operators know them."""


class _Waiting(NamedTuple):
    """A command that a client has not answered."""

    address: str
    """Of the broker."""
    request: Command
    client_id: str
    consumer: GrpcConsumer
    stream: Call
    began_ms: int
    timer: Timer


class ClientCommands:
    """Commands of brokers to consumers, and their answers."""

    def __init__(
        self,
        clients: GrpcClients,
        remoting: RemotingClient,
        timers: Timers,
        random: Random,
        name_servers: tuple[str, ...],
    ) -> None:
        """`name_servers`: those of the proxy."""
        self._clients = clients
        self._remoting = remoting
        self._timers = timers
        self._random = random
        self._name_servers = name_servers
        self._waiting: dict[str, _Waiting] = {}
        """By nonce."""
        self.sent = 0
        """Number of commands sent to clients."""

    @property
    def waiting(self) -> int:
        """Number of commands that no client has answered."""
        return len(self._waiting)

    # Requests of brokers; see `client_remoting_processor.Handler`.

    def consume_directly(self, address: str, request: Command, now: Now) -> Command | None:
        """Have a client consume one message."""
        found = self._find(request)
        if isinstance(found, Command):
            return found
        client_id, consumer, stream = found
        if not consumer.is_push:
            return _error(request, f"the client {client_id} is no push consumer: it consumes no message on request")
        message = decode_message(request.body, 0, len(request.body))
        topic = message.topic
        if topic.startswith(RETRY_PREFIX):
            topic = message.properties.get(RETRY_TOPIC, topic)
        content = received(message, resource_of(topic), "", message.reconsume_times + 1)
        nonce = self._expect(address, request, client_id, consumer, stream, now)
        _send(stream, TelemetryCommand(verify_message_command=VerifyMessageCommand(nonce=nonce, message=content)))
        return None

    def running_info(self, address: str, request: Command, now: Now) -> Command | None:
        """Return what is known of a consumer, or ask it for the stacks of its threads first."""
        found = self._find(request)
        if isinstance(found, Command):
            return found
        client_id, consumer, stream = found
        if request.fields.get("jstackEnable") != "true":
            return request.answer(ResponseCode.SUCCESS, body=self._info(consumer))
        nonce = self._expect(address, request, client_id, consumer, stream, now)
        command = PrintThreadStackTraceCommand(nonce=nonce)
        _send(stream, TelemetryCommand(print_thread_stack_trace_command=command))
        return None

    def _find(self, request: Command) -> tuple[str, GrpcConsumer, Call] | Command:
        """Return the client that a request is for, or the response if it cannot be asked."""
        group, client_id = request.fields["consumerGroup"], request.fields["clientId"]
        found = self._clients.consumer(ProxiedKey(group, client_id))
        if found is None:
            return _error(request, f"the consumer <{group}> <{client_id}> has no stream at this proxy any more")
        if len(self._waiting) >= WAITING_MAX:
            return request.answer(ResponseCode.SYSTEM_BUSY, remark=f"{WAITING_MAX} commands to clients wait already")
        return client_id, *found

    def _expect(
        self, address: str, request: Command, client_id: str, consumer: GrpcConsumer, stream: Call, now: Now
    ) -> str:
        """Return the nonce of a command, whose answer is awaited from now on."""
        nonce = f"{self._random.getrandbits(128):032x}"
        timer = self._timers.at(now.mono_ms + COMMAND_MS, partial(self._late, nonce))
        self._waiting[nonce] = _Waiting(address, request, client_id, consumer, stream, now.mono_ms, timer)
        self.sent += 1
        return nonce

    def _info(self, consumer: GrpcConsumer, **more: Any) -> bytes:
        return dumps_java(consumer.running_info(self._name_servers) | more)

    # Answers of clients.

    def take_answer(self, stream: Call, answer: TelemetryCommand, now: Now) -> None:
        """Take what a client says on its stream; what answers no command is dropped."""
        if answer.HasField("verify_message_result"):
            self._take_result(stream, answer.status, answer.verify_message_result, now)
        elif answer.HasField("thread_stack_trace"):
            self._take_stacks(stream, answer.status, answer.thread_stack_trace)

    def _take_result(self, stream: Call, status: Status, result: VerifyMessageResult, now: Now) -> None:
        """Take the outcome of a consumption."""
        waiting = self._take(stream, result.nonce, RequestCode.CONSUME_MESSAGE_DIRECTLY)
        if waiting is None:
            return
        outcome = _RESULTS.get(status.code)
        if outcome is None:
            self._respond(waiting, _refusal(waiting, status))
            return
        body = {
            "autoCommit": True,
            "consumeResult": outcome,
            "order": waiting.consumer.is_ordered,
            "remark": _text(status) or "from a gRPC client",
            "spentTimeMills": now.mono_ms - waiting.began_ms,
        }
        self._respond(waiting, waiting.request.answer(ResponseCode.SUCCESS, body=dumps(body)))

    def _take_stacks(self, stream: Call, status: Status, trace: ThreadStackTrace) -> None:
        """Take the stacks of a client's threads."""
        waiting = self._take(stream, trace.nonce, RequestCode.GET_CONSUMER_RUNNING_INFO)
        if waiting is None:
            return
        if status.code != Code.OK:
            self._respond(waiting, _refusal(waiting, status))
            return
        body = self._info(waiting.consumer, jstack=trace.thread_stack_trace[:STACKS_CHARACTERS_MAX])
        self._respond(waiting, waiting.request.answer(ResponseCode.SUCCESS, body=body))

    def _take(self, stream: Call, nonce: str, code: RequestCode) -> _Waiting | None:
        """Return the command that is answered; None if none with this nonce was sent on the stream, or has been."""
        waiting = self._waiting.get(nonce)
        if waiting is None or waiting.stream is not stream or waiting.request.code != code:
            log.debug("peer=%s: an answer to no command", stream.peer)
            return None
        del self._waiting[nonce]
        waiting.timer.cancel()
        return waiting

    def stream_ended(self, stream: Call) -> None:
        """End the commands that wait for an answer on a stream."""
        for nonce, waiting in [each for each in self._waiting.items() if each[1].stream is stream]:
            del self._waiting[nonce]
            waiting.timer.cancel()
            self._respond(waiting, _error(waiting.request, f"the client {waiting.client_id} has gone"))

    def _late(self, nonce: str, _now: Now) -> None:
        waiting = self._waiting.pop(nonce)
        text = f"the client {waiting.client_id} did not answer within {COMMAND_MS / 1000} s"
        self._respond(waiting, waiting.request.answer(ResponseCode.CONSUME_MSG_TIMEOUT, remark=text))

    def _respond(self, waiting: _Waiting, answer: Command) -> None:
        self._remoting.answer(waiting.address, waiting.request, answer)


def _send(stream: Call, command: TelemetryCommand) -> None:
    stream.send(command.SerializeToString())


def _error(request: Command, text: str) -> Command:
    return request.answer(ResponseCode.SYSTEM_ERROR, remark=text)


def _refusal(waiting: _Waiting, status: Status) -> Command:
    """Return the response if a client refuses a command."""
    name = Code.Name(status.code) if status.code in Code.values() else str(status.code)
    return _error(waiting.request, f"the client {waiting.client_id} answers {name} {_text(status)}".rstrip())


def _text(status: Status) -> str:
    return status.message[:TEXT_CHARACTERS_MAX]
