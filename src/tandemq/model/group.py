"""Consumer groups: their configuration, members and subscriptions.

Source: docs/reference/requests.md, "heartbeat"; RocketMQ SubscriptionGroupConfig, SubscriptionData, HeartbeatData.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from tandemq.errors import ConfigError
from tandemq.model.java_hash import java_hash, java_hashes
from tandemq.model.java_types import ConsumeFromWhere, ConsumeType, Int32, Int64, MessageModel

TAG_EXPRESSION = "TAG"
SQL_EXPRESSION = "SQL92"
SUBSCRIBE_ALL = "*"
LONG_TAGS = 500
"""Total number of characters above which tags are hashed with numpy."""
RETRY_DELAYS_MAX = 100
"""Maximum number of delays in the retry policy of a group."""


class ExponentialRetryPolicy(msgspec.Struct, rename="camel"):
    """Growing delays (ms) between the deliveries of a message."""

    initial: Int64 = 5_000
    max: Int64 = 7_200_000
    multiplier: Int64 = 2


class CustomizedRetryPolicy(msgspec.Struct, rename="camel"):
    """Delays (ms) between the deliveries of a message, the last one for all further ones."""

    next: Annotated[list[Int64], msgspec.Meta(max_length=RETRY_DELAYS_MAX)] = []


class GroupRetryPolicy(msgspec.Struct, rename="camel"):
    """Delays between deliveries, which a proxy passes to its gRPC clients; the broker does not use them."""

    type: Literal["EXPONENTIAL", "CUSTOMIZED"] = "CUSTOMIZED"
    exponential_retry_policy: ExponentialRetryPolicy | msgspec.UnsetType | None = msgspec.UNSET
    customized_retry_policy: CustomizedRetryPolicy | msgspec.UnsetType | None = msgspec.UNSET


class SubscriptionGroupConfig(msgspec.Struct, rename="camel"):
    """Configuration of a consumer group on one broker; names as in subscriptionGroup.json."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int32 = 0
    consume_timeout_minute: Int32 = 15
    group_retry_policy: GroupRetryPolicy = msgspec.field(default_factory=GroupRetryPolicy)
    attributes: dict[str, str] = {}


SQL_CHARACTERS_MAX = 16_384


@dataclass(frozen=True, slots=True)
class Sql:
    """A subscription by an SQL92 expression over the properties of messages, which the broker evaluates.

    Args:
        expression: for instance `region = 'EU' AND amount > 100`; see docs/reference/filters.md.
    """

    expression: str

    def __post_init__(self) -> None:
        """Check that it can be an expression; whether it compiles is for the broker to say.

        Raises:
            ConfigError: it is empty, too long, or no text.
        """
        if not isinstance(self.expression, str) or not self.expression.strip():
            raise ConfigError(
                "an SQL92 expression must be a text that is not empty", hint="for instance `amount > 100`"
            )
        if len(self.expression) > SQL_CHARACTERS_MAX:
            raise ConfigError(
                f"the expression has {len(self.expression)} characters, the maximum is {SQL_CHARACTERS_MAX}"
            )


def is_tag_expression(kind: str | None) -> bool:
    """Return whether a type of expression, as clients name it, is that of tags."""
    return kind is None or kind == TAG_EXPRESSION


class SubscriptionData(msgspec.Struct, rename="camel"):
    """Subscription of a consumer to one topic."""

    topic: str
    sub_string: str = SUBSCRIBE_ALL
    tags_set: list[str] = []
    code_set: list[Int32] = []
    sub_version: Int64 = 0
    class_filter_mode: bool = False
    expression_type: str | None = TAG_EXPRESSION


class ConsumerData(msgspec.Struct, rename="camel"):
    """One consumer group of a client, as in a heartbeat."""

    group_name: str
    consume_type: ConsumeType = "CONSUME_PASSIVELY"
    message_model: MessageModel = "CLUSTERING"
    consume_from_where: ConsumeFromWhere = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class ProducerData(msgspec.Struct, rename="camel"):
    """One producer group of a client, as in a heartbeat."""

    group_name: str


class HeartbeatData(
    msgspec.Struct,
    rename={
        "client_id": "clientID",
        "producers": "producerDataSet",
        "consumers": "consumerDataSet",
        "fingerprint": "heartbeatFingerprint",
        "without_sub": "withoutSub",
    },
):
    """A client's heartbeat: its id, producer groups and consumer groups."""

    client_id: str
    producers: list[ProducerData] = []
    consumers: list[ConsumerData] = []
    fingerprint: Int32 = 0
    without_sub: bool = False


def parse_tag_expression(expression: str | None) -> list[str] | None:
    """Return the tags of an expression such as `a || b`; None if every message matches.

    Raises:
        ValueError: the expression contains no tag.
    """
    if expression is None or expression.strip() in ("", SUBSCRIBE_ALL):
        return None
    tags = [tag for piece in expression.split("||") if (tag := piece.strip())]
    if not tags:
        raise ValueError(f"subscription {expression[:64]!r} names no tag; write `*` or `a || b`")
    return tags


def tag_codes(tags: list[str]) -> list[int]:
    """Return the Java hash codes of tags, as stored in consume queue entries (sign-extended 32-bit)."""
    if sum(map(len, tags)) > LONG_TAGS:
        return java_hashes(tags)
    return [java_hash(tag) for tag in tags]
