"""Records of the log: every form that brokers write, valid and damaged."""

from random import Random

from tandemq.codec.record.entries import BLANK, BLANK_MAGIC
from tandemq.codec.record.record import CRC_PROPERTY_BYTES, PROPERTIES_BYTES_MAX, encode_host, encode_record
from tandemq.model.topic import DELETION_TOPIC
from tests.fuzz.frames import Frames
from tests.fuzz.values import BORN_MS

TOPICS = (
    "T",
    "T",
    "Other",
    DELETION_TOPIC,
    "SCHEDULE_TOPIC_XXXX",
    "Long" + 123 * "g",
    "Long" + 200 * "g",
    "Größe",
    "x",
)
RAW_TOPICS = (b"\xff\xfe", b"a\xc3", b"", b"../etc")


def encoded(random: Random, frames: Frames, log_offset: int, queue_offset: int) -> bytes:
    """Return one record."""
    topic = random.choice(RAW_TOPICS) if frames.odd() else random.choice(TOPICS).encode()
    properties = frames.properties().encode("utf-8", "surrogatepass")
    if frames.odd():
        properties += random.choice(
            (b"KEYS\x01\xff \xc3\x02", b"TAGS\x01\xe4\xb8\x02", b"UNIQ_KEY\x01\xed\xa0\x80\x02", b"x")
        )
    if random.random() < 0.4:
        properties += _timed(random)
    if properties and properties[-1] != 2 and not frames.odd():
        properties += b"\x02"
    properties = properties[: PROPERTIES_BYTES_MAX - CRC_PROPERTY_BYTES]
    raw = encode_record(
        topic=topic,
        queue_id=random.choice((0, 1, 2, 3, 7)),
        queue_offset=queue_offset,
        log_offset=log_offset,
        body=frames.body() if random.random() < 0.95 else b"",
        properties=properties,
        flag=random.randrange(3),
        sys_flag=random.choice((0, 0, 0, 1, 2, 4, 8, 12)),
        born_ms=BORN_MS,
        born_host=encode_host(bytes(random.choice((4, 4, 16))), 9),
        store_ms=BORN_MS + random.randrange(99),
        store_host=encode_host(bytes(random.choice((4, 4, 16))), 8),
        reconsume_times=random.randrange(3),
    )
    return without_crc(raw) if random.random() < 0.3 else raw


def without_crc(raw: bytes) -> bytes:
    """Return a record without its CRC property, as RocketMQ writes it."""
    start = len(raw) - CRC_PROPERTY_BYTES
    end = raw[:start]
    # The length of the properties stands before them; they are at the record's end.
    body_length_at = 84 + 12 * (end[39] >> 4 & 1) + 12 * (end[39] >> 5 & 1)
    at = body_length_at + 4 + int.from_bytes(end[body_length_at : body_length_at + 4])
    at += 1 + end[at] if end[4:8] == b"\xda\xa3\x20\xa7" else 2 + int.from_bytes(end[at : at + 2])
    size = int.from_bytes(end[at : at + 2]) - CRC_PROPERTY_BYTES
    return start.to_bytes(4) + end[4:at] + size.to_bytes(2) + end[at + 2 :]


def _timed(random: Random) -> bytes:
    """Return properties of a timed message that waits."""
    pairs = [
        (
            b"TIMER_OUT_MS",
            random.choice((*4 * (b"1700000030000", b"5", b"0"), b"05", b"-1", b"x", b"9" * 18, b"9" * 19)),
        ),
        (
            b"REAL_TOPIC",
            random.choice((*4 * (b"T", b"%RETRY%g"), b"a b", b"", "Größe".encode(), b"x" * 127, b"x" * 128)),
        ),
        (b"REAL_QID", b"1"),
    ]
    if random.random() < 0.4:
        pairs.append((b"TIMER_DEL_UNIQKEY", random.choice((b"T+k", b""))))
    if random.random() < 0.4:
        pairs.append((b"TIMER_ROLL_TIMES", random.choice((b"0", b"1", b"00", b""))))
    if random.random() < 0.4:
        pairs.append(random.choice(pairs))
    return b"\x02" + b"".join([b"%b\x01%b\x02" % pair for pair in pairs])


def log_of(random: Random, count: int, base: int, oddness: float = 0.0, *, has_blank: bool = False) -> bytes:
    """Return contiguous records that begin at the log offset `base`, perhaps with a blank at the end."""
    frames = Frames(random, oddness)
    data = bytearray()
    queue_offset = random.choice((0, 0, 1, 1000))
    for _ in range(count):
        data += encoded(random, frames, base + len(data), queue_offset)
        queue_offset += 1 if not frames.odd() else random.choice((0, -1, 3, 1 << 40))
        queue_offset = max(0, queue_offset)
    if has_blank:
        room = random.choice((8, 9, 50))
        data += BLANK.pack(room, BLANK_MAGIC) + bytes(room - 8)
    return bytes(data)


def damaged(random: Random, data: bytes) -> bytes:
    """Return bytes with a few changes."""
    raw = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 3))):
        if not raw:
            break
        at = random.randrange(len(raw))
        kind = random.randrange(8)
        if kind == 0:
            del raw[at : at + random.choice((1, 2, 20))]
        elif kind == 1:
            raw[at:at] = random.choice((b"\0", b"\x02", bytes(raw[at : at + 20])))
        else:
            raw[at] = random.choice((raw[at] ^ 1 << random.randrange(8), 0, 255, 2, 127, 128))
    return bytes(raw)
