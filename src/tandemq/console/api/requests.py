"""Types of requests: segments of the address, parameters, and JSON bodies."""

from typing import Annotated, Literal

from msgspec import Meta, field

from tandemq.console.api.types import (
    ID_MAX,
    AnyTopicName,
    Base64,
    BrokerId,
    BrokerName,
    Confirm,
    Cursor,
    GroupName,
    Input,
    Limit,
    Offset,
    Output,
    QueueId,
    Text,
    TimeMs,
    TopicName,
)
from tandemq.coordination.registry.records import BrokerPermission, Mode, Role
from tandemq.model.quota import CONNECTIONS_MAX, IN_FLIGHT_MAX, RATE_MAX, Kind


class TopicPath(Input, frozen=True, kw_only=True):
    """A topic."""

    topic: AnyTopicName


class ListQuery(Input, frozen=True, kw_only=True):
    """A part of a list."""

    q: Annotated[Text, Meta(description="Part of the name, without regard to case.")] = ""
    limit: Limit = 100
    cursor: Cursor = ""


class TopicQuery(ListQuery, frozen=True, kw_only=True):
    """A part of the list of topics."""

    kind: Annotated[
        Literal["", "normal", "retry", "dead letters", "system"],
        Meta(description="Empty: all but those of the system."),
    ] = ""


class TopicSettings(Input, frozen=True, kw_only=True):
    """Settings of a topic, the same on all masters."""

    queues: Annotated[int, Meta(ge=1, le=1_024, description="Per broker group.")] = 8
    perm: Annotated[Literal[2, 4, 6], Meta(description="2: write, 4: read, 6: both.")] = 6
    order: bool = False


class NewTopic(TopicSettings, frozen=True, kw_only=True):
    """A topic to create."""

    name: TopicName


class LimitQuery(Input, frozen=True, kw_only=True):
    """The user, topic or group of a limit."""

    kind: Kind
    name: Annotated[Text, Meta(min_length=1, description="`*`: each one without a limit of its own.")]


class LimitOrder(LimitQuery, frozen=True, kw_only=True):
    """A limit to set; 0: unlimited."""

    messages_per_second: Annotated[int, Meta(ge=0, le=RATE_MAX)] = 0
    bytes_per_second: Annotated[int, Meta(ge=0, le=RATE_MAX)] = 0
    connections: Annotated[int, Meta(ge=0, le=CONNECTIONS_MAX, description="Of a user.")] = 0
    in_flight: Annotated[int, Meta(ge=0, le=IN_FLIGHT_MAX, description="Of a group.")] = 0
    slows: Annotated[bool, Meta(description="Whether sends wait for up to a second before they are refused.")] = False


class ConfirmQuery(Input, frozen=True, kw_only=True):
    """A confirmation."""

    confirm: Confirm


class MessageOrder(Input, frozen=True, kw_only=True):
    """A message to send: a body as text, or in base64."""

    body: Annotated[str, Meta(max_length=1 << 20)] = ""
    body_base64: Base64 | None = None
    tag: Annotated[str, Meta(max_length=127)] = ""
    keys: Annotated[list[Annotated[str, Meta(min_length=1, max_length=255)]], Meta(max_length=64)] = field(
        default_factory=list
    )
    properties: dict[str, str] = field(default_factory=dict)
    delay_level: Annotated[int, Meta(ge=0, le=18)] = 0


class QueuePath(TopicPath, frozen=True, kw_only=True):
    """A queue."""

    broker: BrokerName
    queue: QueueId


class MessagePath(QueuePath, frozen=True, kw_only=True):
    """A message."""

    offset: Offset


class KeyQuery(Input, frozen=True, kw_only=True):
    """Messages with a key."""

    topic: AnyTopicName
    key: Annotated[str, Meta(min_length=1, max_length=255)]
    unique: Annotated[bool, Meta(description="Whether the key is the unique one.")] = False
    begin: TimeMs = 0
    end: TimeMs = 1 << 47


class IdQuery(Input, frozen=True, kw_only=True):
    """A message by its offset message id."""

    id: Annotated[str, Meta(pattern=r"^([0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})$")]


class TimeQuery(Input, frozen=True, kw_only=True):
    """Messages by the time when they were stored."""

    begin: TimeMs = 0
    end: TimeMs = 1 << 47


