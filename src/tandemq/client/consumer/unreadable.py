"""Messages whose body cannot be decompressed: invalid zlib data, another compression, or too large decompressed.

A push consumer treats such a message like one whose handler always fails: it is sent back with its stored bytes, and
ends in the dead letter topic; an orderly consumer sends it there at once, since its queue would stop meanwhile. A
broadcasting member and a pull consumer, which send nothing back, skip it. Each time it is logged here at WARNING,
with the reason in `StoredMessage.fault`.

Consumers of a dead letter topic and the administration client get it, with its `fault` and the stored bytes as body.
"""

import logging

from tandemq.model.message import MessageQueue, StoredMessage
from tandemq.model.topic import DLQ_PREFIX

log = logging.getLogger(__name__)
_SHOWN_MAX = 200


def is_rejected(queue: MessageQueue, message: StoredMessage) -> bool:
    """Return whether a message is unreadable and not delivered to the user."""
    return bool(message.fault) and not queue.topic.startswith(DLQ_PREFIX)


def warn(group: str, queue: MessageQueue, message: StoredMessage, outcome: str) -> None:
    """Log an unreadable message. `outcome`: what the consumer does with it."""
    log.warning(
        "unreadable message %s group=%s topic=%s broker=%s queue=%d offset=%d keys=%.*r uniqueKey=%.*r reason=%s",
        outcome,
        group,
        queue.topic,
        queue.broker_name,
        queue.queue_id,
        message.queue_offset,
        _SHOWN_MAX,
        " ".join(message.keys),
        _SHOWN_MAX,
        message.unique_key,
        message.fault,
    )
