"""Ordinary messages of a turn, a row each, and the records of many that are alike, made column by column.

Below some thirty messages, or when they are large or differ in more than their queues, bodies of one length, unique
keys and births, `CommitLog.append_run` makes the same bytes one by one.

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
"""Fewer new messages are made into records faster one by one."""
BODY_BYTES_MAX = 4096
"""So are larger ones: what is copied more often costs more than what is saved."""
MessageRow = tuple[ConsumeQueue, bytes, Layout, bytes, bytes, int, int, int, bytes, int, bytes, int]
"""An ordinary message between IPv4 hosts, a plain tuple, as one is made per message: queue, topic with its length
byte, layout of its properties, unique key, body, flag, system flag, born time (ms), born host; then what the store
does not look at: the link it came on, the opaque and the flag of its request."""


@dataclass(frozen=True, slots=True)
class UniformRows:
    """Records of one size that lie one behind the other, and what `Store.put_encoded` needs to enter them."""

    data: bytes
    size: int
    log_offset: int
    """Of the first."""
    queue_ids: list[int]
    queue_offsets: list[int]
    spans: list[tuple[ConsumeQueue, int]]
    order: list[int]
    layout: Layout
    keys: bytes
    uniques: tuple[bytes, ...]
    """The same keys one by one."""
    links: tuple[int, ...]
    opaques: tuple[bytes, ...]
    body_bytes: int
    """Of each message."""
    command_flag: int
    """Of all their requests."""

    def __len__(self) -> int:
        """How many messages."""
        return len(self.links)


def encode_uniform(
    rows: Sequence[MessageRow], log_offset: int, room: int, store_ms: int, store_host: bytes
) -> UniformRows | None:
    """The records of rows that are alike, to lie at `log_offset`; each takes the next offset of its queue.

    Their unique keys are ASCII.

    None if they are not, if they are few or large, or if they need more than `room` bytes.
    """
    if len(rows) < ROWS_MIN or rows[0][2] is not rows[-1][2] or len(rows[0][4]) > BODY_BYTES_MAX:
        return None
    queues, topics, layouts, uniques, bodies, flags, sys_flags, born_ms, hosts, links, opaques, command_flags = zip(
        *rows, strict=True
    )
    count, topic, layout, keys = len(rows), topics[0], layouts[0], b"".join(uniques)
    length = len(layout.before) + len(uniques[0]) + len(layout.after) + CRC_PROPERTY_BYTES
    size = HEAD_V4.size + len(bodies[0]) + len(topic) + 2 + length
    is_alike = (
        count * size <= room
        and layouts.count(layout) == count
        and topics.count(topic) == count
        and flags.count(flags[0]) == count
        and sys_flags.count(sys_flags[0]) == count
        and command_flags.count(command_flags[0]) == count
        and len(set(map(len, bodies))) == 1
        and len(set(map(len, uniques))) == 1
    )
    if not is_alike:
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
