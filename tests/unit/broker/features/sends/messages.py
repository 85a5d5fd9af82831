"""Messages for the tests of the engine."""

from collections.abc import Sequence
from typing import Any

from tandemq.codec.record.record import BatchPart, encode_batch
from tandemq.codec.remoting.frame import encode_command
from tandemq.engine import NAME
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tests.unit.broker.harness import CLIENT, Harness, send_fields

SMALL: dict[str, Any] = {"segment_bytes": 32 * 1024, "message_bytes_max": 8 * 1024}
V6: dict[str, Any] = {"address": "[fe80::1]:10911", "peers": {1: "[fe80::2]:500", 2: "1.2.3.4:5", 3: "[::1]:70"}}


class Count:
    """Messages that the engine took."""

    def __init__(self) -> None:
        self.messages = 0

    def expect(self, least: int) -> None:
        """Assert that the engine took at least so many since the last call, if it is the compiled one."""
        assert self.messages >= least or NAME == "python", f"{self.messages} of {least}"
        self.messages = 0


def send(
    number: int,
    *,
    queue: int = 0,
    topic: str = "T",
    size: int = 40,
    flag: int = 0,
    properties: str = "WAIT\x01true\x02TAGS\x01t\x02",
    opaque: int = 1_000_000,
    body: bytes | None = None,
    code: int = RequestCode.SEND_MESSAGE_V2,
    **changes: Any,
) -> bytes:
    """Encode a message whose body contains its number."""
    fields = {key: str(value) for key, value in send_fields(topic, queue).items()}
    fields["i"] = f"UNIQ_KEY\x017F01{number:08d}\x02{properties}"
    body = (b"%d." % number * size)[:size] if body is None else body
    is_binary = changes.pop("binary", False)
    return encode_command(Command(code, opaque + number, flag, fields=fields | changes, body=body, binary=is_binary))


def stream(count: int, first: int = 0, **more: Any) -> bytes:
    return b"".join([send(first + number, queue=number % 4, **more) for number in range(count)])


def batch(number: int, parts: Sequence[BatchPart] | bytes, *, properties: str = "", **changes: Any) -> bytes:
    """Encode a batch."""
    body = parts if isinstance(parts, bytes) else encode_batch(list(parts))
    return send(number, body=body, code=RequestCode.SEND_BATCH_MESSAGE, **({"m": "true", "i": properties} | changes))


def parts_of(first: int, count: int = 8, *, size: int = 40, more: bytes = b"TAGS\x01t\x02") -> list[BatchPart]:
    return [
        BatchPart(number, (b"%d." % number * size)[:size], b"UNIQ_KEY\x017F01%06d\x02" % number + more)
        for number in range(first, first + count)
    ]


def codes(broker: Harness, link: int = CLIENT) -> list[int]:
    return [answer.code for answer in broker.inbox[link]]
