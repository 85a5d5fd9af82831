"""Topics whose deletion is undone because its record is truncated: their queues are built from the log again.

Source: docs/internals/storage.md, "deleted topics".
"""

import logging
from collections.abc import Collection, Iterator

from tandemq.codec.record.record import Record
from tandemq.errors import OffsetGone
from tandemq.model.topic import DELETION_TOPIC
from tandemq.storage.log.scan import Walker
from tandemq.storage.store import Store, deleted_topic

log = logging.getLogger(__name__)


def topics_deleted_from(store: Store, log_offset: int) -> set[str]:
    """Return the topics whose deletion is recorded at or after a log offset, a record boundary."""
    deletions = (record for record in _records(store, log_offset) if record.topic == DELETION_TOPIC.encode())
    return {topic for record in deletions if (topic := deleted_topic(record.properties)) is not None}


def restore_topics(store: Store, topics: Collection[str]) -> None:
    """Build the queues of these topics from the log. Cost: reads the whole log."""
    log.warning("store: the deletion of topics=%s is truncated; their queues are built from the log", sorted(topics))
    names = {topic.encode() for topic in topics}
    last_store_ms = store.last_store_ms
    for record in _records(store, store.log.start):
        is_deletion = record.topic == DELETION_TOPIC.encode() and deleted_topic(record.properties) in topics
        if record.topic in names or is_deletion:
            store.dispatch_found(record)
    store.last_store_ms = last_store_ms
    for (topic, _), queue in store.queues.items():
        if topic in topics:
            queue.next_offset = queue.max_offset
            queue.correct_min(store.log.start)


def _records(store: Store, log_offset: int) -> Iterator[Record]:
    """Yield the records of the log from an offset on, up to its end or to damage."""
    end = store.log.written_end

    def read(offset: int, size: int) -> bytes:
        try:
            return store.log.read_raw(offset, min(size, end - offset)) if offset < end else b""
        except OffsetGone:
            return b""

    walker = Walker(read, store.config.segment_bytes, log_offset, check_bodies=False)
    for record, _, _ in walker.records():
        yield record
    if walker.position < end:
        log.error("store: the log cannot be read at %d; what is behind it is left out", walker.position)
