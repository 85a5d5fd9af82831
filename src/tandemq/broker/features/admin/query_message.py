"""Queries of messages by key, by unique key, and by log offset.

Source: docs/reference/requests.md, "all codes"; RocketMQ QueryMessageProcessor.
"""

from tandemq.boundary import Now
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.codec.remoting.requests import QueryMessageFields, ViewMessageFields, read_fields
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

ANSWER_BYTES_MAX = 8 << 20


class QueryMessageProcessor(Feature):
    """Handle queries of messages by key and by offset."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin."""
        self._store = kernel.store
        self._current = kernel.current

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {
            Code.QUERY_MESSAGE: Request(self._on_by_key, only_reads=True),
            Code.VIEW_MESSAGE_BY_ID: Request(self._on_by_offset, only_reads=True),
        }

    def _on_by_key(self, _link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(QueryMessageFields, command.fields)
        config, store = self._current.config, self._store
        if store.index is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="keys are not indexed: messageIndexEnable is false")
        limit = min(fields.max_num, config.query_messages_max)
        if command.fields.get("_UNIQUE_KEY_QUERY") == "true":
            limit = config.query_default_max
        offsets = store.index.find(
            fields.topic, fields.key, fields.begin_timestamp, fields.end_timestamp, max(1, limit)
        )
        records: list[bytes] = []
        room = ANSWER_BYTES_MAX
        for offset in offsets:
            data = store.record_at(offset)
            if data is not None and len(data) <= room:
                records.append(data)
                room -= len(data)
        newest = store.index.files[-1] if store.index.files else None
        answer_fields = {
            "indexLastUpdateTimestamp": str(newest.end_ms if newest else 0),
            "indexLastUpdatePhyoffset": str(newest.end_offset if newest else 0),
        }
        if not records:
            return command.answer(
                ResponseCode.QUERY_NOT_FOUND,
                remark="can not find message, maybe time range not correct",
                fields=answer_fields,
            )
        return command.answer(ResponseCode.SUCCESS, fields=answer_fields, body=b"".join(records))

    def _on_by_offset(self, _link: Link, command: Command, _now: Now) -> Command | None:
        offset = read_fields(ViewMessageFields, command.fields).offset
        found = self._store.queued_record_at(offset)
        if found is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=f"can not find message by the offset, {offset}")
        return command.answer(ResponseCode.SUCCESS, body=found[1])
