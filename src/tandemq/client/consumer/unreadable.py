"""Messages whose body cannot be decompressed: no zlib, another compression, or larger than the limit when it is.

A push consumer counts one as a failed consumption: it is sent back as the bytes that are stored, and ends in the dead
letter topic like a message whose handler always fails; an orderly consumer sends it there at once, since its queue
would stand still meanwhile. A broadcasting member and a pull consumer, which send nothing back, pass over it. Each time
it is logged here, at WARNING; `StoredMessage.fault` is the reason.

Consumers of a dead letter topic, and administration, get it: with its `fault`, and the stored bytes as body.
"""

import logging

from tandemq.model.message import MessageQueue, StoredMessage
from tandemq.model.topic import DLQ_PREFIX

log = logging.getLogger(__name__)
_SHOWN_MAX = 200


def is_rejected(queue: MessageQueue, message: StoredMessage) -> bool:
    """Whether a message is kept from the users of a consumer."""
    return bool(message.fault) and not queue.topic.startswith(DLQ_PREFIX)


def warn(group: str, queue: MessageQueue, message: StoredMessage, outcome: str) -> None:
    """Log that a message cannot be read, and what is done with it."""
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
