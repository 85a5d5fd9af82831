"""Records out of a lake's rows: the very bytes of the log they came from.

    row ─► head 88 (or more, IPv6) · body as stored · topic · properties as stored      = the record, byte for byte
    row with a verdict ─► `body`, the bytes as they lay

What a lake keeps of a record is all of it (docs/guides/pipeline.md, "Columns"): a record made anew is compared with the
size and, through its own CRC, with the content that the broker wrote.

Source: docs/internals/storage.md, "record", "commit log"; RocketMQ MessageDecoder.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import Any

from tandemq.codec.record.entries import BLANK_MAGIC
from tandemq.codec.record.record import MAGIC_V1, MAGIC_V2, encode_host, parse_record, record_fault
from tandemq.errors import StoreDamaged
from tandemq.model.message import SysFlag

COLUMNS = (
    "body",
    "topic",
    "queueId",
    "queueOffset",
    "commitLogOffset",
    "bornTimestamp",
    "storeTimestamp",
    "bornHost",
    "reconsumeTimes",
    "properties",
    "verdict",
    "size",
    "flag",
    "sysFlag",
    "bodyCrc",
    "storeHost",
    "preparedTransactionOffset",
    "epoch",
)
"""What of a row is needed; times as milliseconds since 1970."""
TOPIC_V1_MAX = 127
_LENGTH = Struct(">H")
_BLANK = Struct(">iI")


def encode_row(row: Mapping[str, Any]) -> bytes:
    """The record of a row.

    Raises:
        StoreDamaged: the row does not give the record it is said to be.
    """
    if row["verdict"] is not None:
        return bytes(row["body"])
    topic, properties, body = row["topic"].encode(), row["properties"].encode(), row["body"]
    born, store = _host(row["bornHost"]), _host(row["storeHost"])
    is_short = len(topic) <= TOPIC_V1_MAX
    head = Struct(f">iIiiiqqiq{len(born)}sq{len(store)}siqi").pack(
        row["size"],
        MAGIC_V1 if is_short else MAGIC_V2,
        row["bodyCrc"],
        row["queueId"],
        row["flag"],
        row["queueOffset"],
        row["commitLogOffset"],
        row["sysFlag"],
        row["bornTimestamp"],
        born,
        row["storeTimestamp"],
        store,
        row["reconsumeTimes"],
        row["preparedTransactionOffset"],
        len(body),
    )
    length = len(topic).to_bytes(1) if is_short else _LENGTH.pack(len(topic))
    record = b"".join((head, body, length, topic, _LENGTH.pack(len(properties)), properties))
    fault = _fault(record, row)
    if fault is not None:
        raise StoreDamaged(f"the row of log offset {row['commitLogOffset']} gives no sound record: {fault}")
    return record


def _host(text: str) -> bytes:
    address, _, port = text.rpartition(":")
    return encode_host(ipaddress.ip_address(address.strip("[]")).packed, int(port))


def _fault(record: bytes, row: Mapping[str, Any]) -> str | None:
    if len(record) != row["size"]:
        return f"it has {len(record)} bytes, and had {row['size']}"
    parsed = parse_record(record, 0, len(record))
    if isinstance(parsed, str):
        return parsed
    is_v6 = bool(row["sysFlag"] & (SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6))
    assert is_v6 == ("[" in row["bornHost"] + row["storeHost"]), "the flags tell how long hosts are"
    return record_fault(record, 0, parsed.size, parsed.body_start, parsed.body_end, parsed.body_crc)


def fill_segment(rows: Iterable[Mapping[str, Any]], start: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Pieces (position, bytes) of one segment of the log, of the rows that lie in it, in the order of their offsets.

    Between the last record and the segment's end lies a blank, if more records follow in the log: that is the caller's
    to add, by `blank_at`.

    Raises:
        StoreDamaged: rows overlap, leave a hole, or reach over the segment's end.
    """
    at: int | None = None
    for row in rows:
        record, offset = encode_row(row), row["commitLogOffset"]
        if at is not None and offset != at:
            fault = f"nothing for log offsets {at} to {offset - 1}" if offset > at else f"log offset {offset} twice"
            raise StoreDamaged(f"the lake holds {fault}", hint="has the whole log been archived, each record once?")
        if offset < start or offset + len(record) > start + size:
            raise StoreDamaged(
                f"the record at log offset {offset} does not fit into a file of {size} bytes that begins at {start}",
                hint="files must be as large as those of the broker: mappedFileSizeCommitLog",
            )
        yield offset - start, record
        at = offset + len(record)


def blank_at(room: int) -> bytes:
    """What fills a segment's last `room` bytes; the rest of them is zeros."""
    return _BLANK.pack(room, BLANK_MAGIC) if room >= _BLANK.size else b""
