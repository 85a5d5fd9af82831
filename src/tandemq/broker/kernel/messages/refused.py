"""A send that is refused."""

from tandemq.codec.record.record import CRC_PROPERTY_BYTES, PROPERTIES_BYTES_MAX
from tandemq.model.codes import ResponseCode
from tandemq.model.message import encode_properties


class SendRefused(Exception):
    """A refused send: code and remark of the response."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        """Keep the response's code and remark."""
        super().__init__(remark)
        self.code = code
        self.remark = remark


def check_room(properties: dict[str, str], added_bytes: int, kind: str) -> None:
    """Refuse a message whose properties leave no room for the properties that a broker adds later.

    Args:
        properties: of the message.
        added_bytes: of the properties that are added, encoded.
        kind: what the message is, for the remark.

    Raises:
        SendRefused: there is no room.
    """
    size = len(encode_properties(properties).encode()) + CRC_PROPERTY_BYTES + added_bytes
    if size > PROPERTIES_BYTES_MAX:
        raise SendRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the properties take {size} bytes with those of {kind}, at most {PROPERTIES_BYTES_MAX} fit",
        )
