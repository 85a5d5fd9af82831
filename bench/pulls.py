"""The cost of catch-up pulls in a broker's turns, by how the queues lie in the log: CPU time and bytes read.

    python -m bench.pulls                  all layouts, about a minute
    python -m bench.pulls --body 4096      another mean size of bodies (from half of it to one and a half times)
    python -m bench.pulls --sql            through an SQL filter that a tenth of the messages match
    python -m bench.pulls --log-mib 512    a log larger than the cache of its blocks
    python -m bench.pulls --directory build  with the store on a disk, as a broker's is, instead of in memory

Every message goes to a random queue, so the messages of one queue lie as far apart as there are queues. Then every
queue is read from its beginning, 32 messages per pull: `together` (each queue has one open pull, as with many consumers
that catch up) and `in turn` (one queue after the other, as with one consumer of one topic among many). There are no
sockets; CPU time depends little on other programs of the machine.
"""

from __future__ import annotations

import argparse
import cProfile
import logging
import pstats
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from bench.inside import _MEMORY, _Driven
from tandemq.boundary import LinkKind, Turn
from tandemq.load.wire.frames import PullFrames
from tandemq.load.wire.pulls import FOUND, RETRY_AT_ONCE
from tandemq.load.wire.records import count_records
from tandemq.load.wire.responses import parse_response
from tandemq.real.memory import keep_blocks

_LOG_MIB = 192
_SQL = "KEYS IS NOT NULL AND customer <> 'c-0' AND amount = 7"
_MESSAGES_PER_PULL = 32
_CONNECTIONS = 4
_PULLS_PER_TURN = 64


_PROPERTIES = b"KEYS\x01order-%04d\x02customer\x01c-17\x02amount\x01%d\x02TAGS\x01a\x02"


class Layout(NamedTuple):
    """Number of topics, and queues of each, that share the log."""

    topics: int
    queues: int


_LAYOUTS = (Layout(1, 1), Layout(1, 4), Layout(1, 16), Layout(1, 64), Layout(1, 256), Layout(1, 1024), Layout(300, 4))


class _Queue:
    """A queue that is read, and the offset of its next pull."""

    __slots__ = ("end", "frames", "link", "offset", "queue_id")

    def __init__(self, frames: PullFrames, queue_id: int, link: int, end: int) -> None:
        self.frames, self.queue_id, self.link, self.end, self.offset = frames, queue_id, link, end, 0


