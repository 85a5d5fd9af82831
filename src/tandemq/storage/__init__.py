"""The message store: files on one disk, one owner. It uses no network and reads no clock; times are passed in.

    commitlog/00000000000000000000     all messages of all topics, in order of arrival      log/
    consumequeue/<topic>/<id>/…        20-byte entries: place of a queue's n-th message     consume_queue
    index/<time>                       (topic, key, time) to log offsets                    key_index
    config/*.json                      topics, groups, consumer offsets, delay progress     json_tables
    checkpoint, abort, lock            RocketMQ's; `tandemq.marks` is TandemQ's own         checkpoint

A record is written once, to the commit log. Consume queues and index are derived from it: extended as records arrive,
and rebuilt from the log after a crash (`recovery`). The records of one turn are written with one `pwrite`
(`CommitLog.write`); responses may be sent only after that. `fdatasync` runs as a job on a worker thread.

Source: docs/internals/storage.md.
"""
