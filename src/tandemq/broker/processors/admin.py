"""Operators change and read topics and groups, and have unused files cleaned away.

Only a master changes topics and groups: a slave copies them. A change has a new version, is saved, and topics are told
to the name servers at the end of the turn.

Limits: `LISTED_MAX` topics or groups in a request, attributes as in `model.attributes`, topics as in `topics`. One line
is logged per request, whatever the number of its topics or groups.
Source: docs/reference/requests.md, "administration"; RocketMQ AdminBrokerProcessor.
"""

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from tandemq.boundary import Now
from tandemq.broker.connections.connection import Link
from tandemq.codec.remoting.admin_requests import CreateTopicFields, DeleteGroupFields, GroupNameFields, TopicFields
from tandemq.codec.remoting.bodies import convert, decode_body
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.codec.remoting.requests import read_fields
from tandemq.errors import ProtocolError
from tandemq.model.attributes import GROUP_ATTRIBUTES, changed, parse_changes
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.group import SubscriptionGroupConfig
from tandemq.model.text import brief
from tandemq.model.topic import SYSTEM_TOPICS, TopicConfig, filter_type_error, group_name_error, topic_name_error

if TYPE_CHECKING:
    from tandemq.broker.node import Broker, Handler

log = logging.getLogger(__name__)
QUEUES_MAX = 16_384
"""Of one topic on one broker."""
PERMISSIONS_MAX = 15
LISTED_MAX = 10_000
"""Topics or groups in one request."""
NAMED_MAX = 3
"""Of those, in the log."""
_INT32_MAX = (1 << 31) - 1
SLAVE_REMARK = "Can't modify topic or subscription group from slave broker, please execute it from master broker."


def handlers(broker: "Broker") -> "dict[Code, Handler]":
    """The handlers of this module, bound to a broker."""
    on = _Admin(broker)
    return {
        Code.UPDATE_AND_CREATE_TOPIC: on.create_topic,
        Code.UPDATE_AND_CREATE_TOPIC_LIST: on.create_topics,
        Code.DELETE_TOPIC_IN_BROKER: on.delete_topic,
        Code.GET_TOPIC_CONFIG: on.topic_config,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: on.create_group,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: on.create_groups,
        Code.DELETE_SUBSCRIPTIONGROUP: on.delete_group,
        Code.GET_SUBSCRIPTIONGROUP_CONFIG: on.group_config,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: on.system_topics,
        Code.CLEAN_EXPIRED_CONSUMEQUEUE: on.clean_queues,
        Code.CLEAN_UNUSED_TOPIC: on.clean_topics,
        Code.DELETE_EXPIRED_COMMITLOG: on.clean_log,
    }


