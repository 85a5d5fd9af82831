"""Header fields of administration requests as structs; see `codec.remoting.requests`.

Source: docs/reference/requests.md, "administration"; RocketMQ's protocol.header classes.
"""

import msgspec

from tandemq.model.java_types import Int32, Int64


class CreateTopicFields(msgspec.Struct, rename="camel"):
    """UPDATE_AND_CREATE_TOPIC (17). `attributes`: `+name=value,-name`; None leaves the attributes unchanged."""

    topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: str | None = None


class StaticTopicFields(msgspec.Struct, rename="camel"):
    """UPDATE_AND_CREATE_STATIC_TOPIC (513). `force`: the mapping replaces any other one."""

    topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    force: bool = False


class TopicFields(msgspec.Struct):
    """A topic: DELETE_TOPIC_IN_BROKER, GET_TOPIC_CONFIG, GET_TOPIC_STATS_INFO, QUERY_TOPIC_CONSUME_BY_WHO."""

    topic: str


class GroupNameFields(msgspec.Struct):
    """A consumer group under its short name: GET_SUBSCRIPTIONGROUP_CONFIG, QUERY_TOPICS_BY_CONSUMER."""

    group: str


class TopicGroupFields(msgspec.Struct, rename="camel"):
    """A topic and a group: QUERY_CONSUME_TIME_SPAN, QUERY_SUBSCRIPTION_BY_CONSUMER, and 223 with a client's id."""

    group: str
    topic: str
    client_addr: str = ""
    """A client id, in spite of its name."""


class ForbiddenFields(msgspec.Struct):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353). `readable`: a boolean as text; empty: nothing is changed."""

    group: str
    topic: str
    readable: str = ""


class DeleteGroupFields(msgspec.Struct, rename="camel"):
    """DELETE_SUBSCRIPTIONGROUP (207). 4.9 and 5.x use different names for the removal of offsets."""

    group_name: str
    remove_offset: bool = False
    clean_offset: bool = False


class ProducerGroupFields(msgspec.Struct, rename="camel"):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


class ConsumeStatsFields(msgspec.Struct, rename="camel"):
    """GET_CONSUME_STATS (208). `topic_list`: names separated by `;`, included even if they are not subscribed."""

    consumer_group: str
    topic: str = ""
    topic_list: str = ""


class BrokerConsumeStatsFields(msgspec.Struct, rename="camel"):
    """GET_BROKER_CONSUME_STATS (317)."""

    is_order: bool = False


class QueueEntriesFields(msgspec.Struct, rename="camel"):
    """QUERY_CONSUME_QUEUE (321), TANDEM_QUEUE_ENTRIES (7335), TANDEM_QUEUE_HEADS (7336)."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class StatsFields(msgspec.Struct, rename="camel"):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


class ResetOffsetFields(msgspec.Struct, rename="camel"):
    """INVOKE_BROKER_TO_RESET_OFFSET (222). `timestamp` below 0: the max offset; `queue_id` below 0: all queues."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool = False
    queue_id: Int32 = -1
    offset: Int64 | None = None


class CorrectionFields(msgspec.Struct, rename="camel"):
    """QUERY_CORRECTION_OFFSET (308). `filter_groups`: groups to exclude, separated by commas."""

    topic: str
    compare_group: str
    filter_groups: str = ""


class CloneOffsetFields(msgspec.Struct, rename="camel"):
    """CLONE_GROUP_OFFSET (314). `offline`: regardless of the topics that the group subscribes to now."""

    src_group: str
    dest_group: str
    topic: str = ""
    offline: bool = False


class RunningInfoFields(msgspec.Struct, rename="camel"):
    """GET_CONSUMER_RUNNING_INFO (307)."""

    consumer_group: str
    client_id: str


class ConsumeDirectlyFields(msgspec.Struct, rename="camel"):
    """CONSUME_MESSAGE_DIRECTLY (309). `msg_id`: an offset message id."""

    consumer_group: str
    client_id: str = ""
    msg_id: str = ""
    topic: str = ""
