"""Pulls that the engine answers: those like one that was allowed before, and that find messages in memory.

    first pull ──► checked and answered in Python ──► PullTarget, which names what it was allowed by
    next pulls ──► PullEngine.take ──► responses

The engine compares the objects of a target with those of the tables, so that no change has to be announced to it.
"""

from tandemq.broker.features.pulls.checks import SUBSCRIPTION
from tandemq.broker.features.pulls.pull_request import PullRequest
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pull_counters import PullCounters
from tandemq.broker.kernel.serving import Serving
from tandemq.codec.remoting.requests import PullFields
from tandemq.config.settings import BrokerConfig
from tandemq.engine import PullEngine, PullTarget, SigningUser, Subscribed

BULK_MESSAGES_MAX = 4096
BULK_BYTES_MAX = 1 << 20
"""Limits of a response to a pull that asks for a large one (`bulk`), unless those of the configuration are larger."""


class EnginePulls:
    """The engine and its targets."""

    def __init__(self, kernel: Kernel, counters: PullCounters) -> None:
        """Begin without targets. The owner calls `adopt_config` before the first pull."""
        self._store = kernel.store
        self._topics = kernel.topics.table
        self._groups = kernel.groups.table
        self._consumers = kernel.clients.consumers
        self._offsets = kernel.offsets
        self._damages = kernel.damages
        self._counters = counters
        self._engine = PullEngine(
            topics=self._topics,
            groups=self._groups,
            consumers=self._consumers,
            forbidden=kernel.groups.forbidden.table,
            static_topics=kernel.topics.mappings.table,
            resets=kernel.offsets.pending.table,
            counts=counters.by_group,
            ahead=kernel.store.queue_files.ahead,
        )

    def adopt_config(self, config: BrokerConfig) -> None:
        """Take the settings, at the start and when they change: pulls are checked again."""
        self._suggests_slaves = config.slave_read_enable
        messages_max, bytes_max = config.transfer_messages_max, config.transfer_bytes_max
        self._engine.configure(
            messages_max=messages_max,
            bytes_max=bytes_max,
            bulk_messages_max=max(messages_max, BULK_MESSAGES_MAX),
            bulk_bytes_max=max(bytes_max, BULK_BYTES_MAX),
            frame_bytes_max=config.frame_bytes_max,
        )

    @property
    def answers(self) -> list[bytes]:
        """Responses of the last call of `take`."""
        return self._engine.answers

    @property
    def sent_bytes(self) -> int:
        """Bytes of their messages."""
        return self._engine.bytes

    def take(
        self, data: bytes, position: int, room: int, serving: Serving, sender: SigningUser | None, now_ms: int
    ) -> int:
        """Answer pulls from a position on, until there are `room` bytes of messages; return the end of the last one."""
        if serving.read is not None or self._suggests_slaves or self._damages.ranges:
            return position
        engine, commits_pulled = self._engine, serving.takes_pulled_commits
        after = self._store.log.reader.answer(
            engine, data, position, room, serving.visible_end, sender, commits_pulled=commits_pulled
        )
        self._counters.add(engine.messages, engine.bytes, engine.finds, engine.misses)
        for place, offset in engine.commits:
            if self._offsets.has_room(*place):
                self._offsets.commit_of_member(*place, offset, now_ms)
        return after

    def add(self, pull: PullRequest, expression: str | None, kind: str | None) -> None:
        """Leave pulls like this one, which was allowed and has found messages, to the engine.

        `expression`, `kind`: those of the request.
        """
        fields, queue, group = pull.fields, pull.queue, pull.group
        place = fields.topic, fields.consumer_group, fields.queue_id
        topic, counts = self._topics.get(fields.topic), self._counters.by_group.get(place[:2])
        if topic is None or counts is None or pull.selector.sql is not None:
            return
        if topic.queues.get(fields.queue_id) is not queue or self._groups.get(fields.consumer_group) is not group:
            return
        has_own = bool(fields.sys_flag & SUBSCRIPTION)
        subscribed = None if has_own else self._subscribed(fields)
        if not has_own and (subscribed is None or not group.consume_broadcast_enable):
            return
        target = PullTarget(place, topic, queue, group, pull.selector.codes, counts, subscribed)
        self._engine.add(target, expression, kind, has_own=has_own)

    def _subscribed(self, fields: PullFields) -> Subscribed | None:
        online = self._consumers.get(fields.consumer_group)
        subscription = None if online is None else online.subscriptions.get(fields.topic)
        if online is None or subscription is None:
            return None
        return Subscribed(online, online.subscriptions, subscription, subscription.sub_version)
