"""Requests of operators to change and read topics and groups, and to delete unused files.

Only a master changes topics and groups; slaves copy them. A change gets a new version and is saved, and topics are
registered at the name servers at the end of the turn.

Limits: `LISTED_MAX` topics or groups in a request, attributes as in `model.attributes`, topics as in `topics`. One line
is logged per request, not per topic or group.
Source: docs/reference/requests.md, "administration"; RocketMQ AdminBrokerProcessor.
"""

import logging
from typing import Any

import msgspec

from tandemq.boundary import Now
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pulls import Pulls
from tandemq.broker.kernel.serving import Right
from tandemq.broker.kernel.upkeep import DISK_FULL
from tandemq.broker.state.topic_checks import (
    QUEUES_MAX,
    SLAVE_REMARK,
    reserved_name_problem,
    system_topics,
    topic_config_problem,
)
from tandemq.codec.remoting.admin_requests import (
    CreateTopicFields,
    DeleteGroupFields,
    ForbiddenFields,
    GroupNameFields,
    TopicFields,
)
from tandemq.codec.remoting.bodies import convert, decode_body
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.codec.remoting.requests import is_true, read_fields
from tandemq.errors import ProtocolError
from tandemq.model.attributes import GROUP_ATTRIBUTES, MESSAGE_TYPE, MIXED, changed, parse_changes
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.group import SubscriptionGroupConfig
from tandemq.model.pop import TopicKind, pop_retry_topic
from tandemq.model.text import brief
from tandemq.model.topic import TopicConfig, group_name_error, topic_name_error

log = logging.getLogger(__name__)
LISTED_MAX = 10_000
"""Maximum number of topics or groups in one request."""
NAMED_MAX = 3
"""Maximum number of those that are named in the log."""
_MIXED_REMARK = (
    "MIXED message type is not supported: a topic has messages of one type (NORMAL, FIFO, DELAY, TRANSACTION), or set "
    "enableMixedMessageType=true"
)


