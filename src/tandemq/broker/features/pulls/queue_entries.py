"""Requests for the entries of a queue, where its messages are and how large, and for messages without their bodies.

Source: docs/internals/storage.md, "Consume queue", "record".
"""

from collections.abc import Callable
from functools import partial

from tandemq.boundary import Now
from tandemq.broker.features.pulls.engine_pulls import BULK_BYTES_MAX
from tandemq.broker.features.pulls.processor import PullPath
from tandemq.broker.filter.selector import ALL_MESSAGES
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pulls import PullRefused
from tandemq.broker.kernel.serving import Right
from tandemq.codec.record.bodies import without_bodies
from tandemq.codec.remoting.admin_requests import QueueEntriesFields
from tandemq.codec.remoting.requests import read_fields
from tandemq.errors import OffsetGone
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.storage.consume_queue import ConsumeQueue

ENTRIES_MAX = 16_384
"""Maximum number of entries in one response, 320 KiB."""
HEADS_MAX = 512
"""Maximum number of messages without bodies in one response, 2 ms."""
_OUTSIDE = "the queue has no message at this offset"
_Bounds = dict[str, str]
"""Fields of a response: first offset and end of a queue."""
_Read = Callable[[QueueEntriesFields, ConsumeQueue, _Bounds], bytes]


class QueueEntryReads(Feature):
    """Handle these requests, with the permissions of pulls."""

    def __init__(self, kernel: Kernel, pulls: PullPath) -> None:
        """`pulls`: decides what may be read."""
        self._store = kernel.store
        self._static = kernel.topics.mappings.table
        self._pulls = pulls

    def requests(self) -> dict[RequestCode, Request]:
        """See `Feature`."""
        return {
            RequestCode.TANDEM_QUEUE_ENTRIES: Request(self._on_entries, Right.READ, only_reads=True),
            RequestCode.TANDEM_QUEUE_HEADS: Request(self._on_heads, Right.READ, only_reads=True),
        }

    def _on_entries(self, _link: Link, command: Command, _now: Now) -> Command | None:
        return self._answer(command, self._entries)

    def _on_heads(self, link: Link, command: Command, _now: Now) -> Command | None:
        return self._answer(command, partial(self._heads, link))

    def _answer(self, command: Command, read: _Read) -> Command:
        fields = read_fields(QueueEntriesFields, command.fields)
        try:
            queue, bounds = self._find(fields)
            body = read(fields, queue, bounds)
        except PullRefused as refused:
            return command.answer(refused.code, remark=refused.remark, fields=refused.fields)
        return command.answer(ResponseCode.SUCCESS, fields=bounds, body=body)

    def _find(self, fields: QueueEntriesFields) -> tuple[ConsumeQueue, _Bounds]:
        """Return the queue of a request and its bounds.

        Raises:
            PullRefused: it may not be read, or has no such offset.
        """
        if fields.topic in self._static:
            remark = f"{fields.topic} is a static topic: pull its messages"
            raise PullRefused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        self._pulls.check_readable()
        self._pulls.checks.topic(fields.topic)
        queue = self._store.queues.get((fields.topic, fields.queue_id))
        start, end = (0, 0) if queue is None else (queue.min_offset, self._pulls.visible_end(queue))
        bounds = {"minOffset": str(start), "maxOffset": str(end)}
        if queue is None or not start <= fields.index < end:
            raise PullRefused(ResponseCode.PULL_OFFSET_MOVED, _OUTSIDE, fields=bounds)
        return queue, bounds

    def _entries(self, fields: QueueEntriesFields, queue: ConsumeQueue, bounds: _Bounds) -> bytes:
        count = max(1, min(fields.count, ENTRIES_MAX, int(bounds["maxOffset"]) - fields.index))
        return queue.read(fields.index, count)

    def _heads(self, link: Link, fields: QueueEntriesFields, queue: ConsumeQueue, bounds: _Bounds) -> bytes:
        """Return messages without bodies, and add to the bounds where the next one is."""
        if not self._pulls.has_room(link.number):
            raise PullRefused(ResponseCode.SYSTEM_BUSY, "this connection has no room for messages")
        count = max(1, min(fields.count, HEADS_MAX))
        try:
            messages = self._pulls.read(
                queue, fields.index, ALL_MESSAGES, count, bytes_max=BULK_BYTES_MAX, may_wait=self._store.waits_allowed
            )
        except OffsetGone as error:
            raise PullRefused(ResponseCode.PULL_OFFSET_MOVED, _OUTSIDE, fields=bounds) from error
        if not messages.number:
            remark = "there is no message at this queue offset: pull it"
            raise PullRefused(ResponseCode.PULL_RETRY_IMMEDIATELY, remark, fields=bounds)
        self._pulls.note_sent(link.number, messages)
        bounds["nextBeginOffset"] = str(messages.next_offset)
        return without_bodies(b"".join(messages.buffers))
