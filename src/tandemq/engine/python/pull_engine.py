"""Pulls, which are all left to their handler: it specifies what the engine does."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tandemq.engine.python.pulls import LogSources
from tandemq.engine.python.send_engine import TopicTarget
from tandemq.engine.python.signatures import SigningUser


class PullCounts:
    """Messages of one topic sent to one group since the start."""

    __slots__ = ("answers", "bytes", "messages", "next_offsets")

    def __init__(self) -> None:
        """Begin at zero."""
        self.messages = 0
        self.bytes = 0
        self.answers = 0
        self.next_offsets: dict[int, int] = {}
        """Queue offset behind the last message sent, by queue id."""


class Subscribed(NamedTuple):
    """The subscription of a consumer group, by which a pull was allowed that has none of its own."""

    online: object
    """The connected members of the group."""
    subscriptions: dict[str, Any]
    """Their subscriptions by topic."""
    subscription: object
    """That to the topic."""
    version: int
    """Its version; pulls of a newer one are left to the handler."""


class PullTarget:
    """What a pull reads, and the objects by which it was allowed: it is valid while the tables hold the same ones."""

    def __init__(
        self,
        place: tuple[str, str, int],
        topic: TopicTarget,
        queue: Any,
        group: Any,
        selector: Any,
        subscribed: Subscribed | None = None,
    ) -> None:
        """Keep the parts.

        Args:
            place: topic, consumer group, queue id.
            topic, queue, group: those of the tables; the queue is a `QueueTail` with `read`.
            selector: what matches; its `codes` are the tags codes, None for all.
            subscribed: the subscription that says what matches; None: the request says it.
        """
        self.place = place
        self.queue = queue
        self.group = group
        self.selector = selector


class WaitingPull(NamedTuple):
    """A pull that has to wait for messages."""

    target: PullTarget
    opaque: int
    queue_offset: int
    scan_offset: int
    """Queue offset from which on entries are examined; no entry below it matches."""
    max_msg_nums: int
    sys_flag: int
    suspend_ms: int
    is_bulk: bool
    is_binary: bool


class PullEngine:
    """Pulls of one connection at a time: those that were allowed before and find messages are answered.

    Those that have to wait for messages are returned as such. The others are left to the handler: pulls that are new,
    unusual or to be refused, those that have to wait for the device, and all pulls without a compiler.
    """

    def __init__(
        self,
        *,
        topics: Mapping[str, TopicTarget],
        groups: Mapping[str, object],
        consumers: Mapping[str, object],
        forbidden: Mapping[str, object],
        static_topics: Mapping[str, object],
        resets: Mapping[tuple[str, str, int], object],
        counts: Mapping[tuple[str, str], PullCounts],
        ahead: Mapping[Any, tuple[int, bytes]],
    ) -> None:
        """Begin without targets. The tables are those of the broker, which changes them.

        Args:
            topics: topics by name.
            groups: consumer groups by name.
            consumers: groups with connected members, by name.
            forbidden: groups that may not read some topics, by name: their pulls are left to the handler.
            static_topics: likewise topics.
            resets: offsets that were reset, and that the next pull gets: by topic, group and queue id.
            counts: counts by topic and group.
            ahead: entries that were read ahead, by queue: queue offset of the first one, and the packed entries.
        """
        self.kept_bytes = 0
        """Estimated memory of the targets; beyond `kept_bytes_max` all are forgotten."""
        self.kept_bytes_max = 0
        self.messages = 0
        """Since `begin`: messages sent."""
        self.bytes = 0
        """Bytes of their records."""
        self.finds = 0
        """Responses with messages."""
        self.misses = 0
        """Responses without."""
        self.commits: list[tuple[tuple[str, str, int], int]] = []
        """Offsets that came with the pulls, each behind its topic, group and queue id."""
        self.answers: list[bytes] = []
        """Responses of `take`, in the order of the pulls."""
        self.waiting: list[tuple[Any, ...]] = []
        """Pulls that have to wait, with the fields of `WaitingPull`."""

    def configure(
        self, *, messages_max: int, bytes_max: int, bulk_messages_max: int, bulk_bytes_max: int, frame_bytes_max: int
    ) -> None:
        """Take changed settings, and forget all targets.

        Args:
            messages_max, bytes_max: limits of a response.
            bulk_messages_max, bulk_bytes_max: those of a large response, for pulls that ask for one.
            frame_bytes_max: limit of a request.
        """

    def add(self, target: PullTarget, subscription: str | None, kind: str | None, *, has_own: bool) -> None:
        """Add what pulls like one that was allowed read; `has_own`: whether the request says what matches.

        `subscription`, `kind`: expression and type in the request.
        """

    def begin(
        self,
        visible_end: int,
        written_end: int,
        recent_start: int,
        recent: bytearray | None,
        sources: LogSources | None,
        *,
        commits_pulled: bool = True,
    ) -> None:
        """Prepare for calls within a turn.

        Args:
            visible_end: log offset from which on messages may not be shown yet.
            written_end: end of the log.
            recent_start, recent, sources: see `gather_messages`.
            commits_pulled: whether offsets that come with pulls are committed.
        """

    def take(self, data: bytes, position: int, room: int, sender: SigningUser | None = None) -> int:
        """Take pulls from a position on, a millisecond of them at most; return the end of the last one.

        Args:
            data: what arrived on the connection.
            position: where a frame begins.
            room: bytes of messages from which on no further pull is answered.
            sender: the user that has to have signed the pulls, and may pull; None: no user is needed.

        Raises:
            Exception: what `sources.load` raises, but for `NotCached` and errors of the store.
        """
        return position

    def respond(
        self,
        target: PullTarget,
        opaque: int,
        queue_offset: int,
        scan_offset: int,
        max_msg_nums: int,
        is_bulk: bool,
        is_binary: bool,
    ) -> bytes | None:
        """Return the response to a pull that has waited; None: it is left to the handler. Raises as `take`."""
        return None