class AdminProcessor(Feature):
    """Handle requests of operators to change and read topics and groups."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin."""
        self._store = kernel.store
        self._topics = kernel.topics
        self._groups = kernel.groups
        self._offsets = kernel.offsets
        self._features = kernel.features
        self._pulls = kernel.features.find(Pulls)
        self._puts = kernel.puts
        self._current = kernel.current
        self._turn = kernel.turn

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {
            Code.UPDATE_AND_CREATE_TOPIC: Request(self._on_create_topic, Right.WRITE, is_saved=True),
            Code.UPDATE_AND_CREATE_TOPIC_LIST: Request(self._on_create_topics, Right.WRITE, is_saved=True),
            Code.DELETE_TOPIC_IN_BROKER: Request(
                self._on_delete_topic, Right.WRITE, is_saved=True, is_recorded=True, is_copied=True
            ),
            Code.GET_TOPIC_CONFIG: Request(self._on_topic_config),
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Request(self._on_create_group, Right.WRITE, is_saved=True),
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Request(self._on_create_groups, Right.WRITE, is_saved=True),
            Code.DELETE_SUBSCRIPTIONGROUP: Request(self._on_delete_group, Right.WRITE, is_saved=True),
            Code.GET_SUBSCRIPTIONGROUP_CONFIG: Request(self._on_group_config),
            Code.UPDATE_AND_GET_GROUP_FORBIDDEN: Request(self._on_forbidden),
            Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Request(self._on_system_topics),
            Code.CLEAN_EXPIRED_CONSUMEQUEUE: Request(self._on_clean_queues),
            Code.CLEAN_UNUSED_TOPIC: Request(self._on_clean_topics, is_recorded=True),
        }

    def _slave_refusal(self, command: Command) -> Command | None:
        if self._turn.serving.is_master:
            return None
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=SLAVE_REMARK)

    def _log_refusal(self, command: Command) -> Command | None:
        """Refuse a request that writes to the log while messages are refused: its end may be with a slave.

        A full disk is no reason: operators delete topics to free it.
        """
        refusal = self._puts.refusal_but_for(DISK_FULL)
        return None if refusal is None else command.answer(refusal[0], remark=refusal[1])

    # Topics.

    def _on_create_topic(self, link: Link, command: Command, now: Now) -> Command | None:
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

    def _on_create_topics(self, link: Link, command: Command, now: Now) -> Command | None:
        refusal = self._slave_refusal(command)
        if refusal is not None:
            return refusal
        return self._create_topics(link, command, _parse_list(command, "topicConfigList", TopicConfig), now)

    def _create_topics(self, link: Link, command: Command, wanted: list[TopicConfig], now: Now) -> Command:
        """Create or change the topics, or none of them if one is invalid."""
        topics = self._topics
        for config in wanted:
            problem = self._topic_problem(config)
            if problem is not None:
                return command.answer(ResponseCode.SYSTEM_ERROR, remark=problem)
            if config.attributes.get(f"+{MESSAGE_TYPE}") == MIXED and not self._current.config.mixed_message_type:
                return command.answer(ResponseCode.INVALID_PARAMETER, remark=_MIXED_REMARK)
        new_configs: dict[str, TopicConfig] = {}
        for config in wanted:
            known = topics.get(config.topic_name)
            present = new_configs.get(config.topic_name) or (known.config if known is not None else None)
            attributes = present.attributes if present is not None else {}
            after = msgspec.structs.replace(
                config, attributes=changed(attributes, config.attributes, is_new=present is None)
            )
            if present != after:
                new_configs[config.topic_name] = after
        full = topics.full(new_configs.values())
        if full is not None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=full)
        for config in new_configs.values():
            topics.put(config, now.wall_ms)
        _log_written("topics", link, list(new_configs.values()))
        return command.answer(ResponseCode.SUCCESS)

    def _topic_problem(self, config: TopicConfig) -> str | None:
        problem = self._name_problem(config.topic_name)
        if problem is not None:
            return problem
        present = self._topics.get(config.topic_name)
        if present is not None and config.topic_name in self._topics.mappings.table:
            queues = (present.config.read_queue_nums, present.config.write_queue_nums)
            if (config.read_queue_nums, config.write_queue_nums) != queues:
                return f"topic {config.topic_name} is static: updateStaticTopic and remappingStaticTopic give it queues"
            return topic_config_problem(config, queues_min=0)
        return topic_config_problem(config, queues_min=1)

    def _name_problem(self, name: str) -> str | None:
        problem = topic_name_error(name) or reserved_name_problem(name, self._current.config)
        return problem or self._topics.unserved_remark(name)

    def _on_delete_topic(self, link: Link, command: Command, now: Now) -> Command | None:
        refusal = self._slave_refusal(command) or self._log_refusal(command)
        if refusal is not None:
            return refusal
        name = read_fields(TopicFields, command.fields).topic
        problem = self._name_problem(name)
        if problem is not None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=problem)
        deleted = [*self._retry_topics(name), name]
        for topic in deleted:
            self._answer_held_pulls(topic)
        self._turn.commit(now)
        for topic in deleted:
            if self._topics.remove(topic, now.wall_ms):
                log.info("admin: topic=%s deleted by %s", topic, link.peer)
            self._offsets.remove_topic(topic)
            for forget in self._features.topic_removed:
                forget(topic, now)
        return command.answer(ResponseCode.SUCCESS)

    def _retry_topics(self, name: str) -> list[str]:
        """Return the topics in which messages of a topic have come back to groups that pop."""
        if not self._current.config.clears_retry_topics:
            return []
        groups, kinds = self._offsets.groups_of(name), (TopicKind.RETRY_V1, TopicKind.RETRY_V2)
        found = [pop_retry_topic(group, name, kind) for group in groups for kind in kinds]
        return [topic for topic in found if self._topics.get(topic) is not None]

    def _answer_held_pulls(self, topic: str) -> None:
        """Answer the pulls held on the queues of a topic, which nothing would wake once the queues are deleted."""
        for queue in self._store.queues_of(topic):
            self._pulls.end_held(queue, self._turn.out)

    def _on_topic_config(self, _link: Link, command: Command, _now: Now) -> Command | None:
        name = read_fields(TopicFields, command.fields).topic
        topic = self._topics.get(name)
        if topic is None:
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic in this broker. topic: {name}")
        body = msgspec.to_builtins(topic.config)
        mapping = self._topics.mappings.table.get(name)
        if mapping is not None and is_true(command.fields.get("lo", "")):
            body["mappingDetail"] = mapping.as_detail()
        return command.answer(ResponseCode.SUCCESS, body=dumps(body))

    def _on_system_topics(self, _link: Link, command: Command, _now: Now) -> Command | None:
        return command.answer(
            ResponseCode.SUCCESS, body=dumps({"topicList": sorted(system_topics(self._current.config))})
        )

    # Groups.

    def _on_create_group(self, link: Link, command: Command, now: Now) -> Command | None:
        return self._slave_refusal(command) or self._create_groups(
            link, command, [decode_body(command.body, SubscriptionGroupConfig, "group")], now
        )

    def _on_create_groups(self, link: Link, command: Command, now: Now) -> Command | None:
        return self._slave_refusal(command) or self._create_groups(
            link, command, _parse_list(command, "groupConfigList", SubscriptionGroupConfig), now
        )

    def _create_groups(self, link: Link, command: Command, wanted: list[SubscriptionGroupConfig], now: Now) -> Command:
        groups = self._groups
        for config in wanted:
            problem = _group_problem(config)
            if problem is not None:
                return command.answer(ResponseCode.SYSTEM_ERROR, remark=problem)
        new_configs: dict[str, SubscriptionGroupConfig] = {}
        for config in wanted:
            present = new_configs.get(config.group_name) or groups.table.get(config.group_name)
            attributes = present.attributes if present is not None else {}
            after = msgspec.structs.replace(
                config,
                attributes=changed(attributes, config.attributes, is_new=present is None, known=GROUP_ATTRIBUTES),
            )
            if present != after:
                new_configs[config.group_name] = after
        groups.check_room(new_configs, on_use=False)
        for config in new_configs.values():
            groups.put(config, now.wall_ms)
        _log_written("groups", link, list(new_configs.values()))
        return command.answer(ResponseCode.SUCCESS)

    def _on_delete_group(self, link: Link, command: Command, now: Now) -> Command | None:
        refusal = self._slave_refusal(command)
        if refusal is not None:
            return refusal
        fields = read_fields(DeleteGroupFields, command.fields)
        name = fields.group_name
        if self._groups.remove(name, now.wall_ms):
            log.info("admin: group=%s deleted by %s", name, link.peer)
        if fields.remove_offset or fields.clean_offset:
            self._offsets.remove_group(name)
        for forget in self._features.group_removed:
            forget(name, now)
        return command.answer(ResponseCode.SUCCESS)

    def _on_group_config(self, _link: Link, command: Command, now: Now) -> Command | None:
        name = read_fields(GroupNameFields, command.fields).group
        found = self._groups.find(name, now.wall_ms)
        if found is None:
            return command.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=f"No group in this broker: {name}")
        return command.answer(ResponseCode.SUCCESS, body=dumps(msgspec.to_builtins(found)))

    def _on_forbidden(self, link: Link, command: Command, now: Now) -> Command | None:
        """Forbid a group to read a topic, or allow it; without `readable` only ask."""
        fields = read_fields(ForbiddenFields, command.fields)
        group, topic, groups = fields.group, fields.topic, self._groups
        if fields.readable:
            problem = group_name_error(group) or topic_name_error(topic)
            refusal = self._slave_refusal(command)
            if refusal is not None or problem is not None:
                return refusal or command.answer(ResponseCode.SYSTEM_ERROR, remark=problem)
            groups.forbid(group, topic, now.wall_ms, readable=is_true(fields.readable))
            log.info("admin: group=%s readable=%s topic=%s by %s", group, is_true(fields.readable), topic, link.peer)
            for queue in self._store.queues_of(topic):
                self._pulls.refuse_forbidden(queue, self._turn.out)
        body = {"group": group, "readable": not groups.forbidden.forbids(group, topic), "topic": topic}
        return command.answer(ResponseCode.SUCCESS, body=dumps(body))

    # Cleaning.

    def _on_clean_queues(self, _link: Link, command: Command, _now: Now) -> Command | None:
        """Delete queue files whose messages are no longer in the log."""
        store = self._store
        for queue in store.queues.values():
            queue.correct_min(store.log.start)
        return command.answer(ResponseCode.SUCCESS)

    def _on_clean_topics(self, link: Link, command: Command, now: Now) -> Command | None:
        """Delete the queues of topics that no longer exist."""
        if not self._turn.serving.is_master:
            # A slave's log may contain topics that are not in its table yet, which is copied less often.
            return command.answer(
                ResponseCode.SYSTEM_ERROR, remark="a slave's queues follow its log; send this to its master"
            )
        refusal = self._log_refusal(command)
        if refusal is not None:
            return refusal
        known = self._topics.table
        self._turn.commit(now)
        for name in sorted({topic for topic, _ in self._store.queues if topic not in known}):
            self._answer_held_pulls(name)
            self._store.delete_topic(name, now.wall_ms)
            log.info("admin: queues of topic=%s deleted by %s", name, link.peer)
        return command.answer(ResponseCode.SUCCESS)


def _group_problem(config: SubscriptionGroupConfig) -> str | None:
    problem = group_name_error(config.group_name)
    if problem is not None:
        return problem
    if not 0 <= config.retry_queue_nums <= QUEUES_MAX:
        return f"a group cannot have {brief(config.retry_queue_nums, 32)} retry queues; 0 to {QUEUES_MAX} are allowed"
    return None


def _log_written(kind: str, link: Link, written: list[Any]) -> None:
    if written:
        named = "; ".join(brief(config, 1_000) for config in written[:NAMED_MAX])
        log.info(
            "admin: %d %s written by %s: %s%s",
            len(written),
            kind,
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
