"""Quarantine of log bytes before they are truncated: copies in `set-aside/`, named by log offset.

Source: docs/internals/storage.md, "recovery"; docs/internals/ha.md.
"""

import logging
from collections.abc import Iterator

from tandemq.boundary import File
from tandemq.errors import StoreError
from tandemq.storage.checkpoint import REBUILDING
from tandemq.storage.deleted_topics import restore_topics, topics_deleted_from
from tandemq.storage.store import Store

log = logging.getLogger(__name__)


def quarantine_tail(store: Store, log_end: int) -> None:
    """Copy the log from `log_end` on into `set-aside/<log_end>`, then truncate log, queues and index there.

    The copy is synced before anything is truncated. After a crash in between, both steps are repeated; if the deletion
    of a topic is truncated, a start builds all queues from the log.

    Raises:
        DiskFull, DiskFailed: the copy or the truncation could not be written.
    """
    end = store.log.written_end
    path = quarantine(store, log_end, end)
    store.marks.written = min(store.marks.written, log_end)
    store.marks.synced = min(store.marks.synced, log_end)
    store.sync_marks()
    log.warning("store: log=[%d,%d) quarantined in %s and truncated", log_end, end, path)
    for queue in store.queues.values():
        queue.truncate_from(log_end, wipes=True)
    if store.index is not None:
        store.index.discard_from(log_end)
        if not store.index.recover(log_end):
            store.index.drop_all()
    for path in store.take_unsynced(log_end):  # entries that a start after a kill removed might come back
        if store.disk.exists(path):
            store.disk.open(path).datasync()
    deleted = topics_deleted_from(store, log_end)
    if deleted:
        store.marks.entries = REBUILDING
        store.sync_marks()
    store.log.wipe(log_end)
    store.log.open_at(log_end, flushed=store.log.flushed_offset)
    if deleted:
        restore_topics(store, deleted)
    store.write_queues()
    store.marks.written = log_end
    store.marks.entries = store.entries_total()
    store.save_marks()


def quarantine(store: Store, start: int, end: int) -> str:
    """Copy `[start, end)` of the log files into `set-aside/<start>`, sync the copy and return its path.

    The copy is sparse: blocks of zeroes are not written. If a file for the same offset exists with other content, the
    copy is named `<start>.1`, `<start>.2` …; if one with the same content exists, its path is returned.

    Raises:
        DiskFull, DiskFailed: the copy could not be written; it is removed.
    """
    first = path = f"set-aside/{start:020d}"
    number = 0
    while store.disk.exists(path):
        earlier = store.disk.open(path)
        if all(_padded(earlier, offset - start, len(data)) == data for offset, data in _bytes_of(store, start, end)):
            return path
        number += 1
        path = f"{first}.{number}"
    copy = store.disk.open(path, create=True)
    try:
        for offset, data in _bytes_of(store, start, end):
            if data.strip(b"\0"):
                copy.pwrite(data, offset - start)
        copy.datasync()
    except StoreError:
        store.disk.remove(path)
        raise
    return path


def _bytes_of(store: Store, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield log offset and bytes of `[start, end)` in chunks of at most 1 MiB that do not cross files."""
    while start < end:
        data = store.log.read_raw(start, min(1 << 20, end - start))
        yield start, data
        start += len(data)


def _padded(file: File, position: int, size: int) -> bytes:
    return file.pread(size, position).ljust(size, b"\0")
