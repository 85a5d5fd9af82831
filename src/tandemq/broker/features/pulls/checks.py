"""Checks of a pull request: permissions, topic, queue and subscription.

Source: docs/reference/requests.md, "PULL_MESSAGE"; RocketMQ PullMessageProcessor.
"""

from tandemq.broker.filter.retry import RetryFilter
from tandemq.broker.filter.selector import ALL_MESSAGES, MessageSelector
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pulls import PullRefused
from tandemq.broker.kernel.read_checks import BY_BROADCAST, ReadChecks
from tandemq.broker.state.topics import Topic
from tandemq.codec.remoting.requests import PullFields
from tandemq.config.settings import BrokerConfig
from tandemq.model.codes import ResponseCode
from tandemq.model.group import SubscriptionGroupConfig, is_tag_expression
from tandemq.model.topic import RETRY_PREFIX
from tandemq.storage.consume_queue import ConsumeQueue

SUBSCRIPTION = 4
"""Bit of the pull's sysFlag: the request carries its own tag expression."""


class PullChecks(ReadChecks):
    """Check pulls, also against the subscriptions of connected consumers."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin with the settings of the start."""
        super().__init__(kernel)
        self._clients = kernel.clients

    def adopt_config(self, config: BrokerConfig) -> None:
        """Take the settings, at the start and when they change."""
        super().adopt_config(config)
        self._filters_retries = config.property_filter_enable and config.filter_retries

    def pulled_topic(self, fields: PullFields) -> Topic | None:
        """Return the topic to read; None for a queue that is stored although its topic was deleted.

        Raises:
            PullRefused: there is no such topic or queue, or it may not be read.
        """
        if fields.topic not in self._topics.table and (fields.topic, fields.queue_id) in self._store.queues:
            return None
        topic = self.topic(fields.topic)
        if not 0 <= fields.queue_id < topic.config.read_queue_nums:
            raise PullRefused(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{fields.queue_id}] is illegal, topic:[{fields.topic}] has {topic.config.read_queue_nums}",
            )
        return topic

    def pulled_queue(self, topic: Topic | None, fields: PullFields) -> ConsumeQueue:
        """Return the queue to read; `topic` is what `pulled_topic` returned."""
        if topic is None:
            return self._store.queue(fields.topic, fields.queue_id)
        return self.queue(topic, fields.queue_id)

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
            return self.selected_by(expression, kind)
        online = self._clients.consumers.get(fields.consumer_group)
        if online is None:
            raise PullRefused(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
        if not group.consume_broadcast_enable and online.message_model == "BROADCASTING":
            raise PullRefused(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{fields.consumer_group}] can not consume by broadcast way",
                BY_BROADCAST,
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
