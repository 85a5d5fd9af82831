"""Pulls that the engine takes: those like one that was allowed before.

    first pull ──► checked and answered in Python ──► PullTarget, which names what it was allowed by
    next pulls ──► PullEngine.take ──► responses, if messages in memory are found
                                   └─► pulls that wait ──► PullEngine.respond, when messages arrive

The engine compares the objects of a target with those of the tables, so that no change has to be announced to it.
"""

from collections.abc import Iterator
from itertools import starmap

from tandemq.broker.features.pulls.checks import SUBSCRIPTION
from tandemq.broker.features.pulls.pull_request import PullRequest
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pull_counters import PullCounters
from tandemq.broker.kernel.serving import Serving
from tandemq.codec.remoting.requests import PullFields
from tandemq.config.settings import BrokerConfig
from tandemq.engine import PullEngine, PullTarget, SigningUser, Subscribed, WaitingPull

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
        self._is_begun = False
        """Whether a run of calls of `respond` is in progress."""
        self.sent_bytes = 0
        """Bytes of the messages in the responses of the last call."""
        self.engine = PullEngine(
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
        self.engine.configure(
            messages_max=messages_max,
            bytes_max=bytes_max,
            bulk_messages_max=max(messages_max, BULK_MESSAGES_MAX),
            bulk_bytes_max=max(bytes_max, BULK_BYTES_MAX),
            frame_bytes_max=config.frame_bytes_max,
        )

    def take(
        self, data: bytes, position: int, room: int, serving: Serving, sender: SigningUser | None, now_ms: int
    ) -> int:
        """Take pulls from a position on, until there are `room` bytes of messages; return the end of the last one."""
        if not self._begin(serving):
            return position
        engine, offsets = self.engine, self._offsets
        after = engine.take(data, position, room, sender)
        self.sent_bytes = engine.bytes
        self._end()
        for place, offset in engine.commits:
            if offsets.has_room(*place):
                offsets.commit_of_member(*place, offset, now_ms)
        return after

    def respond(self, pull: PullRequest, serving: Serving) -> bytes | None:
        """Return the response to a pull that has waited; None: it is left to the code in Python.

        Nothing else may read before `end`.
        """
        if pull.target is None:
            return None
        self._is_begun = self._is_begun or self._begin(serving)
        if not self._is_begun:
            return None
        before = self.engine.bytes
        fields, is_bulk = pull.fields, pull.fields.bulk == "true"
        response = self.engine.respond(
            pull.target, pull.opaque, fields.queue_offset, pull.scan_offset, fields.max_msg_nums, is_bulk, pull.binary
        )
        self.sent_bytes = self.engine.bytes - before
        return response

    def end(self) -> None:
        """End a run of calls of `respond`."""
        if self._is_begun:
            self._end()

    def _begin(self, serving: Serving) -> bool:
        if serving.read is not None or self._suggests_slaves or self._damages.ranges:
            return False
        commits_pulled = serving.takes_pulled_commits
        self._store.log.reader.begin_pulls(self.engine, serving.visible_end, commits_pulled=commits_pulled)
        return True

    def _end(self) -> None:
        engine = self.engine
        self._is_begun = False
        self._store.log.reader.end_pulls(engine)
        self._counters.add(engine.messages, engine.bytes, engine.finds, engine.misses)

    def waiting(self, link: int) -> Iterator[PullRequest]:
        """Yield the pulls of the last call of `take` that have to wait; the connection is theirs."""
        for taken in starmap(WaitingPull, self.engine.waiting):
            target = taken.target
            topic, group, queue_id = target.place
            fields = PullFields(
                group,
                topic,
                queue_id,
                taken.queue_offset,
                taken.max_msg_nums,
                taken.sys_flag,
                suspend_timeout_millis=taken.suspend_ms,
                bulk="true" if taken.is_bulk else "false",
            )
            pull = PullRequest(
                link, taken.opaque, fields, target.selector, target.queue, target.group, binary=taken.is_binary
            )
            pull.scan_offset, pull.target = taken.scan_offset, target
            yield pull

    def add(self, pull: PullRequest, expression: str | None, kind: str | None) -> None:
        """Leave pulls like this one, which was allowed, to the engine.

        `expression`, `kind`: those of the request.
        """
        fields, queue, group = pull.fields, pull.queue, pull.group
        topic = self._topics.get(fields.topic)
        if topic is None or pull.selector.sql is not None or topic.queues.get(fields.queue_id) is not queue:
            return
        if self._groups.get(fields.consumer_group) is not group:
            return
        has_own = bool(fields.sys_flag & SUBSCRIPTION)
        subscribed = None if has_own else self._subscribed(fields)
        if not has_own and (subscribed is None or not group.consume_broadcast_enable):
            return
        place = fields.topic, fields.consumer_group, fields.queue_id
        pull.target = PullTarget(place, topic, queue, group, pull.selector, subscribed)
        self.engine.add(pull.target, expression, kind, has_own=has_own)

    def _subscribed(self, fields: PullFields) -> Subscribed | None:
        online = self._consumers.get(fields.consumer_group)
        subscription = None if online is None else online.subscriptions.get(fields.topic)
        if online is None or subscription is None:
            return None
        return Subscribed(online, online.subscriptions, subscription, subscription.sub_version)
