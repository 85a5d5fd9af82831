"""JSON objects of responses."""

from typing import Annotated

import msgspec
from msgspec import Meta

from tandemq.console.api.requests import MemberConfig
from tandemq.console.api.types import Level, Next, Output
from tandemq.coordination.registry.records import Mode
from tandemq.model.quota import Kind


class LimitItem(Output, frozen=True, kw_only=True):
    """A limit of a user, topic or group on every master, and how often all masters together saw it exceeded."""

    kind: Kind
    name: str
    messages_per_second: int
    bytes_per_second: int
    connections: int
    in_flight: int
    slows: bool
    refused: int
    slowed: int


class LimitPage(Output, frozen=True, kw_only=True):
    """A part of the list of limits."""

    items: list[LimitItem]
    next: Next


class TokenInfo(Output, frozen=True, kw_only=True):
    """The token of the request."""

    user: str
    name: str
    number: int
    role: Annotated[str, Meta(description="Effective role: the lower of the token's role and its user's.")]
    created: int
    expires: int


class RunningMember(Output, frozen=True, kw_only=True):
    """A broker of a group, as it is seen now."""

    id: int
    address: str
    is_master: bool
    answers: bool
    in_sync: Annotated[bool | None, Meta(description="null: unknown, or the master itself.")]
    may_read: bool
    may_write: bool
    stage: str
    why: str
    lag_bytes: int | None
    lag_ms: int | None
    log_end: int | None
    puts_per_s: float | None
    gets_per_s: float | None
    disk_used: Annotated[float | None, Meta(description="Used part of its device, 0 to 1.")]
    version: str


class RunningGroup(Output, frozen=True, kw_only=True):
    """A broker group, as it is seen now."""

    name: str
    cluster: str
    mode: str
    epoch: int | None
    level: Level
    problems: list[str]
    since: Annotated[int, Meta(description="When it got its level, as far as this console saw.")]
    members: list[RunningMember]


class ClusterState(Output, frozen=True, kw_only=True):
    """The cluster, at most a second old."""

    at: int
    level: Level
    sentences: list[str]
    groups: list[RunningGroup]


class TopicItem(Output, frozen=True, kw_only=True):
    """A topic in the list; numbers of queues are those of all brokers together."""

    name: str
    kind: str
    brokers: list[str]
    read_queues: int
    write_queues: int
    perm: int
    order: bool


class TopicPage(Output, frozen=True, kw_only=True):
    """A part of the list of topics, by name."""

    items: list[TopicItem]
    next: Next


class QueueState(Output, frozen=True, kw_only=True):
    """A queue of a topic."""

    broker: str
    queue: int
    first: int
    end: int
    last_stored: int


class TopicState(Output, frozen=True, kw_only=True):
    """A topic with its queues, and the lag of the groups that read it."""

    name: str
    kind: str
    brokers: list[str]
    queues: list[QueueState]
    lags: dict[str, int]


class SendOutcome(Output, frozen=True, kw_only=True):
    """What the broker answered to a send."""

    topic: str
    broker: str
    queue: int
    offset: int
    status: str
    unique_key: str
    offset_message_id: str


class MessageItem(Output, frozen=True, kw_only=True):
    """A message in a list. Tag and keys are null if the token may not see them."""

    topic: str
    broker: str
    queue: int
    offset: int
    stored: int
    size: int
    unique_key: str
    tag: str | None
    keys: list[str] | None


class MessageList(Output, frozen=True, kw_only=True):
    """The messages that were found, oldest first; at most 64."""

    items: list[MessageItem]


class MessagePage(Output, frozen=True, kw_only=True):
    """A part of the messages of a queue."""

    items: list[MessageItem]
    next: Next


class MessageState(Output, frozen=True, kw_only=True):
    """A message. Body and properties are null if the token may not see them; a body that is no UTF-8 is in base64."""

    topic: str
    broker: str
    queue: int
    offset: int
    log_offset: int
    size: int
    stored: int
    store_host: str
    born: int
    born_host: str
    unique_key: str
    offset_message_id: str
    reconsume_times: int
    properties: dict[str, str] | None
    body: str | None
    body_base64: bytes | None
    fault: Annotated[str, Meta(description="Why the body could not be decompressed; empty if it was.")]
    consumed: Annotated[dict[str, bool], Meta(description="Groups that read the queue: whether each consumed it.")]


class TraceItem(Output, frozen=True, kw_only=True):
    """What a client reported about a message."""

    event: str
    time: int
    group: str
    client: str
    broker: str
    cost_ms: int | None
    success: bool | None
    outcome: str
    retry_times: int


class TraceState(Output, frozen=True, kw_only=True):
    """What clients reported about a message, oldest first. Clients may lose reports, and any client may write them."""

    events: list[TraceItem]
    is_cut: Annotated[bool, Meta(description="Whether there may be more events.")]
    unreadable: int


class ConsumerItem(Output, frozen=True, kw_only=True):
    """A consumer group in the list."""

    name: str
    lag: int
    lag_ms: int
    topics: list[str]


class ConsumerPage(Output, frozen=True, kw_only=True):
    """A part of the list of consumer groups, by name."""

    items: list[ConsumerItem]
    next: Next


class QueueProgress(Output, frozen=True, kw_only=True):
    """How far a group has consumed a queue."""

    topic: str
    broker: str
    queue: int
    committed: int
    end: int
    lag: int
    last_consumed: Annotated[int, Meta(description="When the last consumed message was stored; 0: unknown.")]


class ClientState(Output, frozen=True, kw_only=True):
    """A client of a group."""

    id: str
    address: str
    language: str
    version: str