def _fill(broker: _Driven, layout: Layout, body_bytes: int, log_bytes: int, *, sql: bool) -> list[_Queue]:
    """Store messages in random queues until the log has `log_bytes`; return the queues."""
    random, store, body = Random(1), broker.node.store, bytes(2 * body_bytes)
    names = [f"topic{number}" for number in range(layout.topics)]
    while store.log.end < log_bytes:
        for _ in range(1000):
            queue = store.queue(random.choice(names), random.randrange(layout.queues))
            store.put(
                queue,
                body=body[: random.randint(body_bytes // 2, body_bytes * 3 // 2)],
                properties=_PROPERTIES % (random.randrange(1000), random.randrange(10)),
                flag=0,
                sys_flag=0,
                born_ms=1,
                born_host=bytes(8),
                store_ms=broker.now.wall_ms,
                store_host=bytes(8),
                reconsume_times=0,
            )
        store.commit()
    store.flush_queues()
    expression, kind = (_SQL, "SQL92") if sql else ("*", "TAG")
    frames = {
        name: PullFrames(name, max_messages=_MESSAGES_PER_PULL, expression=expression, expression_type=kind)
        for name in names
    }
    return [
        _Queue(frames[topic], queue_id, 1 + number % _CONNECTIONS, queue.max_offset)
        for number, ((topic, queue_id), queue) in enumerate(sorted(store.queues.items()))
        if topic in frames
    ]


def _read(
    broker: _Driven, queues: list[_Queue], at_once: int, profile: cProfile.Profile | None = None
) -> tuple[int, int, float]:
    """Read queues to their ends, `at_once` of them together; return messages, their bytes, CPU seconds."""
    messages = size = in_flight = 0
    cpu_s = 0.0
    waiting = list(range(len(queues) - 1, -1, -1))
    ready: list[int] = []
    while waiting or ready or in_flight:
        while waiting and len(ready) + in_flight < at_once:
            ready.append(waiting.pop())
        batch, ready = ready[:_PULLS_PER_TURN], ready[_PULLS_PER_TURN:]
        pulls = [(number, queues[number]) for number in batch]
        received = [(queue.link, queue.frames.frame(queue.queue_id, queue.offset, number)) for number, queue in pulls]
        start_ns = time.process_time_ns()
        if profile is not None:
            profile.enable()
        turn = broker.turn(received)
        if profile is not None:
            profile.disable()
        cpu_s += (time.process_time_ns() - start_ns) / 1e9
        in_flight += len(batch)
        for number, next_offset, count, response_bytes in _responses(turn):
            in_flight -= 1
            messages += count
            size += response_bytes
            queues[number].offset = next_offset
            if next_offset < queues[number].end:
                ready.append(number)
    return messages, size, cpu_s


def _responses(turn: Turn) -> Iterator[tuple[int, int, int, int]]:
    """Yield opaque, next offset, number of messages and their bytes of each response."""
    for buffers in turn.sends.values():
        data = b"".join(buffers)
        frame = 0
        while frame < len(data):
            end = frame + 4 + int.from_bytes(data[frame : frame + 4])
            start = frame + 8 + (int.from_bytes(data[frame + 4 : frame + 8]) & 0xFFFFFF)
            answer = parse_response(memoryview(data)[frame:end])
            assert answer.code in (FOUND, RETRY_AT_ONCE), answer
            count = count_records(data, start, end) if answer.code == FOUND else 0
            yield int(answer.field("opaque") or 0), int(answer.field("nextBeginOffset") or 0), count, end - start
            frame = end


def main() -> None:
    """Measure each layout, and print a row for each way of reading."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--layout",
        type=int,
        nargs=2,
        action="append",
        metavar=("TOPICS", "QUEUES"),
        help="only this layout; may be repeated",
    )
    parser.add_argument("--profile", action="store_true", help="print the most expensive functions as well")
    parser.add_argument("--sql", action="store_true", help="filter by an SQL expression")
    parser.add_argument("--log-mib", type=int, default=_LOG_MIB, help=f"MiB of log (default {_LOG_MIB})")
    parser.add_argument("--body", type=int, default=1024, help="mean bytes of a body (default 1024)")
    parser.add_argument(
        "--directory",
        type=Path,
        default=_MEMORY if _MEMORY.is_dir() else None,
        help="directory of the stores (default: in memory)",
    )
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    keep_blocks()
    print("topics x queues   reading    µs per message   bytes read per byte answered")
    for layout in [Layout(*numbers) for numbers in args.layout or _LAYOUTS]:
        with tempfile.TemporaryDirectory(dir=args.directory) as directory:
            broker = _Driven(Path(directory), property_filter_enable=True)
            queues = _fill(broker, layout, args.body, args.log_mib << 20, sql=args.sql)
            for link in range(1, _CONNECTIONS + 1):
                broker.open(link, LinkKind.REMOTING)
            for way, at_once in (("together", len(queues)), ("in turn", 1)):
                for queue in queues:
                    queue.offset = 0
                before = broker.node.store.log.reader.bytes_read
                profile = cProfile.Profile() if args.profile else None
                messages, size, cpu_s = _read(broker, queues, at_once, profile)
                read = broker.node.store.log.reader.bytes_read - before
                name = f"{layout.topics:6} x {layout.queues:<8} {way:10}"
                print(f"{name} {cpu_s / messages * 1e6:9.2f} {read / size:22.2f}", flush=True)
                if profile is not None:
                    pstats.Stats(profile).sort_stats("tottime").print_stats(16)


if __name__ == "__main__":
    main()
