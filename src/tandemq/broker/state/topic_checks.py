"""Checks common to requests that write topics and groups: limits, and refusals.

Source: docs/reference/requests.md, "administration".
"""

from tandemq.config.settings import BrokerConfig
from tandemq.model.java_types import INT32_MAX
from tandemq.model.text import brief
from tandemq.model.topic import SYSTEM_TOPICS, TopicConfig, filter_type_error, reply_topic

QUEUES_MAX = 16_384
"""Maximum number of queues of one topic on one broker."""
PERMISSIONS_MAX = 15
SYSTEM_PREFIX = "rmq_sys_"
SLAVE_REMARK = "Can't modify topic or subscription group from slave broker, please execute it from master broker."


def system_topics(config: BrokerConfig) -> set[str]:
    """Return the names that a broker reserves for its own topics."""
    return {*SYSTEM_TOPICS, config.cluster, config.broker_name, reply_topic(config.cluster), config.trace_topic}


def reserved_name_problem(name: str, config: BrokerConfig) -> str | None:
    """Return why operators may not create, change or delete a topic of this name; None if they may."""
    if name in system_topics(config) or name.startswith(SYSTEM_PREFIX):
        return f"The topic[{name}] is conflict with system topic."
    return None


def topic_config_problem(config: TopicConfig, *, queues_min: int) -> str | None:
    """Return what is wrong with the numbers and the filter type of a topic; None if they are valid."""
    for nums in (config.read_queue_nums, config.write_queue_nums):
        if not queues_min <= nums <= QUEUES_MAX:
            return f"topic {config.topic_name} cannot have {nums} queues; {queues_min} to {QUEUES_MAX} are allowed"
    if not 0 <= config.perm <= PERMISSIONS_MAX:
        return f"{config.perm} is not a permission; 4 is read, 2 is write, 6 is both"
    if not 0 <= config.topic_sys_flag <= INT32_MAX:
        return f"topicSysFlag {brief(config.topic_sys_flag, 32)} is outside 0 to {INT32_MAX}"
    return filter_type_error(config.topic_filter_type)