class ConsumerState(Output, frozen=True, kw_only=True):
    """A consumer group."""

    name: str
    lag: int
    progress: list[QueueProgress]
    lag_samples: Annotated[
        list[int],
        Meta(
            description="Lag of the last hour, oldest first: one per minute, more in the console's first ten minutes."
        ),
    ]
    clients: list[ClientState]
    subscriptions: dict[str, str]


class PlannedReset(Output, frozen=True, kw_only=True):
    """What a reset does to a queue. `before` is null if nothing was committed."""

    topic: str
    broker: str
    queue: int
    before: int | None
    after: int
    again: Annotated[int, Meta(description="Messages that are delivered again.")]
    skipped: Annotated[int, Meta(description="Messages that are skipped.")]


class ResetResult(Output, frozen=True, kw_only=True):
    """What a reset does, or would do."""

    items: list[PlannedReset]


class Letter(Output, frozen=True, kw_only=True):
    """A dead letter. Tag and keys are null if the token may not see them."""

    place: Annotated[str, Meta(description="Its name in an order to send it again.")]
    stored: int
    original_topic: str
    unique_key: str
    tag: str | None
    keys: list[str] | None


class LetterPage(Output, frozen=True, kw_only=True):
    """A part of the dead letters, queue by queue, oldest first."""

    items: list[Letter]
    next: Next


class LetterOutcome(Output, frozen=True, kw_only=True):
    """What became of a dead letter that was sent again."""

    place: str
    copy: Annotated[str, Meta(description="Where the copy is; empty if it was not sent.")]
    why: Annotated[str, Meta(description="Why it was not sent.")]


class ResendResult(Output, frozen=True, kw_only=True):
    """Outcomes of a request. `left`: letters that it has left out."""

    items: list[LetterOutcome]
    left: int


class ConfiguredGroup(Output, frozen=True, kw_only=True):
    """Configuration of a broker group in the database. `mode` is null if it was removed and the registry has it yet."""

    cluster: str
    revision: int
    applied_revision: int
    changed: int
    mode: Mode | None
    members: list[MemberConfig]


class PublicationState(Output, frozen=True, kw_only=True):
    """The last attempt to apply a configuration."""

    revision: int
    outcome: str
    reason: str
    publisher: str
    at: int


class BrokerGroupState(Output, frozen=True, kw_only=True):
    """A broker group: what is configured, what was applied, and what runs."""

    name: str
    configured: ConfiguredGroup | None
    publication: PublicationState | None
    running: RunningGroup | None


class BrokerGroupList(Output, frozen=True, kw_only=True):
    """All broker groups, by name."""

    items: list[BrokerGroupState]


class TakeoverState(Output, frozen=True, kw_only=True):
    """What a forced takeover may lose, by broker id, and the members that refuse one, with their reasons."""

    losses: dict[str, str]
    refusals: dict[str, str]


class TakeoverResult(Output, frozen=True, kw_only=True):
    """What a forced takeover may have lost."""

    lost: str


class ArchivedState(Output, frozen=True, kw_only=True):
    """The log of a broker group in a lake. `logEnd` and `behind` are null if the cluster does not have the group."""

    broker: str
    position: int
    epoch: int | None
    committed: int
    log_end: int | None
    behind: int | None


class LakeState(Output, frozen=True, kw_only=True):
    """A lake, from its newest commits."""

    path: str
    error: Annotated[str, Meta(description="Why it cannot be read; empty if it can.")]
    version: int
    commits: Annotated[int, Meta(description="Commits that were read; messages and bytes are those of them.")]
    last_added: int
    last_compacted: int
    messages: int
    bytes: int
    is_collected: bool
    logs: list[ArchivedState]


class CheckState(Output, frozen=True, kw_only=True):
    """A scrub or an audit, from its state file."""

    path: str
    error: str
    kind: str
    subject: str
    is_done: bool
    changed: int
    bytes: int
    records: int | None
    faults: int
    first_fault: int | None


class QueryState(Output, frozen=True, kw_only=True):
    """A streaming query of a project, from its checkpoint and its progress file. Null: unknown, or it has none."""

    name: str
    is_declarative: bool
    error: Annotated[str, Meta(description="Why its files cannot be read, or why it failed; empty otherwise.")]
    state: Annotated[str, Meta(description="What it last wrote: running, ended, failed, unknown.")]
    batch: int | None
    is_pending: Annotated[bool, Meta(description="A later micro-batch is planned.")]
    at: int
    rows: int | None
    rows_per_second: float | None
    watermark: int | None
    state_rows: int | None
    state_bytes: int | None
    late_rows: int | None
    behind: Annotated[int | None, Meta(description="Messages in the topics that it has not read.")]


class ProjectState(Output, frozen=True, kw_only=True):
    """A pipeline project."""

    path: str
    error: str
    queries: list[QueryState]


class PipelineState(Output, frozen=True, kw_only=True):
    """What the data pipeline has left on disk."""

    lakes: list[LakeState]
    checks: list[CheckState]
    projects: list[ProjectState]


class AuditItem(Output, frozen=True, kw_only=True):
    """An entry of the audit log."""

    number: int
    at: int
    who: str
    address: str
    action: str
    cluster: str
    target: str
    before: str
    after: str
    outcome: str


class AuditPage(Output, frozen=True, kw_only=True):
    """A part of the audit log, newest first."""

    items: list[AuditItem]
    next: Next


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Why a request failed (RFC 9457, application/problem+json)."""

    title: str
    status: int
    detail: str
    hint: Annotated[str, Meta(description="What to do about it.")] = ""
    errors: Annotated[list[str], Meta(description="All faults of a configuration.")] = []
    current: Annotated[ConfiguredGroup | None, Meta(description="The configuration that is stored by now.")] = None
