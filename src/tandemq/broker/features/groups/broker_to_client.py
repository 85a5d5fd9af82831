"""Requests of operators that a client answers: the broker relays them, and the responses back.

Source: docs/reference/requests.md, "relayed to clients"; RocketMQ AdminBrokerProcessor, Broker2Client.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tandemq.boundary import Now
from tandemq.broker.kernel.client_requests import Missing
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.state.proxied_consumers import ProxiedConsumers
from tandemq.codec.record.record import parse_message_id
from tandemq.codec.remoting.admin_requests import ConsumeDirectlyFields, RunningInfoFields, TopicGroupFields
from tandemq.codec.remoting.fastjson import Raw, dumps_java, loads
from tandemq.codec.remoting.frame import encode_command
from tandemq.codec.remoting.requests import read_fields
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

TIMEOUT_MS = 10_000
STATUS_TIMEOUT_MS = 5_000
STATUS_BYTES_MAX = 4 << 20
"""Maximum size of the offsets that the clients of a group report together; those of further clients are left out."""


@dataclass(slots=True)
class _StatusAnswer:
    """Offsets that clients reported, by client id."""

    missing: int
    """Number of clients that have not responded yet."""
    table: dict[str, dict[Raw, Any]] = field(default_factory=dict)
    room: int = field(default_factory=lambda: STATUS_BYTES_MAX)
    """Bytes that may still be reported."""


class Broker2ClientProcessor(Feature):
    """Relay requests of operators to clients, and their responses back."""

    def __init__(self, kernel: Kernel, proxied: ProxiedConsumers) -> None:
        """`proxied`: consumers behind proxies, which relay requests to them."""
        self._store = kernel.store
        self._topics = kernel.topics
        self._groups = kernel.groups
        self._clients = kernel.clients
        self._proxied = proxied
        self._client_calls = kernel.client_calls
        self._links = kernel.links
        self._current = kernel.current
        self._turn = kernel.turn

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {
            Code.GET_CONSUMER_RUNNING_INFO: Request(self._on_running_info),
            Code.CONSUME_MESSAGE_DIRECTLY: Request(self._on_consume_directly),
            Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Request(self._on_consumer_status),
        }

    def _on_running_info(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(RunningInfoFields, command.fields)
        return self._pass_on(link, command, fields.consumer_group, fields.client_id, command.fields, command.body, now)

    def _on_consume_directly(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(ConsumeDirectlyFields, command.fields)
        _, log_offset = parse_message_id(fields.msg_id)
        found = self._store.queued_record_at(log_offset)
        if found is None:
            return command.answer(
                ResponseCode.SYSTEM_ERROR, remark=f"there is no message {fields.msg_id} in this broker's log"
            )
        passed = command.fields | {"brokerName": self._current.config.broker_name}
        topic = self._topics.get(fields.topic) if fields.topic else None
        if topic is not None:
            passed["topicSysFlag"] = str(topic.config.topic_sys_flag)
        group = self._groups.table.get(fields.consumer_group)
        if group is not None:
            passed["groupSysFlag"] = str(group.group_sys_flag)
        return self._pass_on(link, command, fields.consumer_group, fields.client_id, passed, found[1], now)

    def _pass_on(
        self, link: Link, command: Command, group: str, client_id: str, fields: dict[str, str], body: bytes, now: Now
    ) -> Command | None:
        member = self._clients.find(group, client_id) or self._proxied.find(group, client_id)
        if member is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=f"The Consumer <{group}> <{client_id}> not online")

        def on_answer(answer: Command | Missing, _now: Now) -> None:
            if isinstance(answer, Missing):
                code = ResponseCode.CONSUME_MSG_TIMEOUT if answer is Missing.LATE else ResponseCode.SYSTEM_ERROR
                self._answer(link, command.answer(code, remark=f"consumer <{group}> <{client_id}>: {answer.value}"))
            else:
                self._answer(
                    link, command.answer(answer.code, remark=answer.remark, fields=answer.fields, body=answer.body)
                )

        request, command = Command(command.code, fields=fields, body=body), command.head()
        self._client_calls.call(member.link, request, TIMEOUT_MS, on_answer, self._turn.out, now)
        return None

    def _answer(self, link: Link, answer: Command) -> None:
        """Send a response to the operator, if the connection is still open."""
        if link.number in self._links:
            self._turn.out.send(link.number, encode_command(answer))

    def _on_consumer_status(self, link: Link, command: Command, now: Now) -> Command | None:
        """Request the offsets of every member of a group, or of one; respond when all have responded or timed out."""
        fields = read_fields(TopicGroupFields, command.fields)
        group = self._clients.consumers.get(fields.group)
        if group is None:
            return command.answer(
                ResponseCode.SYSTEM_ERROR, remark=f"No Any Consumer online in the consumer group: [{fields.group}]"
            )
        asked = [m for m in group.members.values() if fields.client_addr.strip() in ("", m.client_id)]
        status = _StatusAnswer(len(asked))
        request_fields = {"topic": fields.topic, "group": fields.group}

        def on_answer(client_id: str, answer: Command | Missing, _now: Now) -> None:
            status.missing -= 1
            if not isinstance(answer, Missing):
                status.room -= len(answer.body)
            offsets = _reported_offsets(answer) if status.room >= 0 else None
            if offsets is not None:
                status.table[client_id] = offsets
            if not status.missing:
                self._answer(link, _status(command, status))

        for member in asked:
            self._client_calls.call(
                member.link,
                Command(Code.GET_CONSUMER_STATUS_FROM_CLIENT, fields=dict(request_fields)),
                STATUS_TIMEOUT_MS,
                partial(on_answer, member.client_id),
                self._turn.out,
                now,
            )
        return None if asked else _status(command, status)


def _status(command: Command, status: _StatusAnswer) -> Command:
    return command.answer(ResponseCode.SUCCESS, body=dumps_java({"consumerTable": status.table}))


def _reported_offsets(answer: Command | Missing) -> dict[Raw, Any] | None:
    """Return the offsets by queue of a client's response; None if it contains none."""
    if isinstance(answer, Missing) or answer.code != ResponseCode.SUCCESS or not answer.body:
        return None
    try:
        body = loads(answer.body)
    except ProtocolError:
        return None
    table = body.get("messageQueueTable") if isinstance(body, dict) else None
    if not isinstance(table, dict):
        return None
    return {Raw(key): offset for key, offset in table.items() if key.startswith("{")}