class OffsetQuery(Input, frozen=True, kw_only=True):
    """Messages of a queue."""

    limit: Annotated[int, Meta(ge=1, le=32, description="Maximum number of items.")] = 32
    cursor: Annotated[
        str, Meta(pattern=r"^[0-9]{0,18}$", description="Offset to begin with, or `next` of the part before.")
    ] = ""


class GroupPath(Input, frozen=True, kw_only=True):
    """A consumer group."""

    group: GroupName


class NewGroup(Input, frozen=True, kw_only=True):
    """A consumer group to create."""

    name: GroupName
    retries: Annotated[int, Meta(ge=0, le=1_000)] = 16


class QueueRef(Input, frozen=True, kw_only=True):
    """A queue of the topic."""

    broker: BrokerName
    queue: QueueId


class ToEarliest(Input, frozen=True, kw_only=True, tag_field="kind", tag="earliest"):
    """To the first message."""


class ToLatest(Input, frozen=True, kw_only=True, tag_field="kind", tag="latest"):
    """To the end."""


class ToOffset(Input, frozen=True, kw_only=True, tag_field="kind", tag="offset"):
    """To an offset."""

    offset: Offset


class ToTime(Input, frozen=True, kw_only=True, tag_field="kind", tag="time"):
    """To the first message stored at a time or later."""

    time: TimeMs


class ResetPlan(Input, frozen=True, kw_only=True):
    """Where to move a group: in one queue of a topic, or in all."""

    topic: AnyTopicName
    to: ToEarliest | ToLatest | ToOffset | ToTime
    queue: QueueRef | None = None


class ResetOrder(ResetPlan, frozen=True, kw_only=True):
    """A reset of offsets."""

    confirm: Confirm


class LetterQuery(Input, frozen=True, kw_only=True):
    """A part of the dead letters."""

    limit: Annotated[int, Meta(ge=1, le=100, description="Maximum number of items.")] = 100
    cursor: Annotated[
        str,
        Meta(
            max_length=400,
            pattern=r"^$|^[^/@]+/[0-9]{1,9}@[0-9]{1,18}$",
            description="`next` of the part before; empty: from the oldest on.",
        ),
    ] = ""


class ChosenLetters(Input, frozen=True, kw_only=True, tag_field="kind", tag="chosen"):
    """Some dead letters, by their places."""

    places: Annotated[list[Annotated[str, Meta(min_length=1, max_length=400)]], Meta(min_length=1, max_length=100)]


class AllLetters(Input, frozen=True, kw_only=True, tag_field="kind", tag="all"):
    """All dead letters from the oldest on, at most 500 per request."""

    confirm: Confirm


class ResendOrder(Input, frozen=True, kw_only=True):
    """Dead letters to send again."""

    letters: ChosenLetters | AllLetters


class BrokerGroupPath(Input, frozen=True, kw_only=True):
    """A broker group."""

    name: BrokerName


class MemberConfig(Output, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member of a broker group, as configured."""

    id: BrokerId
    role: Role
    permission: BrokerPermission = BrokerPermission.FULL
    weight: Annotated[int, Meta(ge=0, le=10_000)] = 100
    priority: Annotated[int, Meta(ge=-ID_MAX, le=ID_MAX)] = 0


class GroupOrder(Input, frozen=True, kw_only=True):
    """A configuration to store."""

    cluster: BrokerName = "DefaultCluster"
    revision: Annotated[int, Meta(ge=0, le=ID_MAX, description="The one that was read; 0: the group is new.")]
    mode: Mode
    members: Annotated[list[MemberConfig], Meta(min_length=1, max_length=16)]


class RemovalQuery(Input, frozen=True, kw_only=True):
    """A removal of a configuration."""

    revision: Annotated[int, Meta(ge=0, le=ID_MAX)]
    confirm: Confirm


class MasterOrder(Input, frozen=True, kw_only=True):
    """A member that shall become the master."""

    target: BrokerId
    confirm: Confirm


class AuditQuery(Input, frozen=True, kw_only=True):
    """A part of the audit log."""

    q: Annotated[Text, Meta(description="Part of the user, the action or the target.")] = ""
    limit: Limit = 100
    cursor: Annotated[
        str, Meta(pattern=r"^[0-9]{0,18}$", description="`next` of the part before; empty: from the newest on.")
    ] = ""
