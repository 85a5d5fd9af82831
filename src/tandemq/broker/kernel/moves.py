"""Moves of records from a system topic to the topic and queue that they are for; the broker stores them again.

The engine copies them without decoding. A record that it leaves is for the caller, who decodes it and says what is
wrong.
"""

from tandemq.broker.kernel.kernel import Kernel
from tandemq.codec.record.entries import QUEUE_ENTRY
from tandemq.engine import MoveRule, move_records
from tandemq.errors import StoreError
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.store import RecordBatch

READ_BYTES_MAX = 1 << 20
"""Maximum number of log bytes that are read at once, unless the first record is larger."""


class Moves:
    """Moves records by the engine."""

    def __init__(self, kernel: Kernel) -> None:
        """Take the log, and the topics that records go to."""
        self._store = kernel.store
        self._topics = kernel.topics

    def move(self, queue: ConsumeQueue, queue_offset: int, entries: bytes, rule: MoveRule, store_ms: int) -> int:
        """Append the messages of consecutive queue entries to the queues that their properties name.

        Call again while messages are left and the last call moved some: it reads the log in pieces.

        Args:
            queue: where they are.
            queue_offset: of the first.
            entries: packed; whether they are due is the caller's to know.
            rule: how the copies differ.
            store_ms: calendar time of the copies.

        Returns:
            How many were moved; 0: the first one is for the caller.
        """
        store = self._store
        first, size, _ = QUEUE_ENTRY.unpack_from(entries)
        end = first + size
        for log_offset, more, _ in QUEUE_ENTRY.iter_unpack(entries):
            if not end <= log_offset + more <= first + READ_BYTES_MAX:
                break
            end = log_offset + more
        try:
            data = store.log.read(first, end - first)
        except StoreError:  # the caller reads each message by itself, and says which one
            return 0
        moved = move_records(
            data,
            first,
            entries,
            queue_offset,
            queue.topic.encode(),
            queue.queue_id,
            rule,
            store.log.end,
            store.log.room,
            store_ms,
            self._queue_for,
        )
        if moved.messages:
            store.append(RecordBatch(store.log.end, (moved.data,), moved.queues, moved.keys, store_ms))
        return moved.messages

    def _queue_for(self, name: bytes, queue_id: int) -> ConsumeQueue | None:
        topic = self._topics.get(name.decode())
        try:
            return None if topic is None else self._topics.queue(topic, queue_id)
        except StoreError:  # the caller meets the error too, with the first message of this queue
            return None
