"""Header fields of requests as structs, one per request, with the field names of the wire.

Numbers and booleans arrive as text and are converted as in Java. `read_fields` raises if a field without a default is
missing.

Source: docs/reference/requests.md; RocketMQ's protocol.header classes.
"""

from functools import lru_cache
from typing import TypeVar

import msgspec

from tandemq.codec.remoting.bodies import convert
from tandemq.model.java_types import Int32, Int64


def is_true(text: str) -> bool:
    """Return what Java's Boolean.parseBoolean returns: True for "true" in upper or lower case."""
    return text.lower() == "true"


class SendFieldsV1(msgspec.Struct, rename="camel", gc=False):
    """SEND_MESSAGE (10)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    max_reconsume_times: Int32 | None = None
    batch: str = "false"


class SendFields(
    msgspec.Struct,
    gc=False,
    rename={
        "producer_group": "a",
        "topic": "b",
        "default_topic": "c",
        "default_topic_queue_nums": "d",
        "queue_id": "e",
        "sys_flag": "f",
        "born_timestamp": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "max_reconsume_times": "l",
        "batch": "m",
    },
):
    """SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320): the same fields, one letter each."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    max_reconsume_times: Int32 | None = None
    batch: str = "false"


class PullFields(msgspec.Struct, rename="camel", gc=False):
    """PULL_MESSAGE (11), LITE_PULL_MESSAGE (361). `sys_flag`: 1 commit, 2 suspend, 4 subscription, 8 class filter."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32 = 0
    commit_offset: Int64 = 0
    suspend_timeout_millis: Int64 = 0
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None
    bulk: str = "false"
    """Of TandemQ only: "true" for large responses, for readers of whole queues."""


class PullFrame(msgspec.Struct, gc=False):
    """The whole JSON header of a pull."""

    code: Int32
    opaque: Int32
    extFields: PullFields  # noqa: N815  # the name on the wire
    flag: Int32 = 0
    version: Int32 = 0


class QueueFields(msgspec.Struct, rename="camel"):
    """A queue of a topic: GET_MAX_OFFSET, GET_MIN_OFFSET, GET_EARLIEST_MSG_STORETIME."""

    topic: str
    queue_id: Int32


class QueueBoundsBody(msgspec.Struct):
    """TANDEM_QUEUE_BOUNDS (7333)."""

    topics: list[str]


class SearchOffsetFields(msgspec.Struct, rename="camel"):
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str = "lower"


class QueryOffsetFields(msgspec.Struct, rename="camel"):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: str = "true"


class CommitOffsetFields(msgspec.Struct, rename="camel"):
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class SendBackFields(msgspec.Struct, rename="camel"):
    """CONSUMER_SEND_MSG_BACK (36)."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str = ""
    origin_topic: str = ""
    max_reconsume_times: Int32 | None = None


class QueryMessageFields(msgspec.Struct, rename="camel"):
    """QUERY_MESSAGE (12)."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64


class ViewMessageFields(msgspec.Struct):
    """VIEW_MESSAGE_BY_ID (33)."""

    offset: Int64


class EndTransactionFields(msgspec.Struct, rename="camel"):
    """END_TRANSACTION (37)."""

    producer_group: str
    tran_state_table_offset: Int64
    """Queue offset of the half message."""
    commit_log_offset: Int64
    commit_or_rollback: Int32
    """0: unknown, 8: commit, 12: rollback."""
    msg_id: str = ""
    transaction_id: str = ""
    from_transaction_check: bool = False


class ResumeCheckFields(msgspec.Struct, rename="camel"):
    """RESUME_CHECK_HALF_MESSAGE (323)."""

    msg_id: str
    """Offset id of the half message, or of its copy in the topic of half messages that were given up."""


class RecallFields(msgspec.Struct, rename="camel"):
    """RECALL_MESSAGE (370)."""

    topic: str
    recall_handle: str
    producer_group: str = ""


class PopFields(msgspec.Struct, rename="camel", gc=False):
    """POP_MESSAGE (200050), and PEEK_MESSAGE (200052), which has the first four."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64 = 0
    poll_time: Int64 = 0
    born_time: Int64 = 0
    init_mode: Int32 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: str = "false"
    attempt_id: str | None = None


class NotificationFields(msgspec.Struct, rename="camel"):
    """NOTIFICATION (200054)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64
    order: str = "false"
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class PollingInfoFields(msgspec.Struct, rename="camel"):
    """POLLING_INFO (200055)."""

    consumer_group: str
    topic: str
    queue_id: Int32


class AckFields(msgspec.Struct, rename="camel", gc=False):
    """ACK_MESSAGE (200051), and CHANGE_MESSAGE_INVISIBLETIME (200053), which has the last two fields."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64 = -1
    suspend: str = "false"


class GroupFields(msgspec.Struct, rename="camel"):
    """A consumer group: GET_CONSUMER_LIST_BY_GROUP and others."""

    consumer_group: str


class UnregisterClientFields(msgspec.Struct):
    """UNREGISTER_CLIENT (35)."""

    clientID: str  # noqa: N815  # the name on the wire
    producerGroup: str = ""  # noqa: N815
    consumerGroup: str = ""  # noqa: N815


_Fields = TypeVar("_Fields", bound=msgspec.Struct)


def read_fields(kind: type[_Fields], fields: dict[str, str]) -> _Fields:
    """Convert header fields to the struct `kind`.

    Raises:
        ProtocolError: a field is missing or malformed; the message names it.
    """
    booleans = _booleans(kind)
    values = fields | {name: is_true(fields[name]) for name in booleans if name in fields} if booleans else fields
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError:  # a number with a plus sign, or an empty one, which counts as missing
        return convert(values, kind, "header fields")


@lru_cache(maxsize=256)
def _booleans(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    fields = msgspec.structs.fields(kind)
    return tuple(field.encode_name for field in fields if field.type is bool)


decode_pull_frame = msgspec.json.Decoder(PullFrame, strict=False).decode