class _Admin:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def _slave_refusal(self, command: Command) -> Command | None:
        if self._broker.is_master:
            return None
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=SLAVE_REMARK)

    # Topics.

    def create_topic(self, link: Link, command: Command, now: Now) -> Command | None:
        refusal = self._slave_refusal(command)
        if refusal is not None:
            return refusal
        fields = read_fields(CreateTopicFields, command.fields)
        wanted = TopicConfig(
            fields.topic,
            fields.read_queue_nums,
            fields.write_queue_nums,
            fields.perm,
            fields.topic_filter_type,
            fields.topic_sys_flag,
            fields.order,
            parse_changes(fields.attributes or ""),
        )
        return self._create_topics(link, command, [wanted], now)

    def create_topics(self, link: Link, command: Command, now: Now) -> Command | None:
        refusal = self._slave_refusal(command)
        if refusal is not None:
            return refusal
        return self._create_topics(link, command, _parse_list(command, "topicConfigList", TopicConfig), now)

    def _create_topics(self, link: Link, command: Command, wanted: list[TopicConfig], now: Now) -> Command:
        """All of them, or none if one is wrong."""
        topics = self._broker.topics
        for config in wanted:
            wrong = self._topic_fault(config)
            if wrong is not None:
                return command.answer(ResponseCode.SYSTEM_ERROR, remark=wrong)
        news: dict[str, TopicConfig] = {}
        for config in wanted:
            known = topics.get(config.topic_name)
            present = news.get(config.topic_name) or (known.config if known is not None else None)
            attributes = present.attributes if present is not None else {}
            after = msgspec.structs.replace(
                config, attributes=changed(attributes, config.attributes, is_new=present is None)
            )
            if present != after:
                news[config.topic_name] = after
        full = topics.full(news.values())
        if full is not None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=full)
        for config in news.values():
            topics.put(config, now.wall_ms)
        _log_written("topics", link, list(news.values()))
        return command.answer(ResponseCode.SUCCESS)

    def _topic_fault(self, config: TopicConfig) -> str | None:
        wrong = topic_name_error(config.topic_name)
        if wrong is not None:
            return wrong
        if self._is_system(config.topic_name):
            return f"The topic[{config.topic_name}] is conflict with system topic."
        for nums in (config.read_queue_nums, config.write_queue_nums):
            if not 1 <= nums <= QUEUES_MAX:
                return f"{nums} queues cannot be had for topic {config.topic_name}; 1 to {QUEUES_MAX} can"
        if not 0 <= config.perm <= PERMISSIONS_MAX:
            return f"{config.perm} is no permission; 4 is reading, 2 is writing, 6 is both"
        if not 0 <= config.topic_sys_flag <= _INT32_MAX:
            return f"topicSysFlag {brief(config.topic_sys_flag, 32)} is outside 0 to {_INT32_MAX}"
        return filter_type_error(config.topic_filter_type)

    def _is_system(self, name: str) -> bool:
        return name in self._system_topics() or name.startswith("rmq_sys_")

    def _system_topics(self) -> set[str]:
        config = self._broker.config
        return {*SYSTEM_TOPICS, config.cluster, config.broker_name, f"{config.cluster}_REPLY_TOPIC"}

    def delete_topic(self, link: Link, command: Command, now: Now) -> Command | None:
        refusal = self._slave_refusal(command)
        if refusal is not None:
            return refusal
        name = read_fields(TopicFields, command.fields).topic
        wrong = topic_name_error(name)
        if wrong is None and self._is_system(name):
            wrong = f"The topic[{name}] is conflict with system topic."
        if wrong is not None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=wrong)
        self._let_pulls_go(name)
        if self._broker.topics.remove(name, now.wall_ms):
            log.info("admin: topic=%s deleted by %s", name, link.peer)
        self._broker.offsets.remove_topic(name)
        self._broker.stats.topic_removed(name)
        return command.answer(ResponseCode.SUCCESS)

    def _let_pulls_go(self, topic: str) -> None:
        """Answer what is held on a topic's queues: nothing would wake it once they are gone."""
        broker = self._broker
        for queue in [queue for key, queue in broker.store.queues.items() if key[0] == topic]:
            broker.pull.wake(queue, is_last=True)
        broker.pull.answer_woken(broker.turn_out)

    def topic_config(self, _link: Link, command: Command, _now: Now) -> Command | None:
        name = read_fields(TopicFields, command.fields).topic
        topic = self._broker.topics.get(name)
        if topic is None:
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic in this broker. topic: {name}")
        return command.answer(ResponseCode.SUCCESS, body=dumps(msgspec.to_builtins(topic.config)))

    def system_topics(self, _link: Link, command: Command, _now: Now) -> Command | None:
        return command.answer(ResponseCode.SUCCESS, body=dumps({"topicList": sorted(self._system_topics())}))

    # Groups.

    def create_group(self, link: Link, command: Command, now: Now) -> Command | None:
        return self._slave_refusal(command) or self._create_groups(
            link, command, [decode_body(command.body, SubscriptionGroupConfig, "group")], now
        )

    def create_groups(self, link: Link, command: Command, now: Now) -> Command | None:
        return self._slave_refusal(command) or self._create_groups(
            link, command, _parse_list(command, "groupConfigList", SubscriptionGroupConfig), now
        )

    def _create_groups(self, link: Link, command: Command, wanted: list[SubscriptionGroupConfig], now: Now) -> Command:
        groups = self._broker.groups
        for config in wanted:
            wrong = _group_fault(config)
            if wrong is not None:
                return command.answer(ResponseCode.SYSTEM_ERROR, remark=wrong)
        news: dict[str, SubscriptionGroupConfig] = {}
        for config in wanted:
            present = news.get(config.group_name) or groups.table.get(config.group_name)
            attributes = present.attributes if present is not None else {}
            after = msgspec.structs.replace(
                config,
                attributes=changed(attributes, config.attributes, is_new=present is None, known=GROUP_ATTRIBUTES),
            )
            if present != after:
                news[config.group_name] = after
        for config in news.values():
            groups.put(config, now.wall_ms)
        _log_written("groups", link, list(news.values()))
        return command.answer(ResponseCode.SUCCESS)

    def delete_group(self, link: Link, command: Command, now: Now) -> Command | None:
        refusal = self._slave_refusal(command)
        if refusal is not None:
            return refusal
        fields = read_fields(DeleteGroupFields, command.fields)
        name = fields.group_name
        if self._broker.groups.remove(name, now.wall_ms):
            log.info("admin: group=%s deleted by %s", name, link.peer)
        if fields.remove_offset or fields.clean_offset:
            self._broker.offsets.remove_group(name)
        self._broker.stats.group_removed(name)
        return command.answer(ResponseCode.SUCCESS)

    def group_config(self, _link: Link, command: Command, now: Now) -> Command | None:
        name = read_fields(GroupNameFields, command.fields).group
        found = self._broker.groups.find(name, now.wall_ms)
        if found is None:
            return command.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=f"No group in this broker: {name}")
        return command.answer(ResponseCode.SUCCESS, body=dumps(msgspec.to_builtins(found)))

    # Cleaning.

    def clean_queues(self, _link: Link, command: Command, _now: Now) -> Command | None:
        """Delete queue files whose messages are no longer in the log."""
        store = self._broker.store
        for queue in store.queues.values():
            queue.correct_min(store.log.start)
        return command.answer(ResponseCode.SUCCESS)

    def clean_topics(self, link: Link, command: Command, _now: Now) -> Command | None:
        """Delete queues of topics that are not there any more."""
        if not self._broker.is_master:
            # A slave's log may hold topics that its table, copied less often, does not know yet.
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="a slave's queues follow its log; ask its master")
        known = self._broker.topics.table
        for name in sorted({topic for topic, _ in self._broker.store.queues if topic not in known}):
            self._let_pulls_go(name)
            self._broker.store.drop_topic(name)
            log.info("admin: queues of topic=%s deleted by %s", name, link.peer)
        return command.answer(ResponseCode.SUCCESS)

    def clean_log(self, _link: Link, command: Command, now: Now) -> Command | None:
        """Delete expired log files now, whatever the hour."""
        self._broker.upkeep.delete_expired()
        self._broker.upkeep.clean(now)
        return command.answer(ResponseCode.SUCCESS)


def _group_fault(config: SubscriptionGroupConfig) -> str | None:
    wrong = group_name_error(config.group_name)
    if wrong is not None:
        return wrong
    if not 0 <= config.retry_queue_nums <= QUEUES_MAX:
        return f"{brief(config.retry_queue_nums, 32)} retry queues cannot be had; 0 to {QUEUES_MAX} can"
    return None


def _log_written(what: str, link: Link, written: list[Any]) -> None:
    if written:
        named = "; ".join(brief(config, 1_000) for config in written[:NAMED_MAX])
        log.info(
            "admin: %d %s written by %s: %s%s",
            len(written),
            what,
            link.peer,
            named,
            "; …" if len(written) > NAMED_MAX else "",
        )


def _parse_list(command: Command, name: str, kind: type[Any]) -> list[Any]:
    body = loads(command.body)
    listed = body.get(name) if isinstance(body, dict) else None
    if not isinstance(listed, list) or len(listed) > LISTED_MAX:
        raise ProtocolError(f"an object with {name}, a list of at most {LISTED_MAX}, is expected")
    return [convert(item, kind, name) for item in listed]
