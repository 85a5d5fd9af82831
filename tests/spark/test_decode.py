"""Pulled records as batches, without Spark: one malformed record does not affect the others."""

import zlib

import pytest

from tandemq.codec.record.record import encode_host, encode_record
from tandemq.errors import ProtocolError
from tandemq.model.message import MessageQueue, SysFlag
from tandemq.spark.sources.cluster.decode import Decoder
from tandemq.spark.sources.cluster.plan import QueueRange
from tandemq.spark.sources.cluster.reader import PulledRecords
from tandemq.spark.sources.cluster.resolve import Epochs
from tandemq.spark.sources.schema import message_schema

HOST = encode_host(b"\x7f\0\0\1", 10911)


def pulled(*bodies: bytes, sys_flag: int = 0, born_ms: int = 0) -> PulledRecords:
    records = [
        encode_record(
            topic=b"T",
            queue_id=0,
            queue_offset=n,
            log_offset=n * 1000,
            body=body,
            properties=b"",
            flag=0,
            sys_flag=sys_flag,
            born_ms=born_ms,
            born_host=HOST,
            store_ms=1,
            store_host=HOST,
        )
        for n, body in enumerate(bodies)
    ]
    return PulledRecords(QueueRange(MessageQueue("T", "a", 0), 0, len(bodies)), b"".join(records), len(bodies))


@pytest.mark.parametrize("born_ms", [(1 << 63) - 1, -(1 << 63)])
def test_time_beyond_the_timestamp_range_is_clamped(born_ms: int) -> None:
    batch = Decoder(message_schema(), kafka=False).batch(pulled(b"0", b"1", born_ms=born_ms), Epochs())
    assert batch.column("body").to_pylist() == [b"0", b"1"]


def test_body_that_cannot_be_decompressed_is_a_row_with_a_verdict_or_an_error_that_names_it() -> None:
    some = pulled(zlib.compress(b"sound"), b"no zlib", sys_flag=int(SysFlag.COMPRESSED))
    batch = Decoder(message_schema(details=True), kafka=False).batch(some, Epochs())
    verdicts = batch.column("verdict").to_pylist()
    assert (batch.column("body").to_pylist()[0], verdicts[0]) == (b"sound", None)
    assert "cannot be decompressed" in verdicts[1]
    with pytest.raises(ProtocolError, match=r"offset 1: the body cannot be decompressed.*details=true"):
        Decoder(message_schema(), kafka=False).batch(some, Epochs())
    stored = Decoder(message_schema(), kafka=False, inflates=False).batch(some, Epochs())
    assert stored.column("body").to_pylist()[1] == b"no zlib"
