"""Pulls of compressed messages: decompressed only as far as a response can take them."""

import zlib

from tandemq.codec.record.record import encode_host, encode_record
from tandemq.kafka.cluster import INFLATED_MAX, QueuePull, _messages
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue, SysFlag
from tests.spec import spec

HOST = encode_host(bytes([127, 0, 0, 1]), 1)
BODY = bytes(64 << 10)


def compressed(queue_offset: int) -> bytes:
    return encode_record(
        topic=b"Orders",
        queue_id=0,
        queue_offset=queue_offset,
        log_offset=1_000 * queue_offset,
        body=zlib.compress(BODY),
        properties=b"",
        flag=0,
        sys_flag=int(SysFlag.COMPRESSED),
        born_ms=1,
        born_host=HOST,
        store_ms=1,
        store_host=HOST,
    )


@spec("P49")
def test_a_pull_has_no_more_decompressed_bytes_than_a_partition_may_have_in_a_response() -> None:
    pull = QueuePull(MessageQueue("Orders", "broker-a", 0), 0, is_bulk=True)
    fields = {"nextBeginOffset": "100", "minOffset": "0", "maxOffset": "100"}
    answer = Command(ResponseCode.SUCCESS, fields=fields, body=b"".join(map(compressed, range(100))))
    pulled = _messages(answer, pull, 0)
    assert len(pulled.messages) == INFLATED_MAX // len(BODY)
    assert pulled.following == len(pulled.messages), "the others are pulled again"
    assert {message.body for message in pulled.messages} == {BODY}
