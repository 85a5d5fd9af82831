"""Receipt handles: what a client names a message by, to acknowledge it or to change when it comes back.

    handle = the handle of the broker ‖ log offset of the record       5 1795447195481 10000 4 0 broker-a 0 5 16818

Source: docs/reference/grpc.md; RocketMQ ReceiptHandle.
"""

import re
from typing import NamedTuple

from tandemq.codec.remoting import pops
from tandemq.errors import ProtocolError
from tandemq.model.command import Command
from tandemq.model.pop import Handle, TopicKind, parse_handle
from tandemq.proxy.protocol.messaging_pb2 import Code
from tandemq.proxy.status import CallRefused

HANDLE_CHARACTERS_MAX = 1_000
_LOG_OFFSET_MAX = 1 << 63


_USUAL = re.compile(
    r"(\d{1,19}) (\d{1,19}) (\d{1,19}) (\d{1,9}) ([012]) ([^ ]+) (\d{1,9}) (\d{1,19}) (\d{1,19})", re.ASCII
)
"""A handle as this proxy makes them."""
_KINDS = {str(int(kind)): kind for kind in TopicKind}


class Receipt(NamedTuple):
    """A received message, as its handle names it."""

    handle: Handle
    log_offset: int | None
    """Of the record; None: the handle has none."""

    def __str__(self) -> str:
        """Return the text that clients get."""
        return str(self.handle) if self.log_offset is None else f"{self.handle} {self.log_offset}"


def parse_receipt(text: str) -> Receipt:
    """Return the message that a handle names.

    Raises:
        CallRefused: it is no handle.
    """
    found = _USUAL.fullmatch(text) if len(text) <= HANDLE_CHARACTERS_MAX else None
    if found is not None:
        broker, kind = found[6], _KINDS[found[5]]
        start, pop, invisible, revive, queue_id, offset, log_offset = map(int, found.group(1, 2, 3, 4, 7, 8, 9))
        if start <= offset and log_offset < _LOG_OFFSET_MAX:
            return Receipt(Handle(start, pop, invisible, revive, kind, broker, queue_id, offset), log_offset)
    return _any_receipt(text)


def _any_receipt(text: str) -> Receipt:
    """Return the message that a handle names which is not as this proxy makes them, or the reason why it is none."""
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
    return pops.ack_request(receipt.handle, group, topic)


def change_request(
    receipt: Receipt, group: str, topic: str, invisible_ms: int, *, is_suspended: bool = False
) -> Command:
    """Return the request that makes a message visible so long after now."""
    return pops.change_request(receipt.handle, group, topic, invisible_ms, is_suspended=is_suspended)


def changed_receipt(receipt: Receipt, answer: Command) -> Receipt:
    """Return the receipt of a message whose time was changed.

    Raises:
        ProtocolError: the response has no valid fields.
    """
    return receipt._replace(handle=pops.changed_handle(receipt.handle, answer))


def dead_letter_request(receipt: Receipt, group: str, topic: str, message_id: str) -> Command:
    """Return the request that stores a message in the group's topic of dead letters.

    Raises:
        CallRefused: the handle does not say where the record is.
    """
    if receipt.log_offset is None:
        raise CallRefused(Code.INVALID_RECEIPT_HANDLE, "the receipt handle has no log offset")
    return pops.dead_letter_request(receipt.handle, receipt.log_offset, group, topic, message_id)
