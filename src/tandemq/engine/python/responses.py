"""Responses to sends, as a client receives them.

The compiled engine leaves more responses to the general decoder than this code does: those whose header a broker does
not write like that, with a repeated name for instance.
"""

from struct import Struct

from tandemq.codec.remoting.header import FORM_JSON, decode_header
from tandemq.errors import ProtocolError
from tandemq.model.codes import ResponseCode
from tandemq.model.command import FLAG_RESPONSE
from tandemq.model.java_types import INT32_MAX

StoredSend = tuple[int, int, int, str, int]
"""Opaque, queue id, queue offset, msgId of the response, end of the frame."""
_PREFIX = Struct(">II")
_OFFSET_DIGITS_MAX = 18


def stored_sends(data: bytes, start: int, frame_bytes_max: int) -> tuple[list[StoredSend], int]:
    """Return the responses to stored single messages from `start` on, and where the first other frame begins.

    Taken are whole frames without a body, with a JSON header, code SUCCESS and the fields msgId, queueId and
    queueOffset; a field recallHandle makes it another frame.
    """
    found: list[StoredSend] = []
    while 0 <= start <= len(data) - _PREFIX.size:
        length, header_bytes = _PREFIX.unpack_from(data, start)
        end = start + 4 + length
        if header_bytes + 4 != length or end > len(data) or length + 4 > frame_bytes_max:
            break
        stored = _stored(data[start + 8 : end], end)
        if stored is None:
            break
        found.append(stored)
        start = end
    return found, start


def _stored(header: bytes, end: int) -> StoredSend | None:
    try:
        command = decode_header(FORM_JSON, header, b"")
    except ProtocolError:
        return None
    fields = command.fields
    msg_id, queue_id, offset = fields.get("msgId"), fields.get("queueId", ""), fields.get("queueOffset", "")
    if command.code != ResponseCode.SUCCESS or command.flag != FLAG_RESPONSE or msg_id is None or "," in msg_id:
        return None
    if "recallHandle" in fields or not (_is_number(queue_id) and _is_number(offset)) or int(queue_id) > INT32_MAX:
        return None
    return command.opaque, int(queue_id), int(offset), msg_id, end


def _is_number(text: str) -> bool:
    """Whether a text is a decimal number as Java writes it, of at most 18 digits and not negative."""
    is_short = 0 < len(text) <= _OFFSET_DIGITS_MAX
    return is_short and text.isascii() and text.isdigit() and (text == "0" or text[0] != "0")
