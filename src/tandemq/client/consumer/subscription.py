"""Subscription expressions of consumers."""

from tandemq.client.consumer.queues.queue_puller import Subscription
from tandemq.errors import ConfigError
from tandemq.model.group import SubscriptionData, parse_tag_expression, tag_codes
from tandemq.model.topic import topic_name_error


def make_subscription(topic: str, expression: str, version: int) -> Subscription:
    """Return the subscription to a topic.

    Args:
        expression: "*" for all messages, or tags: "a || b".
        version: increases with each subscription to the topic, for instance milliseconds since 1970.

    Raises:
        ConfigError: the topic or the expression is invalid.
    """
    if not isinstance(topic, str) or not isinstance(expression, str):
        raise ConfigError(f"a topic and an expression must be str, not {topic!r:.64} and {expression!r:.64}")
    fault = topic_name_error(topic)
    if fault is not None:
        raise ConfigError(fault)
    try:
        tags = parse_tag_expression(expression)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if any("|" in tag for tag in tags or ()):
        raise ConfigError(f"the subscription {expression[:64]!r} is invalid", hint="write `*` or `a || b`")
    data = SubscriptionData(
        topic, expression.strip() or "*", sorted(tags or ()), sorted(tag_codes(tags or [])), version
    )
    return Subscription(data, None if tags is None else frozenset(tags))
