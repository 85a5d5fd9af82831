"""Consumer groups: their configuration, members and subscriptions.

Source: docs/requests.md, "heartbeat"; RocketMQ SubscriptionGroupConfig, SubscriptionData, HeartbeatData.
"""

import msgspec

from tandemq.model.hashing import java_hash, java_hashes

TAG_EXPRESSION = "TAG"
SUBSCRIBE_ALL = "*"
LONG_TAGS = 500
"""Characters above which tags are hashed all at once."""


class SubscriptionGroupConfig(msgspec.Struct, rename="camel"):
    """A consumer group on one broker; names as in subscriptionGroup.json."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: dict[str, str] = {}


class SubscriptionData(msgspec.Struct, rename="camel"):
    """What a consumer wants of one topic."""

    topic: str
    sub_string: str = SUBSCRIBE_ALL
    tags_set: list[str] = []
    code_set: list[int] = []
    sub_version: int = 0
    class_filter_mode: bool = False
    expression_type: str | None = TAG_EXPRESSION


class ConsumerData(msgspec.Struct, rename="camel"):
    """One consumer group of a client, as in a heartbeat."""

    group_name: str
    consume_type: str | None = "CONSUME_PASSIVELY"
    message_model: str | None = "CLUSTERING"
    consume_from_where: str | None = "CONSUME_FROM_LAST_OFFSET"
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
    """A client's heartbeat: who it is, what it produces and consumes."""

    client_id: str
    producers: list[ProducerData] = []
    consumers: list[ConsumerData] = []
    fingerprint: int = 0
    without_sub: bool = False


def parse_tag_expression(expression: str | None) -> list[str] | None:
    """Tags of `a || b`; None means everything matches.

    Raises:
        ValueError: the expression has no tag in it.
    """
    if expression is None or expression.strip() in ("", SUBSCRIBE_ALL):
        return None
    tags = [tag for piece in expression.split("||") if (tag := piece.strip())]
    if not tags:
        raise ValueError(f"subscription {expression[:64]!r} names no tag; write `*` or `a || b`")
    return tags


def tag_codes(tags: list[str]) -> list[int]:
    """Java hash codes of tags, as consume queue entries carry them (sign-extended 32-bit)."""
    if sum(map(len, tags)) > LONG_TAGS:
        return java_hashes(tags)
    return [java_hash(tag) for tag in tags]
