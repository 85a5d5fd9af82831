"""Requests for the entries of a queue, where its messages are and how large, and for messages without their bodies.

Source: docs/internals/storage.md, "Consume queue", "record".
"""

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
        fields = read_fields(QueueEntriesFields, command.fields)
        found = self._find(command, fields)
        if isinstance(found, Command):
            return found
        queue, bounds = found
        count = max(1, min(fields.count, ENTRIES_MAX, int(bounds["maxOffset"]) - fields.index))
        return command.answer(ResponseCode.SUCCESS, fields=bounds, body=queue.read(fields.index, count))

    def _on_heads(self, link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(QueueEntriesFields, command.fields)
        found = self._find(command, fields)
        if isinstance(found, Command):
            return found
        queue, bounds = found
        if not self._pulls.has_room(link.number):
            return command.answer(ResponseCode.SYSTEM_BUSY, remark="this connection has no room for messages")
        count = max(1, min(fields.count, HEADS_MAX))
        try:
            messages = self._pulls.read(
                queue, fields.index, ALL_MESSAGES, count, bytes_max=BULK_BYTES_MAX, may_wait=self._store.waits_allowed
            )
        except OffsetGone:
            return command.answer(ResponseCode.PULL_OFFSET_MOVED, fields=bounds)
        if not messages.number:
            remark = "there is no message at this queue offset: pull it"
            return command.answer(ResponseCode.PULL_RETRY_IMMEDIATELY, remark=remark, fields=bounds)
        self._pulls.note_sent(link.number, messages)
        bounds["nextBeginOffset"] = str(messages.next_offset)
        return command.answer(ResponseCode.SUCCESS, fields=bounds, body=without_bodies(b"".join(messages.buffers)))

    def _find(self, command: Command, fields: QueueEntriesFields) -> tuple[ConsumeQueue, dict[str, str]] | Command:
        """Return the queue of a request and its bounds, or a refusal."""
        if fields.topic in self._static:
            remark = f"{fields.topic} is a static topic: pull its messages"
            return command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        try:
            self._pulls.check_readable()
            self._pulls.checks.topic(fields.topic)
        except PullRefused as refused:
            return command.answer(refused.code, remark=refused.remark, fields=refused.fields)
        queue = self._store.queues.get((fields.topic, fields.queue_id))
        start, end = (0, 0) if queue is None else (queue.min_offset, self._pulls.visible_end(queue))
        bounds = {"minOffset": str(start), "maxOffset": str(end)}
        if queue is None or not start <= fields.index < end:
            return command.answer(ResponseCode.PULL_OFFSET_MOVED, fields=bounds)
        return queue, bounds
