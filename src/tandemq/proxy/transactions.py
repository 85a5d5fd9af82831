"""GrpcTransactions of clients: their ends, and the checks of brokers, which a producer of the topic answers.

    half message sent ─► id "queue offset, log offset, broker" ─► EndTransaction: all that the broker needs is in it
    check of a broker ─► a client that publishes the topic ─► RecoverOrphanedTransaction ─► EndTransaction

So any proxy can end a transaction that another one began. The producer group of half messages is their topic. The
proxy takes part in the group of each topic to which its clients send half messages.

Source: docs/reference/grpc.md; RocketMQ EndTransactionActivity, TransactionProcessor.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.client.core.operations import Steps, refusal
from tandemq.client.node import ClientNode
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import REAL_TOPIC, SendResult, StoredMessage
from tandemq.model.transactions import TransactionState
from tandemq.proxy.brokers import Brokers
from tandemq.proxy.messages import received
from tandemq.proxy.names import Caller, resource_of, topic_of
from tandemq.proxy.protocol.messaging_pb2 import (
    Code,
    EndTransactionRequest,
    EndTransactionResponse,
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
    TransactionResolution,
    TransactionSource,
)
from tandemq.proxy.status import OK, CallRefused

log = logging.getLogger(__name__)
ID_CHARACTERS_MAX = 500
_NUMBER_DIGITS_MAX = 19
_NUMBER_END = 1 << 63


class TransactionId(NamedTuple):
    """Place of a half message."""

    queue_offset: int
    log_offset: int
    broker: str

    def __str__(self) -> str:
        """Return the text that clients get."""
        return f"{self.queue_offset}-{self.log_offset}-{self.broker}"


def parse_id(text: str) -> TransactionId:
    """Return the half message that the id of a transaction names.

    Raises:
        CallRefused: it is no such id.
    """
    parts = text.split("-", 2)
    is_valid = len(text) <= ID_CHARACTERS_MAX and len(parts) == 3 and bool(parts[2])
    if not is_valid or not all(_is_number(part) for part in parts[:2]):
        raise CallRefused(Code.INVALID_TRANSACTION_ID, f"{text[:100]!r} is no id of a transaction")
    return TransactionId(int(parts[0]), int(parts[1]), parts[2])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _NUMBER_DIGITS_MAX and int(text) < _NUMBER_END


class GrpcTransactions:
    """Ends and checks of transactions."""

    def __init__(
        self, node: ClientNode, brokers: Brokers, tell_producer: Callable[[str, TelemetryCommand], bool]
    ) -> None:
        """Begin.

        Args:
            node: takes part in producer groups.
            brokers: the brokers.
            tell_producer: sends a command to a client that publishes a topic; returns whether there is one.
        """
        self._node = node
        self._routes = node.routes
        self._brokers = brokers
        self._tell_producer = tell_producer
        self._expected: dict[str, None] = {}
        """Topics in whose producer groups the proxy takes part."""
        self.checked = 0
        """Number of checks that were handed to clients."""

    def id_of(self, half: SendResult) -> str:
        """Return the id of the transaction of a stored half message."""
        log_offset = int(half.offset_message_id[-16:], 16)
        return str(TransactionId(half.queue_offset, log_offset, half.queue.broker_name))

    def expect_checks(self, topic: str, now: Now) -> None:
        """Take part in the producer group of a topic, so that brokers send checks of its transactions here."""
        self._expected[topic] = None
        self._node.answer_checks(topic, self._take_check, now)

    def forget_unpublished(self, published: set[str], now: Now) -> None:
        """Leave the producer groups of topics that no client publishes: another proxy has producers for their checks.

        To be called every few seconds; `published`: topics that clients publish.
        """
        for topic in [topic for topic in self._expected if topic not in published]:
            del self._expected[topic]
            self._node.leave_checks(topic, now)

    def end(self, caller: Caller, query: EndTransactionRequest) -> Steps[EndTransactionResponse]:
        """End a transaction.

        Raises:
            CallRefused: the id is none, or the outcome is missing.
            TandemError: the broker does not end it.
        """
        topic = topic_of(query.topic)
        queue_offset, log_offset, broker = parse_id(query.transaction_id)
        states = {
            TransactionResolution.COMMIT: TransactionState.COMMIT,
            TransactionResolution.ROLLBACK: TransactionState.ROLLBACK,
        }
        state = states.get(query.resolution)
        if state is None:
            raise CallRefused(Code.BAD_REQUEST, "the resolution must be COMMIT or ROLLBACK")
        is_answer = query.source == TransactionSource.SOURCE_SERVER_CHECK
        fields = {
            "producerGroup": topic,
            "tranStateTableOffset": str(queue_offset),
            "commitLogOffset": str(log_offset),
            "commitOrRollback": str(int(state)),
            "fromTransactionCheck": "true" if is_answer else "false",
            "msgId": query.message_id,
            "transactionId": query.message_id,
            "topic": topic,
            "bname": broker,
        }
        answer = yield from self._brokers.ask_master(
            topic, broker, lambda _now: Command(RequestCode.END_TRANSACTION, fields=fields), caller.deadline_ms
        )
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer)
        return EndTransactionResponse(status=OK)

    def _take_check(self, address: str, message: StoredMessage, fields: dict[str, str], _now: Now) -> None:
        topic = message.properties.get(REAL_TOPIC, "")
        broker = self._routes.name_of(address)
        offset = fields.get("tranStateTableOffset", "")  # of the half message that the broker has stored for this check
        log_offset = fields.get("commitLogOffset", "")
        if broker is None or not _is_number(offset) or not _is_number(log_offset):
            log.warning("check of a transaction cannot be read address=%s topic=%.127s", address, topic)
            return
        name = TransactionId(int(offset), int(log_offset), broker)
        command = TelemetryCommand(
            recover_orphaned_transaction_command=RecoverOrphanedTransactionCommand(
                message=received(message, resource_of(topic), "", 1), transaction_id=str(name)
            )
        )
        if self._tell_producer(topic, command):
            self.checked += 1
