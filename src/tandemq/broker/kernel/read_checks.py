"""Checks of requests that read messages: permissions, group, topic, queue and expression.

Source: docs/reference/requests.md, "PULL_MESSAGE"; RocketMQ PullMessageProcessor, PopMessageProcessor.
"""

from tandemq.broker.filter.selector import MessageSelector, unsupported_kind
from tandemq.broker.filter.tokens import FilterInvalid
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pulls import PullRefused
from tandemq.broker.state.subscriptions import TagExpressions
from tandemq.broker.state.topics import Topic
from tandemq.config.settings import BrokerConfig
from tandemq.errors import ProtocolError
from tandemq.model.codes import ResponseCode
from tandemq.model.group import SQL_EXPRESSION, SubscriptionGroupConfig, is_tag_expression
from tandemq.model.topic import Permission
from tandemq.storage.consume_queue import ConsumeQueue

_READ = int(Permission.READ)
# Values of `forbiddenType`.
_BY_BROKER, _BY_GROUP, _BY_TOPIC, BY_BROADCAST, _BY_OPERATOR = 1, 2, 3, 4, 5


class ReadChecks:
    """Check reads against the broker's permission, groups and topics."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin with the settings of the start."""
        self._broker_name = kernel.current.config.broker_name
        self._store = kernel.store
        self._topics = kernel.topics
        self._groups = kernel.groups
        self._filters = kernel.filters
        self._tags = TagExpressions()
        self.adopt_config(kernel.current.config)

    def adopt_config(self, config: BrokerConfig) -> None:
        """Take the settings, at the start and when they change."""
        self.permission = config.permission
        self._takes_sql = config.property_filter_enable

    def check_readable(self) -> None:
        """Refuse all pulls while the broker's own permission lacks READ.

        Raises:
            PullRefused: it lacks it.
        """
        if not self.permission & _READ:
            raise PullRefused(
                ResponseCode.NO_PERMISSION, f"the broker[{self._broker_name}] pulling message is forbidden", _BY_BROKER
            )

    def group(self, name: str, wall_ms: int) -> SubscriptionGroupConfig:
        """Return the settings of a consumer group that may consume.

        Raises:
            PullRefused: the group does not exist, or may not consume.
        """
        try:
            group = self._groups.find(name, wall_ms)
        except ProtocolError as error:
            raise PullRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        if group is None:
            raise PullRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}")
        if not group.consume_enable:
            raise PullRefused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}", _BY_GROUP)
        return group

    def topic(self, name: str) -> Topic:
        """Return a topic that may be read.

        Raises:
            PullRefused: there is no such topic, or it may not be read.
        """
        topic = self._topics.table.get(name)
        if topic is None:
            unserved = self._topics.unserved_remark(name)
            if unserved is not None:
                raise PullRefused(ResponseCode.NO_PERMISSION, unserved, _BY_TOPIC)
            raise PullRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
        if not topic.config.perm & _READ:
            raise PullRefused(ResponseCode.NO_PERMISSION, f"the topic[{name}] pulling message is forbidden", _BY_TOPIC)
        return topic

    def check_allowed(self, group: str, topic: str) -> None:
        """Refuse reads that an operator has forbidden a group, with or without an expression in the request.

        Raises:
            PullRefused: the topic is forbidden to the group.
        """
        if self._groups.forbidden.forbids(group, topic):
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{group}] is forbidden for topic[{topic}]",
                _BY_OPERATOR,
            )

    def queue(self, topic: Topic, queue_id: int) -> ConsumeQueue:
        """Return a queue of a topic, created if the topic has not used it yet."""
        return topic.queues.get(queue_id) or self._topics.queue(topic, queue_id)

    def selected_by(self, expression: str | None, kind: str | None) -> MessageSelector:
        """Return what an expression of a request selects.

        Raises:
            PullRefused: it is not valid, or the broker evaluates none of its type.
        """
        if is_tag_expression(kind):
            return self._with_tags(expression)
        self._check_kind(kind)
        try:
            return MessageSelector(sql=self._filters.expressions.compile(expression or ""))
        except FilterInvalid as error:
            raise PullRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error

    def _check_kind(self, kind: str | None) -> None:
        """Refuse filters that are not SQL92 expressions, and every filter while the broker's setting forbids them."""
        if not self._takes_sql:
            raise PullRefused(ResponseCode.SYSTEM_ERROR, unsupported_kind(kind))
        if kind != SQL_EXPRESSION:
            raise PullRefused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"there is no expression type {(kind or '')[:32]!r}"
            )

    def _with_tags(self, expression: str | None) -> MessageSelector:
        try:
            return MessageSelector(self._tags.parse(expression))
        except ValueError as error:
            raise PullRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
