"""Commit logs for `bench.spark.cells`: of a given size at once, or growing at a steady rate in a process of its own.

python -m bench.spark.logs STORE RATE     appends to the log until standard input is closed; prints, per group of
                                          records, store time (ms), log end, and records so far
"""

from __future__ import annotations

import os
import random
import select
import sys
import time
from pathlib import Path

from tandemq.codec.record.entries import BLANK, BLANK_MAGIC
from tandemq.codec.record.record import encode_host, encode_record
from tandemq.spark.sources.log.files import LogFileReader, log_end, open_log

GROUP_S = 0.01
TOPICS = 3
QUEUES = 8
"""Of each topic. No divisor in common with TOPICS, so that each queue gets every TOPICS × QUEUES-th record."""
LIVE_BODY_BYTES = 128
HOSTS = [encode_host(bytes([127, 0, 0, 1]), 40_000 + number) for number in range(16)]
STORE_HOST = encode_host(bytes([127, 0, 0, 1]), 10_911)
_PROPERTIES = b"KEYS\x01key%d\x02TAGS\x01tag%d\x02UNIQ_KEY\x017F0000010BEB%020X\x02CLUSTER\x01DefaultCluster\x02"
_RANDOM_BYTES = random.Random(1).randbytes(1 << 20)


class Maker:
    """Makes records as a broker's log has them."""

    def __init__(self) -> None:
        """Start with number 0."""
        self.count = 0

    def record(self, log_offset: int, body_bytes: int, wall_ms: int) -> bytes:
        """Return the next record; bodies are random bytes of the given mean length."""
        number = self.count
        length = body_bytes // 2 + number * 7919 % body_bytes
        start = number * 104_729 % (len(_RANDOM_BYTES) - length)
        properties = _PROPERTIES % (number, number % 5, number)
        self.count += 1
        return encode_record(
            topic=b"Orders%d" % (number % TOPICS),
            queue_id=number % QUEUES,
            queue_offset=number // (TOPICS * QUEUES),
            log_offset=log_offset,
            body=_RANDOM_BYTES[start : start + length],
            properties=properties,
            flag=0,
            sys_flag=0,
            born_ms=wall_ms,
            born_host=HOSTS[number % len(HOSTS)],
            store_ms=wall_ms,
            store_host=STORE_HOST,
        )


def write_log(
    store: Path, log_bytes: int, body_bytes: int, *, segment_bytes: int, wall_ms: int = 1_700_000_000_000
) -> None:
    """Write a log of at least `log_bytes`."""
    directory = store / "commitlog"
    directory.mkdir(parents=True, exist_ok=True)
    maker, offset = Maker(), 0
    while offset < log_bytes:
        with open(directory / f"{offset:020d}", "wb") as file:
            file.truncate(segment_bytes)
            end = offset + segment_bytes
            while offset < log_bytes:
                raw = maker.record(offset, body_bytes, wall_ms + maker.count // 10)
                if len(raw) + 8 > end - offset:
                    file.write(BLANK.pack(end - offset, BLANK_MAGIC))
                    offset = end
                    break
                file.write(raw)
                offset += len(raw)


def main(store: Path, rate: int) -> None:
    """Append `rate` records a second, within the log's last file."""
    files = open_log(store)
    with LogFileReader(files) as read:
        offset = log_end(read)
    maker = Maker()
    maker.count = 1  # the log started with one
    began, written = time.monotonic(), 0
    with open(files.path(files.starts[-1]), "r+b", buffering=0) as file:
        while not select.select([sys.stdin], [], [], GROUP_S)[0]:
            due = int((time.monotonic() - began) * rate) - written
            wall_ms = int(time.time() * 1000)
            records = []
            for _ in range(due):
                records.append(maker.record(offset, LIVE_BODY_BYTES, wall_ms))
                offset += len(records[-1])
            os.pwrite(file.fileno(), b"".join(records), offset - sum(map(len, records)) - files.starts[-1])
            written += due
            print(wall_ms, offset, maker.count, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
