"""Subscriptions of consumers: all messages, tags, or an SQL92 expression.

An SQL92 expression goes to the brokers with heartbeats. Pulls do not repeat it: a broker that does not know it, or
cannot compile it, refuses them. (RocketMQ delivers every message if a pull brings one that does not compile.)

Source: docs/reference/filters.md; RocketMQ FilterAPI, MQClientInstance.checkClientInBroker.
"""

import logging

from tandemq.client.consumer.queues.queue_puller import Subscription
from tandemq.client.core.operations import Steps, ask, current_time, wait
from tandemq.client.core.routes import MASTER_ID, Routes
from tandemq.codec.remoting.fastjson import dumps
from tandemq.errors import ConfigError, NetworkError, NoRoute, RemoteError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.group import SQL_EXPRESSION, Sql, SubscriptionData, parse_tag_expression, tag_codes
from tandemq.model.topic import topic_name_error

log = logging.getLogger(__name__)
Expression = str | Sql
"""`*` for all messages, tags as `a || b`, or an SQL92 expression."""
NEEDS_FILTER = "brokers filter by SQL92 with enablePropertyFilter=true"


def make_subscription(topic: str, expression: Expression, version: int) -> Subscription:
    """Return the subscription to a topic.

    Args:
        expression: "*" for all messages, tags: "a || b", or `Sql`.
        version: increases with each subscription to the topic, for instance milliseconds since 1970.

    Raises:
        ConfigError: the topic or the expression is invalid.
    """
    if not isinstance(topic, str) or not isinstance(expression, Expression):
        raise ConfigError(f"a topic and an expression must be str, not {topic!r:.64} and {expression!r:.64}")
    fault = topic_name_error(topic)
    if fault is not None:
        raise ConfigError(fault)
    if isinstance(expression, Sql):
        data = SubscriptionData(topic, expression.expression, sub_version=version, expression_type=SQL_EXPRESSION)
        return Subscription(data, None)
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


def check_expression_at_broker(routes: Routes, client_id: str, group: str, topic: str, sql: Sql) -> Steps[None]:
    """Have a broker of the topic compile an SQL92 expression; no effect if there is no such broker, or none answers.

    Raises:
        ConfigError: it does not compile, or the broker does not filter by expressions.
    """
    try:
        route = yield from wait(routes.fetch(topic, (yield from current_time())))
    except (NoRoute, NetworkError):
        return
    subscription = {"topic": topic, "subString": sql.expression, "expressionType": SQL_EXPRESSION, "subVersion": 0}
    body = dumps({"clientId": client_id, "group": group, "namespace": "", "subscriptionData": subscription})
    for broker in route.brokers.values():
        address = broker.members.get(MASTER_ID)
        if address is None:
            continue
        try:
            yield from ask(address, Command(RequestCode.CHECK_CLIENT_CONFIG, body=body))
        except NetworkError as error:
            log.info("the expression for %s is not checked by %s: %s", topic, address, error)
        except RemoteError as error:
            hint = NEEDS_FILTER if error.code == ResponseCode.SYSTEM_ERROR else ""
            raise ConfigError(f"the broker {address} refuses the expression for {topic}: {error}", hint=hint) from None
        else:
            return
