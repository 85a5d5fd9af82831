"""Ordinary messages of a turn, one row each, and vectorized encoding of many messages with the same layout.

`encode_uniform` applies if messages have the same topic, layout, flags, body length and key length. For fewer than
ROWS_MIN messages, large ones, or ones that differ, `CommitLog.append_run` encodes the same bytes one by one.

Source: docs/internals/storage.md, "record"; docs/internals/performance.md, "A send".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from tandemq.codec.record.columns import encode_bodies
from tandemq.codec.record.layout import Layout
from tandemq.codec.record.record import CRC_PROPERTY_BYTES, HEAD_V4, MAGIC_V1
from tandemq.storage.consume_queue import ConsumeQueue

ROWS_MIN = 28
"""Number of messages from which on encoding by columns is faster than one by one."""
BODY_BYTES_MAX = 4096
"""Body size up to which encoding by columns is faster; for larger bodies its extra copy costs more than it saves."""
MessageRow = tuple[ConsumeQueue, bytes, Layout, bytes, bytes, int, int, int, bytes, int, bytes, int]
"""An ordinary message between IPv4 hosts. A plain tuple, since one is created per message: queue, topic with its length
byte, layout of its properties, unique key, body, flag, system flag, born time (ms), born host; then fields the store
does not use: the id of its connection, opaque and flag of its request."""


@dataclass(frozen=True, slots=True)
class UniformRows:
    """Contiguous records of the same size, and the arguments of `Store.put_encoded` for them."""

    data: bytes
    size: int
    """Bytes of each record."""
    log_offset: int
    """Log offset of the first record."""
    queue_ids: list[int]
    queue_offsets: list[int]
    spans: list[tuple[ConsumeQueue, int]]
    order: list[int]
    layout: Layout
    keys: bytes
    """Unique keys of all messages, concatenated."""
    uniques: tuple[bytes, ...]
    """Unique key of each message."""
    links: tuple[int, ...]
    """Connection of each message."""
    opaques: tuple[bytes, ...]
    """Opaque of each request."""
    body_bytes: int
    """Body size of each message."""
    command_flag: int
    """Flag that all requests have in common."""

    def __len__(self) -> int:
        """Number of messages."""
        return len(self.links)


def encode_uniform(
    rows: Sequence[MessageRow], log_offset: int, room: int, store_ms: int, store_host: bytes
) -> UniformRows | None:
    """Encode rows of the same layout as records for `log_offset`; each takes the next offset of its queue.

    The unique keys must be ASCII.

    Returns None if the rows differ, if they are few or large, or if they need more than `room` bytes.
    """
    if len(rows) < ROWS_MIN or rows[0][2] is not rows[-1][2] or len(rows[0][4]) > BODY_BYTES_MAX:
        return None
    queues, topics, layouts, uniques, bodies, flags, sys_flags, born_ms, hosts, links, opaques, command_flags = zip(
        *rows, strict=True
    )
    count, topic, layout, keys = len(rows), topics[0], layouts[0], b"".join(uniques)
    length = len(layout.before) + len(uniques[0]) + len(layout.after) + CRC_PROPERTY_BYTES
    size = HEAD_V4.size + len(bodies[0]) + len(topic) + 2 + length
    is_uniform = (
        count * size <= room
        and layouts.count(layout) == count
        and topics.count(topic) == count
        and flags.count(flags[0]) == count
        and sys_flags.count(sys_flags[0]) == count
        and command_flags.count(command_flags[0]) == count
        and len(set(map(len, bodies))) == 1
        and len(set(map(len, uniques))) == 1
    )
    if not is_uniform:
        return None
    taken: dict[ConsumeQueue, list[int]] = {}
    queue_offsets: list[int] = []
    for at, queue in enumerate(queues):
        found = taken.get(queue)
        if found is None:
            found = taken[queue] = []
        queue_offsets.append(queue.next_offset + len(found))
        found.append(at)
    queue_ids = [queue.queue_id for queue in queues]
    head = HEAD_V4.pack(
        size, MAGIC_V1, 0, 0, flags[0], 0, 0, sys_flags[0], 0, b"", store_ms, store_host, 0, 0, len(bodies[0])
    )
    data = encode_bodies(
        bodies,
        keys,
        head,
        b"".join(hosts),
        (queue_ids, queue_offsets, born_ms),
        log_offset,
        topic + length.to_bytes(2) + layout.before,
        layout.after,
    )
    spans = [(queue, len(found)) for queue, found in taken.items()]
    order = list(chain.from_iterable(taken.values()))
    return UniformRows(
        data,
        size,
        log_offset,
        queue_ids,
        queue_offsets,
        spans,
        order,
        layout,
        keys,
        uniques,
        links,
        opaques,
        len(bodies[0]),
        command_flags[0],
    )
