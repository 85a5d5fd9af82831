"""Entries of queues, for queries that ask only where messages are and how large: no message is read or transferred.

    topic brokerName queueId queueOffset commitLogOffset size epoch      what such a query asks for
    log offset (8 bytes), size (4), hash of the tag (8)                  an entry

Source: docs/guides/pipeline.md, "Columns"; docs/internals/storage.md, "Consume queue".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tandemq.client.core.operations import request
from tandemq.codec.record.entries import HOLE_SIZE_MIN
from tandemq.codec.record.record import RECORD_BYTES_MIN
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tandemq.spark.sources.cluster.plan import QueueRange

ENTRIES_PER_REQUEST = 16_384
HEADS_PER_RESPONSE = 512
"""Maximum number of messages in a response without bodies. A broker reads at most 1 MiB of records for one, so the
records of a full response have less than 2 KiB on average."""
_ENTRY = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("tag", ">i8")])
_KINDS: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "brokerName": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "commitLogOffset": pa.int64(),
    "size": pa.int32(),
    "epoch": pa.int64(),
    "timestampType": pa.int32(),
}


def contain_all(names: Iterable[str]) -> bool:
    """Return whether entries have all columns of a query."""
    return _KINDS.keys() >= set(names)


def entries_request(queue: MessageQueue, offset: int, count: int) -> Command:
    """Return the request for entries of a queue from an offset on; a broker of RocketMQ does not support it."""
    return request(
        RequestCode.TANDEM_QUEUE_ENTRIES,
        topic=queue.topic,
        queueId=queue.queue_id,
        index=offset,
        count=min(count, ENTRIES_PER_REQUEST),
    )


def heads_request(queue: MessageQueue, offset: int, count: int) -> Command:
    """Return the request for messages of a queue without their bodies; a broker of RocketMQ does not support it."""
    return request(RequestCode.TANDEM_QUEUE_HEADS, topic=queue.topic, queueId=queue.queue_id, index=offset, count=count)


@dataclass(frozen=True, slots=True)
class PulledEntries:
    """Contiguous entries of a range."""

    range: QueueRange
    data: bytes
    start: int
    """Queue offset of the first one."""

    @property
    def count(self) -> int:
        """Number of entries."""
        return len(self.data) // _ENTRY.itemsize

    def are_sound(self) -> bool:
        """Return whether each of them names a record."""
        if not self.data or len(self.data) % _ENTRY.itemsize:
            return False
        entries = np.frombuffer(self.data, _ENTRY)
        sizes = entries["size"]
        are_records = (sizes >= RECORD_BYTES_MIN) & (sizes < HOLE_SIZE_MIN) & (entries["log_offset"] >= 0)
        return bool(are_records.all())

    def columns(self, names: Iterable[str], epoch_starts: Iterable[tuple[int, int]]) -> list[Any]:
        """Return columns, that entries have (`contain_all`), as Arrow arrays.

        Args:
            names: of the columns.
            epoch_starts: epochs of the broker group's log, each with the log offset at which it begins.
        """
        entries, queue = np.frombuffer(self.data, _ENTRY), self.range.queue
        log_offsets = entries["log_offset"].astype(np.int64)
        constants: dict[str, object] = {"topic": queue.topic, "brokerName": queue.broker_name}
        constants |= {"queueId": queue.queue_id, "timestampType": 0}
        found = []
        for name in names:
            if name in constants:
                found.append(pa.repeat(pa.scalar(constants[name], _KINDS[name]), len(entries)))
            elif name == "queueOffset":
                found.append(pa.array(np.arange(self.start, self.start + len(entries)), _KINDS[name]))
            elif name == "epoch":
                found.append(epochs_at(log_offsets, epoch_starts))
            else:
                values = log_offsets if name == "commitLogOffset" else entries["size"].astype(np.int32)
                found.append(pa.array(values))
        return found


def epochs_at(log_offsets: Any, epoch_starts: Iterable[tuple[int, int]]) -> Any:
    """Return the epoch of each log offset as an Arrow array; 0 before the first."""
    pairs = list(epoch_starts)
    numbers = np.array([0, *(epoch for epoch, _ in pairs)], dtype=np.int64)
    return pa.array(numbers[np.searchsorted([start for _, start in pairs], log_offsets, side="right")])
