"""Creation and change of static topics by operators' tools, which compute the mapping and send each broker its part.

The topic and its mapping are saved before the response. Pulls that wait on queues of the topic are answered: their
logical queues may be led by another broker now.

Source: docs/reference/requests.md, "static topics"; RocketMQ AdminBrokerProcessor.updateAndCreateStaticTopic.
"""

import logging

from tandemq.boundary import Now
from tandemq.broker.features.static_topics.cleaning import StaticTopicCleaning
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pulls import Pulls
from tandemq.broker.kernel.serving import Right
from tandemq.broker.state.queue_mappings import parse_mapping
from tandemq.broker.state.topic_checks import QUEUES_MAX, SLAVE_REMARK, reserved_name_problem, topic_config_problem
from tandemq.codec.remoting.admin_requests import StaticTopicFields
from tandemq.codec.remoting.fastjson import loads
from tandemq.codec.remoting.requests import read_fields
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.queue_mapping import QueueMapping, request_problem
from tandemq.model.text import brief
from tandemq.model.topic import DLQ_PREFIX, REPLY_TOPIC_SUFFIX, RETRY_PREFIX, TopicConfig, topic_name_error

log = logging.getLogger(__name__)


class StaticTopicProcessor(Feature):
    """Handle the request that creates or changes a static topic."""

    def __init__(self, kernel: Kernel, cleaning: StaticTopicCleaning) -> None:
        """Begin."""
        self._store = kernel.store
        self._topics = kernel.topics
        self._pulls = kernel.features.find(Pulls)
        self._cleaning = cleaning
        self._current = kernel.current
        self._turn = kernel.turn

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {
            Code.UPDATE_AND_CREATE_STATIC_TOPIC: Request(self._on_update, Right.WRITE, is_saved=True, is_copied=True)
        }

    def _on_update(self, link: Link, command: Command, now: Now) -> Command | None:
        if not self._turn.serving.is_master:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=SLAVE_REMARK)
        fields = read_fields(StaticTopicFields, command.fields)
        problem = self._name_problem(fields.topic)
        if problem is not None:
            return command.answer(ResponseCode.INVALID_PARAMETER, remark=problem)
        wanted = parse_mapping(loads(command.body), "mapping")
        problem = request_problem(wanted)
        if problem is not None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=f"mapping: {problem}")
        mapping = self._topics.mappings.merged(wanted)
        known = self._topics.get(fields.topic)
        config = TopicConfig(
            fields.topic,
            fields.read_queue_nums,
            fields.write_queue_nums,
            fields.perm,
            fields.topic_filter_type,
            fields.topic_sys_flag,
            known.config.order if known is not None else False,
            known.config.attributes if known is not None else {},
        )
        problem = self._problem(config, mapping, is_forced=fields.force)
        if problem is not None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=problem)
        self._topics.put_static(config, mapping, now.wall_ms)
        self._answer_held_pulls(fields.topic)
        self._cleaning.soon(now)
        log.info(
            "admin: static topic=%s of %d queues written by %s: epoch=%d, %d queues take messages here: %s",
            mapping.topic,
            mapping.total_queues,
            link.peer,
            mapping.epoch,
            len(mapping.led()),
            brief(mapping.led(), 500),
        )
        return command.answer(ResponseCode.SUCCESS)

    def _name_problem(self, name: str) -> str | None:
        problem = topic_name_error(name) or reserved_name_problem(name, self._current.config)
        if problem is None and (name.startswith((RETRY_PREFIX, DLQ_PREFIX)) or name.endswith(f"_{REPLY_TOPIC_SUFFIX}")):
            problem = (
                f"topic[{name}] cannot be static: brokers store messages that are sent back, dead letters and replies "
                "in queues of their own, which consumers of logical queues do not read; choose another name"
            )
        return problem

    def _problem(self, config: TopicConfig, mapping: QueueMapping, *, is_forced: bool) -> str | None:
        topics, name = self._topics, config.topic_name
        unserved = topics.unserved_remark(name)
        if unserved is not None:
            return unserved
        if mapping.topic != name:
            return f"the header names topic {name}, the mapping {brief(mapping.topic, 64)}"
        if mapping.total_queues > QUEUES_MAX:
            return f"a static topic cannot have {mapping.total_queues} queues; at most {QUEUES_MAX} are allowed"
        if topics.get(name) is not None and name not in topics.mappings.table:
            return f"topic {name} exists and is an ordinary one; delete it first, or choose another name"
        for number, segment in mapping.local_segments():
            if segment.queue_id >= max(config.write_queue_nums, config.read_queue_nums):
                return f"logical queue {number} is in queue {segment.queue_id}, of {config.write_queue_nums} queues"
        problem = topics.mappings.problem(mapping, is_forced=is_forced)
        return problem or topic_config_problem(config, queues_min=0) or topics.full([config])

    def _answer_held_pulls(self, topic: str) -> None:
        for (name, _), queue in self._store.queues.items():
            if name == topic:
                self._pulls.end_held(queue, self._turn.out)
