"""Table of the properties of a message: the meaning of each to a broker.

Both engines and the decoded path of sends read it; a property that is not in it is stored and means nothing.
Source: docs/reference/compatibility.md; RocketMQ MessageConst.
"""

from enum import IntEnum

from tandemq.model import message as names


class Meaning(IntEnum):
    """Meaning of a property to a broker. From `LEFT` on the engine leaves a send that has it to the decoded path."""

    PLAIN = 0
    UNIQUE_KEY = 1
    KEYS = 2
    TAGS = 3
    WAIT = 4
    """Whether the response waits for flush and replicas; not stored."""
    DELAY_LEVEL = 5
    PRODUCER_GROUP = 6
    IS_HALF = 7
    DELAY_SECONDS = 8
    DELAY_MS = 9
    DELIVER_AT_MS = 10
    PRIORITY = 11
    SHARDING_KEY = 12
    LEFT = 13
    """Meaning of no property: the following are of properties that brokers set or that are rare in sends."""
    CRC = 14
    REAL_TOPIC = 15
    REAL_QUEUE = 16
    IMMUNITY = 17
    TIMER_OUT = 18
    TIMER_DELETE = 19
    TIMER_ROLLS = 20
    TIMER_MARK = 21
    """When a timed message was taken, and when it was delivered."""
    INNER_MESSAGES = 22
    OTHER = 23


TIMER_PREFIX = "TIMER_"
"""Of names that are `Meaning.OTHER` if they are not in the table."""
MEANINGS: dict[str, Meaning] = {
    names.UNIQ_KEY: Meaning.UNIQUE_KEY,
    names.KEYS: Meaning.KEYS,
    names.TAGS: Meaning.TAGS,
    names.WAIT: Meaning.WAIT,
    names.DELAY: Meaning.DELAY_LEVEL,
    names.PRODUCER_GROUP: Meaning.PRODUCER_GROUP,
    names.TRAN_MSG: Meaning.IS_HALF,
    names.TIMER_DELAY_SEC: Meaning.DELAY_SECONDS,
    names.TIMER_DELAY_MS: Meaning.DELAY_MS,
    names.TIMER_DELIVER_MS: Meaning.DELIVER_AT_MS,
    names.PRIORITY: Meaning.PRIORITY,
    names.SHARDING_KEY: Meaning.SHARDING_KEY,
    names.RECORD_CRC: Meaning.CRC,
    names.REAL_TOPIC: Meaning.REAL_TOPIC,
    names.REAL_QID: Meaning.REAL_QUEUE,
    names.IMMUNITY: Meaning.IMMUNITY,
    names.TIMER_OUT: Meaning.TIMER_OUT,
    names.TIMER_DELETE: Meaning.TIMER_DELETE,
    names.TIMER_ROLLS: Meaning.TIMER_ROLLS,
    names.TIMER_ENQUEUED: Meaning.TIMER_MARK,
    names.TIMER_DEQUEUED: Meaning.TIMER_MARK,
    names.TRANSACTION_ID: Meaning.OTHER,
    names.CHECK_TIMES: Meaning.OTHER,
    names.FIRST_OFFSET: Meaning.OTHER,
    names.CLUSTER: Meaning.OTHER,
    names.MSG_REGION: Meaning.OTHER,
    names.TRACE_ON: Meaning.OTHER,
    names.INNER_NUM: Meaning.INNER_MESSAGES,
}
DELIVERY_TIMES = (Meaning.DELAY_SECONDS, Meaning.DELAY_MS, Meaning.DELIVER_AT_MS)
"""How a send asks for a time of delivery; of several the first counts."""
ALONE_IN_BATCH = frozenset({names.DELAY, names.TRAN_MSG, names.INNER_NUM})
"""Names that the message of a batch may not have, besides those of timers."""


def meaning_of(name: str) -> Meaning:
    """Return the meaning of a property to a broker."""
    found = MEANINGS.get(name)
    if found is not None:
        return found
    return Meaning.OTHER if name.startswith(TIMER_PREFIX) else Meaning.PLAIN
