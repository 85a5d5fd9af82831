"""Types of messages, and the enforcement of a topic's `message.type` if `enableTopicMessageTypeCheck` is on.

    TRANSACTION   TRAN_MSG=true
    DELAY         DELAY, TIMER_DELIVER_MS, TIMER_DELAY_SEC or TIMER_DELAY_MS
    FIFO          __SHARDINGKEY
    PRIORITY      _SYS_MSG_PRIORITY_
    NORMAL        none of these

A topic without the attribute takes NORMAL messages; one of type MIXED or UNSPECIFIED takes all. Retry and dead letter
topics take what their group consumed.

Source: RocketMQ 5.5 TopicMessageType, DefaultTopicMessageTypeValidator (there in proxies only).
"""

from collections.abc import Mapping

from tandemq.model import message as names
from tandemq.model.attributes import MESSAGE_TYPE, MIXED, PRIORITY
from tandemq.model.java_types import INT32_MAX
from tandemq.model.topic import DLQ_PREFIX, RETRY_PREFIX, TopicConfig

NORMAL, FIFO, DELAY, TRANSACTION = "NORMAL", "FIFO", "DELAY", "TRANSACTION"
_ANY_TYPE = frozenset({MIXED, "UNSPECIFIED"})


def message_type(properties: Mapping[str, str]) -> str:
    """Return the type of a message by its properties."""
    if properties.get(names.TRAN_MSG, "").lower() == "true":
        return TRANSACTION
    if names.DELAY in properties or not names.TIMER_NAMES.isdisjoint(properties):
        return DELAY
    if names.SHARDING_KEY in properties:
        return FIFO
    return PRIORITY if names.PRIORITY in properties else NORMAL


def priority_of(properties: Mapping[str, str]) -> int | None:
    """Return the priority of a message, 0 or more; None if it has none."""
    text = properties.get(names.PRIORITY, "").removeprefix("+")  # as Java reads numbers
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(INT32_MAX))
    return int(text) if is_number and int(text) <= INT32_MAX else None


def is_prioritized(topic: TopicConfig) -> bool:
    """Whether the queues of a topic are its priorities, by its type."""
    return topic.attributes.get(MESSAGE_TYPE) == PRIORITY


def takes_any_type(topic: TopicConfig) -> bool:
    """Return whether a topic takes messages of every type."""
    return topic.attributes.get(MESSAGE_TYPE) in _ANY_TYPE or topic.topic_name.startswith((RETRY_PREFIX, DLQ_PREFIX))


def type_problem(topic: TopicConfig, properties: Mapping[str, str]) -> str | None:
    """Return why a topic does not take a message with these properties; None if it does."""
    wanted, found = topic.attributes.get(MESSAGE_TYPE, NORMAL), message_type(properties)
    if wanted == found or takes_any_type(topic):
        return None
    return (
        f"topic[{topic.topic_name}] takes {wanted} messages (message.type), this one is {found}; send it to a topic of "
        "its type, or change the topic: updateTopic -a +message.type=UNSPECIFIED"
    )
