"""Checks of a pull request: permissions, topic, queue and subscription.

Source: docs/reference/requests.md, "PULL_MESSAGE"; RocketMQ PullMessageProcessor.
"""

from tandemq.broker.filter.retry import RetryFilter
from tandemq.broker.filter.selector import ALL_MESSAGES, MessageSelector, unsupported_kind
from tandemq.broker.filter.tokens import FilterInvalid
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pulls import PullRefused
from tandemq.broker.state.subscriptions import TagExpressions
from tandemq.broker.state.topics import Topic
from tandemq.codec.remoting.requests import PullFields
from tandemq.config.settings import BrokerConfig
from tandemq.errors import ProtocolError
from tandemq.model.codes import ResponseCode
from tandemq.model.group import SQL_EXPRESSION, SubscriptionGroupConfig, is_tag_expression
from tandemq.model.topic import RETRY_PREFIX, Permission
from tandemq.storage.consume_queue import ConsumeQueue

SUBSCRIPTION = 4
"""Bit of the pull's sysFlag: the request carries its own tag expression."""
_READ = int(Permission.READ)
# Values of `forbiddenType`.
_BY_BROKER, _BY_GROUP, _BY_TOPIC, _BY_BROADCAST, _BY_OPERATOR = 1, 2, 3, 4, 5


class PullChecks:
    """Check pulls against topics, groups and the subscriptions of connected consumers."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin with the settings of the start."""
        self._broker_name = kernel.current.config.broker_name
        self.adopt_config(kernel.current.config)
        self._store = kernel.store
        self._topics = kernel.topics
        self._groups = kernel.groups
        self._clients = kernel.clients
        self._filters = kernel.filters
        self._tags = TagExpressions()

    def adopt_config(self, config: BrokerConfig) -> None:
        """Take the settings, at the start and when they change."""
        self.permission = config.permission
        self._takes_sql = config.property_filter_enable
        self._filters_retries = config.property_filter_enable and config.filter_retries

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

    def topic(self, fields: PullFields) -> Topic | None:
        """Return the topic to read; None for a queue that is stored although its topic was deleted.

        Raises:
            PullRefused: there is no such topic or queue, or it may not be read.
        """
        topic = self._topics.table.get(fields.topic)
        if topic is None:
            if (fields.topic, fields.queue_id) in self._store.queues:
                return None
            unserved = self._topics.unserved_remark(fields.topic)
            if unserved is not None:
                raise PullRefused(ResponseCode.NO_PERMISSION, unserved, _BY_TOPIC)
            raise PullRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{fields.topic}] not exist, apply first please!")
        if not topic.config.perm & _READ:
            raise PullRefused(
                ResponseCode.NO_PERMISSION, f"the topic[{fields.topic}] pulling message is forbidden", _BY_TOPIC
            )
        if not 0 <= fields.queue_id < topic.config.read_queue_nums:
            raise PullRefused(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{fields.queue_id}] is illegal, topic:[{fields.topic}] has {topic.config.read_queue_nums}",
            )
        return topic

    def check_allowed(self, fields: PullFields) -> None:
        """Refuse reads that an operator has forbidden a group, with or without an expression in the request.

        Raises:
            PullRefused: the topic is forbidden to the group.
        """
        if self._groups.forbidden.forbids(fields.consumer_group, fields.topic):
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{fields.consumer_group}] is forbidden for topic[{fields.topic}]",
                _BY_OPERATOR,
            )

    def queue(self, topic: Topic | None, fields: PullFields) -> ConsumeQueue:
        """Return the queue to read, created if the topic has not used it yet; `topic` is what `topic()` returned."""
        if topic is None:
            return self._store.queue(fields.topic, fields.queue_id)
        return topic.queues.get(fields.queue_id) or self._topics.queue(topic, fields.queue_id)

    def selector(self, fields: PullFields, group: SubscriptionGroupConfig) -> MessageSelector:
        """Return what a pull selects; of a retry topic also by the group's expressions for the topics behind it.

        Raises:
            PullRefused: as `_selector`.
        """
        found = self._selector(fields, group)
        if not self._filters_retries or found.sql is not None or not fields.topic.startswith(RETRY_PREFIX):
            return found
        of_group = fields.topic.removeprefix(RETRY_PREFIX)
        return MessageSelector(found.codes, RetryFilter(self._filters, of_group, found.codes))

    def _selector(self, fields: PullFields, group: SubscriptionGroupConfig) -> MessageSelector:
        """Return what a pull selects, by the request's own expression or by the group's subscription.

        Removes the expression from `fields`: a held pull needs no memory for it.

        Raises:
            PullRefused: the expression is not valid, or the group has no current subscription to the topic.
        """
        expression, kind = fields.subscription, fields.expression_type
        fields.subscription = fields.expression_type = None
        if fields.sys_flag & SUBSCRIPTION:
            if is_tag_expression(kind):
                return self._with_tags(expression)
            self._check_kind(kind)
            try:
                return MessageSelector(sql=self._filters.expressions.compile(expression or ""))
            except FilterInvalid as error:
                raise PullRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        online = self._clients.consumers.get(fields.consumer_group)
        if online is None:
            raise PullRefused(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
        if not group.consume_broadcast_enable and online.message_model == "BROADCASTING":
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{fields.consumer_group}] can not consume by broadcast way",
                _BY_BROADCAST,
            )
        subscription = online.subscriptions.get(fields.topic)
        if subscription is None:
            raise PullRefused(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
        if subscription.sub_version < fields.sub_version:
            raise PullRefused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        if not is_tag_expression(subscription.expression_type):
            return self._registered(fields, subscription.expression_type)
        if fields.topic.startswith(RETRY_PREFIX):
            return ALL_MESSAGES
        return self._with_tags(subscription.sub_string)

    def _registered(self, fields: PullFields, kind: str | None) -> MessageSelector:
        """Return the filter that the group registered by heartbeat."""
        found = self._filters.find(fields.topic, fields.consumer_group)
        if found is None:
            raise PullRefused(ResponseCode.FILTER_DATA_NOT_EXIST, "the consumer's filter data not exist")
        if found.version < fields.sub_version:
            raise PullRefused(ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's filter data not latest")
        self._check_kind(kind)
        return MessageSelector(sql=found.compiled)

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
