"""The store: files in, files out; one owner, no network, no clock (times are passed in).

    commitlog/00000000000000000000     all messages of all topics, in order of arrival      seglog, commitlog
    consumequeue/<topic>/<id>/…        20-byte entries: where a queue's n-th message lies   consumequeue
    index/<time>                       key and time to places in the log                    index
    config/*.json                      topics, groups, consumer offsets, delay progress     tables
    checkpoint, abort, lock            as RocketMQ's; `tandemq.marks` is our own            marks

A record is written once, to the commit log. Queues and index are derived from it: built as records arrive, and rebuilt
from the log after a crash (recovery). Writes are gathered and go out by one `pwrite` per turn (`CommitLog.write`);
an answer may leave only after that. `fdatasync` is a job for a worker.

Source: docs/internals/storage.md.
"""
