"""Topics: configuration, permissions, and reserved names of topics and groups.

Source: docs/internals/storage.md, "topics"; RocketMQ TopicConfig, TopicValidator, PermName, MixAll.
"""

import re
from collections.abc import Iterable
from enum import IntFlag

import msgspec

from tandemq.model.java_types import Int32, TopicFilterType

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
AUTO_CREATE_TOPIC = "TBW102"
ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""Namespace of name servers in which order topics have their queues per broker, like `broker-a:4;broker-b:4`."""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DELETION_TOPIC = "$deleted"
"""Topic of the records that say that a topic was deleted; no client can name it. They have the bits of a rollback, so
brokers that do not know them enter them nowhere."""
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
"""Timed messages until they are delivered."""
REVIVE_TOPIC_PREFIX = "rmq_sys_REVIVE_LOG_"
"""Of the topic, one per cluster, of what POP consumers have taken and acknowledged."""
TIMER_DONE_TOPIC = "rmq_sys_wheel_timer_done"
"""Records of TandemQ's own: which timed messages are delivered."""
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
REPLY_TOPIC_SUFFIX = "REPLY_TOPIC"

SINGLE_TAG = "SINGLE_TAG"
FILTER_TYPES = frozenset({SINGLE_TAG, "MULTI_TAG"})

TOPIC_CHARACTERS_MAX = 127
GROUP_CHARACTERS_MAX = 255
FORBIDDEN_FOR_SENDING = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        TIMER_TOPIC,
        TIMER_DONE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
SYSTEM_TOPICS = FORBIDDEN_FOR_SENDING | {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}
SYSTEM_GROUPS = frozenset(
    {
        "DEFAULT_CONSUMER",
        "DEFAULT_PRODUCER",
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER",
        "CLIENT_INNER_PRODUCER",
        "SELF_TEST_P_GROUP",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
        "CID_RMQ_SYS_TRANS",
    }
)
_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
_ALLOWED_OF_RETRIES = re.compile(r"[%|a-zA-Z0-9_+-]+\Z")
"""The retry topics of POP join group and topic by "+"."""


def own_topics(brokers: Iterable[str], clusters: Iterable[str]) -> frozenset[str]:
    """Return the names of topics that the brokers of a cluster make for themselves; not those of retries and dead
    letters."""
    clusters = list(clusters)
    return SYSTEM_TOPICS | {*brokers, *clusters, *(f"{name}_{REPLY_TOPIC_SUFFIX}" for name in clusters)}


def takes_no_sends(topic: str) -> bool:
    """Whether a topic is one that producers may not send to."""
    return topic in FORBIDDEN_FOR_SENDING or topic.startswith(REVIVE_TOPIC_PREFIX)


class Permission(IntFlag):
    """Permissions of clients on a topic's queues. INHERIT lets producers create topics with this one as template."""

    NONE = 0
    INHERIT = 1
    WRITE = 2
    READ = 4
    READ_WRITE = 6


class TopicConfig(msgspec.Struct, rename="camel", omit_defaults=False):
    """Configuration of a topic on one broker; field names on the wire and in topics.json are RocketMQ's."""

    topic_name: str
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = 6
    topic_filter_type: TopicFilterType = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] = {}


def reply_topic(cluster: str) -> str:
    """Return the topic to which replies are sent in a cluster."""
    return f"{cluster}_{REPLY_TOPIC_SUFFIX}"


def filter_type_error(text: str) -> str | None:
    """Return what is wrong with a topic's filter type, None if it is valid."""
    return None if text in FILTER_TYPES else f"topicFilterType {text[:64]!r} is unknown; use SINGLE_TAG"


def topic_name_error(name: str) -> str | None:
    """Return what is wrong with a topic name, None if it is valid."""
    if not name:
        return "the topic name is empty"
    longest = GROUP_CHARACTERS_MAX if name.startswith((RETRY_PREFIX, DLQ_PREFIX)) else TOPIC_CHARACTERS_MAX
    allowed = _ALLOWED_OF_RETRIES if name.startswith(RETRY_PREFIX) else _ALLOWED
    return _name_error("topic", name, longest, allowed)


def group_name_error(name: str) -> str | None:
    """Return what is wrong with a group name, None if it is valid."""
    if not name:
        return "the group name is empty"
    return _name_error("group", name, GROUP_CHARACTERS_MAX, _ALLOWED)


def _name_error(kind: str, name: str, longest: int, allowed: re.Pattern[str]) -> str | None:
    if len(name) > longest:
        return f"the {kind} name has {len(name)} characters, at most {longest} are allowed"
    if not allowed.match(name):
        return f"the {kind} name {name[:64]!r} contains illegal characters, allowed are {allowed.pattern[:-2]}"
    return None


def retry_topic(group: str) -> str:
    """Return the topic for a group's messages that are to be consumed again."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic for a group's messages whose retries are used up."""
    return DLQ_PREFIX + group


def is_system_group(group: str) -> bool:
    """Whether a group is reserved for RocketMQ's own tools."""
    return group in SYSTEM_GROUPS or group.startswith("CID_RMQ_SYS_")
