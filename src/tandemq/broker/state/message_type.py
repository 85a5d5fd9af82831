"""Enforcement of a topic's `message.type`, if `enableTopicMessageTypeCheck` is on.

    TRANSACTION   TRAN_MSG=true
    DELAY         DELAY, TIMER_DELIVER_MS, TIMER_DELAY_SEC or TIMER_DELAY_MS
    FIFO          __SHARDINGKEY
    NORMAL        none of these

A topic without the attribute takes NORMAL messages; one of type MIXED or UNSPECIFIED takes all. Retry and dead letter
topics take what their group consumed.

Source: RocketMQ 5.3 TopicMessageType, DefaultTopicMessageTypeValidator (there in proxies only).
"""

from collections.abc import Mapping

from tandemq.model.attributes import MESSAGE_TYPE, MIXED
from tandemq.model.message import TIMER_NAMES
from tandemq.model.topic import DLQ_PREFIX, RETRY_PREFIX, TopicConfig

NORMAL, FIFO, DELAY, TRANSACTION = "NORMAL", "FIFO", "DELAY", "TRANSACTION"
_ANY_TYPE = frozenset({MIXED, "UNSPECIFIED"})


def message_type(properties: Mapping[str, str]) -> str:
    """Return the type of a message by its properties."""
    if properties.get("TRAN_MSG", "").lower() == "true":
        return TRANSACTION
    if "DELAY" in properties or not TIMER_NAMES.isdisjoint(properties):
        return DELAY
    return FIFO if "__SHARDINGKEY" in properties else NORMAL


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
