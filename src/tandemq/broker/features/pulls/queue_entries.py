"""Requests for the entries of a queue: where its messages are and how large, without the messages.

Source: docs/internals/storage.md, "Consume queue".
"""

from tandemq.boundary import Now
from tandemq.broker.features.pulls.processor import PullPath
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pulls import PullRefused
from tandemq.broker.kernel.serving import Right
from tandemq.codec.remoting.admin_requests import QueueEntriesFields
from tandemq.codec.remoting.requests import read_fields
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command

ENTRIES_MAX = 16_384
"""Maximum number of entries in one response, 320 KiB."""


class QueueEntryReads(Feature):
    """Handle requests for the entries of a queue, with the permissions of pulls."""

    def __init__(self, kernel: Kernel, pulls: PullPath) -> None:
        """`pulls`: decides what may be read."""
        self._store = kernel.store
        self._static = kernel.topics.mappings.table
        self._pulls = pulls

    def requests(self) -> dict[RequestCode, Request]:
        """See `Feature`."""
        return {RequestCode.TANDEM_QUEUE_ENTRIES: Request(self._on_entries, Right.READ, only_reads=True)}

    def _on_entries(self, _link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(QueueEntriesFields, command.fields)
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
        count = max(1, min(fields.count, ENTRIES_MAX, end - fields.index))
        return command.answer(ResponseCode.SUCCESS, fields=bounds, body=queue.read(fields.index, count))
