"""Receipt handles: what a client names a message by, to acknowledge it or to change when it comes back.

    handle = the handle of the broker ‖ log offset of the record       5 1795447195481 10000 4 0 broker-a 0 5 16818

Source: docs/reference/grpc.md; RocketMQ ReceiptHandle.
"""

from typing import NamedTuple

from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.pop import Handle, parse_handle, pop_retry_topic
from tandemq.proxy.protocol.messaging_pb2 import Code
from tandemq.proxy.status import CallRefused

HANDLE_CHARACTERS_MAX = 1_000
_LOG_OFFSET_MAX = 1 << 63


class Receipt(NamedTuple):
    """A received message, as its handle names it."""

    handle: Handle
    log_offset: int | None
    """Of the record; None: the handle has none."""

    def __str__(self) -> str:
        """Return the text that clients get."""
        return str(self.handle) if self.log_offset is None else f"{self.handle} {self.log_offset}"

    def topic(self, group: str, topic: str) -> str:
        """Return the topic in which the message lies: that of the client, or the group's topic of retries."""
        return pop_retry_topic(group, topic, self.handle.kind)


def parse_receipt(text: str) -> Receipt:
    """Return the message that a handle names.

    Raises:
        CallRefused: it is no handle.
    """
    try:
        if len(text) > HANDLE_CHARACTERS_MAX:
            raise ProtocolError(f"a receipt handle of {len(text)} characters")
        handle = parse_handle(text)
    except ProtocolError as error:
        raise CallRefused(Code.INVALID_RECEIPT_HANDLE, str(error)) from error
    ninth = text.split(" ")[8:9]
    if not ninth:
        return Receipt(handle, None)
    offset = ninth[0]
    if not (offset.isascii() and offset.isdecimal() and len(offset) <= 19 and int(offset) < _LOG_OFFSET_MAX):
        raise CallRefused(Code.INVALID_RECEIPT_HANDLE, "the receipt handle has no valid log offset")
    return Receipt(handle, int(offset))


def check_current(receipt: Receipt, wall_ms: int) -> None:
    """Check that the message of a handle is still invisible to others.

    Raises:
        CallRefused: its time is over.
    """
    if receipt.handle.revive_ms <= wall_ms:
        late_ms = wall_ms - receipt.handle.revive_ms
        raise CallRefused(Code.INVALID_RECEIPT_HANDLE, f"INVALID_RECEIPT_HANDLE: it has expired {late_ms} ms ago")


def ack_request(receipt: Receipt, group: str, topic: str) -> Command:
    """Return the request that acknowledges a message."""
    return Command(RequestCode.ACK_MESSAGE, fields=_named(receipt, group, topic))


def change_request(receipt: Receipt, group: str, topic: str, invisible_ms: int) -> Command:
    """Return the request that makes a message visible so long after now."""
    fields = _named(receipt, group, topic) | {"invisibleTime": str(invisible_ms)}
    return Command(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields=fields)


def changed_receipt(receipt: Receipt, answer: Command) -> Receipt:
    """Return the receipt of a message whose time was changed.

    Raises:
        ProtocolError: the response has no valid fields.
    """
    old = receipt.handle
    try:
        pop_ms, invisible_ms = int(answer.fields["popTime"]), int(answer.fields["invisibleTime"])
        revive_queue = int(answer.fields["reviveQid"])
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"the response to a changed invisible time is invalid: {error!r}") from error
    if not pop_ms:
        return receipt  # of an ordered pop whose message was acknowledged meanwhile
    return receipt._replace(
        handle=Handle(old.offset, pop_ms, invisible_ms, revive_queue, old.kind, old.broker, old.queue_id, old.offset)
    )


def dead_letter_request(receipt: Receipt, group: str, topic: str, message_id: str) -> Command:
    """Return the request that stores a message in the group's topic of dead letters.

    Raises:
        CallRefused: the handle does not say where the record is.
    """
    if receipt.log_offset is None:
        raise CallRefused(Code.INVALID_RECEIPT_HANDLE, "the receipt handle has no log offset")
    fields = {
        "offset": str(receipt.log_offset),
        "group": group,
        "delayLevel": "-1",
        "originMsgId": message_id,
        "originTopic": receipt.topic(group, topic),
        "maxReconsumeTimes": "0",
        "unitMode": "false",
    }
    return Command(RequestCode.CONSUMER_SEND_MSG_BACK, fields=fields)


def _named(receipt: Receipt, group: str, topic: str) -> dict[str, str]:
    handle = receipt.handle
    return {
        "consumerGroup": group,
        "topic": receipt.topic(group, topic),
        "queueId": str(handle.queue_id),
        "offset": str(handle.offset),
        "extraInfo": str(handle),
    }
