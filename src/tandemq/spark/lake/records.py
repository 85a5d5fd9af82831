"""Encoder of lake rows into records: exactly the bytes of the log they came from.

    row ─► head, 88 bytes (more with IPv6) · body as stored · topic · properties as stored   = the record
    row with a verdict ─► `body`, the bytes as stored

A lake keeps every field of a record (docs/guides/pipeline.md, "Columns"). An encoded record is checked against the
original's size and, through its CRC, against the original's content.

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
"""Columns needed to encode a row; times as milliseconds since 1970."""
TOPIC_V1_MAX = 127
_LENGTH = Struct(">H")
_BLANK = Struct(">iI")


def encode_row(row: Mapping[str, Any]) -> bytes:
    """Encode a row as a record.

    Raises:
        StoreDamaged: the result does not match the size or CRC of the row.
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
        raise StoreDamaged(f"the row of log offset {row['commitLogOffset']} encodes to no sound record: {fault}")
    return record


def _host(text: str) -> bytes:
    address, _, port = text.rpartition(":")
    return encode_host(ipaddress.ip_address(address.strip("[]")).packed, int(port))


def _fault(record: bytes, row: Mapping[str, Any]) -> str | None:
    if len(record) != row["size"]:
        return f"it has {len(record)} bytes instead of {row['size']}"
    parsed = parse_record(record, 0, len(record))
    if isinstance(parsed, str):
        return parsed
    is_v6 = bool(row["sysFlag"] & (SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6))
    assert is_v6 == ("[" in row["bornHost"] + row["storeHost"]), "the flags give the length of hosts"
    return record_fault(record, 0, parsed.size, parsed.body_start, parsed.body_end, parsed.body_crc)


def fill_segment(rows: Iterable[Mapping[str, Any]], start: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield the records (position in the file, bytes) of one segment file from its rows, ordered by log offset.

    If more records follow in the log, the space after the last record is a blank, which the caller adds with
    `blank_bytes`.

    Raises:
        StoreDamaged: rows overlap, leave a gap, or extend beyond the end of the segment.
    """
    expected: int | None = None
    for row in rows:
        record, offset = encode_row(row), row["commitLogOffset"]
        if expected is not None and offset != expected:
            fault = (
                f"nothing for log offsets {expected} to {offset - 1}"
                if offset > expected
                else f"log offset {offset} twice"
            )
            raise StoreDamaged(f"the lake holds {fault}", hint="has the whole log been archived, each record once?")
        if offset < start or offset + len(record) > start + size:
            raise StoreDamaged(
                f"the record at log offset {offset} does not fit into a file of {size} bytes that begins at {start}",
                hint="files must be as large as those of the broker: mappedFileSizeCommitLog",
            )
        yield offset - start, record
        expected = offset + len(record)


def blank_bytes(room: int) -> bytes:
    """Return the blank entry for the last `room` bytes of a segment; the bytes after it are zeros."""
    return _BLANK.pack(room, BLANK_MAGIC) if room >= _BLANK.size else b""
