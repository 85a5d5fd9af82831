"""Handles and acknowledgements of popped messages, as clients make them from responses of brokers."""

import base64
import json
from collections.abc import Iterable, Mapping

from tandemq.model.message import StoredMessage
from tandemq.model.pop import POP_CK, Handle, TopicKind, parse_handle


def handle_of(message: StoredMessage, fields: Mapping[str, str], broker: str) -> Handle:
    """Return the handle of a message in a response to a pop.

    Args:
        message: it.
        fields: of the response.
        broker: name of the broker group.
    """
    made = message.properties.get(POP_CK)
    if made is not None:
        return parse_handle(made)
    starts = {
        (int(kind), int(queue_id)): int(start)
        for kind, queue_id, start in (part.split(" ") for part in fields["startOffsetInfo"].split(";"))
    }
    return Handle(
        starts[0, message.queue_id],
        int(fields["popTime"]),
        int(fields["invisibleTime"]),
        int(fields["reviveQid"]),
        TopicKind.NORMAL,
        broker,
        message.queue_id,
        message.queue_offset,
    )


def batch_ack_body(group: str, topic: str, broker: str, handles: Iterable[Handle]) -> bytes:
    """Return the body of BATCH_ACK_MESSAGE: messages of one pop and queue are one entry with a bit for each."""
    bits: dict[Handle, int] = {}
    for handle in handles:
        same = handle._replace(offset=0)
        bits[same] = bits.get(same, 0) | 1 << handle.offset - handle.start_offset
    entries = [
        {
            "b": base64.b64encode(number.to_bytes((number.bit_length() + 7) // 8, "little")).decode(),
            "c": group,
            "it": handle.invisible_ms,
            "pt": handle.pop_ms,
            "q": handle.queue_id,
            "r": str(int(handle.kind)),
            "rq": handle.revive_queue,
            "so": handle.start_offset,
            "t": topic,
        }
        for handle, number in bits.items()
    ]
    return json.dumps({"acks": entries, "brokerName": broker}).encode()
