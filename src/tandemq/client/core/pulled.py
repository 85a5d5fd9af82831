"""Messages in the body of a pull response."""

from typing import NamedTuple

from tandemq.codec.record.record import INFLATED_BYTES_MAX, read_message
from tandemq.engine import stored_messages
from tandemq.errors import ProtocolError
from tandemq.model.message import StoredMessage, SysFlag

_COMPRESSED = int(SysFlag.COMPRESSED)


class PulledMessages(NamedTuple):
    """Messages in the body of a pull response."""

    messages: list[StoredMessage]
    """Messages before `end`, including those whose body cannot be decompressed; see `StoredMessage.fault`."""
    end: int
    """Number of bytes read: all, unless a record is damaged or the decompressed bodies exceed the limit."""
    damage: str
    """Damage of the record at `end`; "" if it is sound."""


def decode_pulled(data: bytes, bytes_max: int = INFLATED_BYTES_MAX) -> PulledMessages:
    """Decode the messages in the body of a pull response, up to the first damaged record.

    Stops before the message with which the decompressed bodies exceed `bytes_max`, `INFLATED_BYTES_MAX` at most, but
    returns at least one message: a response of 1 MiB can inflate to 1 GiB.
    """
    bytes_max = min(bytes_max, INFLATED_BYTES_MAX)
    messages: list[StoredMessage] = []
    position, end, inflated = 0, len(data), 0
    while position < end:
        found, position = stored_messages(data, position)
        messages += found
        if position >= end:
            break
        # A compressed message, or a damaged record.
        try:
            message = read_message(data, position, end)
        except ProtocolError as error:
            return PulledMessages(messages, position, str(error))
        if message.sys_flag & _COMPRESSED:
            inflated += len(message.body)
            if inflated > bytes_max and messages:
                break
        messages.append(message)
        position += message.size
    return PulledMessages(messages, position, "")
