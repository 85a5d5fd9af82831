"""Commit logs for tests: records as brokers write them, in files of any size, with functions that damage them."""

from dataclasses import dataclass
from pathlib import Path

from tandemq.codec.record.entries import BLANK, BLANK_MAGIC
from tandemq.codec.record.record import CRC_PROPERTY_BYTES, encode_host, encode_record

SEGMENT_BYTES = 1 << 16
BORN_MS = 1_700_000_000_000
HOST_V4 = encode_host(bytes([127, 0, 0, 1]), 10911)
HOST_V6 = encode_host(bytes(15) + b"\1", 40000)


@dataclass(frozen=True)
class Made:
    """One record and its position."""

    number: int
    log_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    body: bytes


class LogWriter:
    """Appends records to the log of a store directory."""

    def __init__(self, store: Path, segment_bytes: int = SEGMENT_BYTES, queues: int = 4, start: int = 0) -> None:
        self.store = store
        self.segment_bytes = segment_bytes
        self.end = start
        self.made: list[Made] = []
        self._queues = queues
        self._next: dict[tuple[str, int], int] = {}
        (store / "commitlog").mkdir(parents=True, exist_ok=True)

    def write(
        self,
        body: bytes | None = None,
        *,
        topic: str = "",
        sys_flag: int = 0,
        properties: bytes | None = None,
        born_host: bytes = HOST_V4,
        is_java: bool = False,
        born_ms: int | None = None,
    ) -> Made:
        """Append one record; by default alternately of topic T0 and T1, with keys and a tag."""
        number = len(self.made)
        topic = topic or f"T{number % 2}"
        queue_id = number % self._queues
        queue_offset = self._next.get((topic, queue_id), 0)
        body = f"body {number} ".encode() * (1 + number % 7) if body is None else body
        if properties is None:
            properties = b"KEYS\x01k%d\x02TAGS\x01t%d\x02UNIQ_KEY\x01%032X\x02" % (number, number % 3, number)
        while True:
            raw = encode_record(
                topic=topic.encode(),
                queue_id=queue_id,
                queue_offset=queue_offset,
                log_offset=self.end,
                body=body,
                properties=properties,
                flag=number,
                sys_flag=sys_flag,
                born_ms=BORN_MS + 10 * number if born_ms is None else born_ms,
                born_host=born_host,
                store_ms=BORN_MS + 10 * number + number % 5,
                store_host=HOST_V4,
                reconsume_times=number % 2,
            )
            if is_java:  # without the closing CRC property
                kept = len(properties)
                raw = raw[: -CRC_PROPERTY_BYTES - kept - 2] + kept.to_bytes(2) + properties
                raw = len(raw).to_bytes(4) + raw[4:]
            room = self.segment_bytes - self.end % self.segment_bytes
            if len(raw) + 8 <= room:
                break
            self._put(BLANK.pack(room, BLANK_MAGIC))
            self.end += room
        self._put(raw)
        made = Made(number, self.end, len(raw), topic, queue_id, queue_offset, body)
        self.made.append(made)
        self._next[topic, queue_id] = queue_offset + 1
        self.end += len(raw)
        return made

    def write_many(self, count: int) -> None:
        """Append `count` ordinary records."""
        for _ in range(count):
            self.write()

    def flip(self, log_offset: int) -> None:
        """Flip one bit."""
        with open(self.path(log_offset), "r+b") as file:
            file.seek(log_offset % self.segment_bytes)
            (byte,) = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))

    def zero(self, start: int, end: int) -> None:
        """Overwrite with zeroes."""
        with open(self.path(start), "r+b") as file:
            file.seek(start % self.segment_bytes)
            file.write(bytes(end - start))

    def path(self, log_offset: int) -> Path:
        """Return the file of a log offset."""
        return self.store / "commitlog" / f"{log_offset - log_offset % self.segment_bytes:020d}"

    def _put(self, data: bytes) -> None:
        path = self.path(self.end)
        if not path.exists():
            with open(path, "wb") as file:
                file.truncate(self.segment_bytes)
        with open(path, "r+b") as file:
            file.seek(self.end % self.segment_bytes)
            file.write(data)
