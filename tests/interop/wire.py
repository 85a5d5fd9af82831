"""As much of the remoting protocol as waiting and recording need: one request, one answer, and the edges of frames.

    length(4) = 4 + header + body | serialisation(1) header length(3) | header | body

Written apart from `tandemq.codec` on purpose: a mistake there must not hide itself here.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from dataclasses import dataclass
from typing import Any

from tests.interop.java import LOOPBACK, wait_until

QUERY_OFFSET = 14
GET_ROUTE = 105
GET_BROKER_CLUSTER_INFO = 106
GET_ALL_GROUPS = 201
RESET_OFFSET = 222


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame taken apart; `raw` is the whole of it, with its length."""

    raw: bytes
    serialisation: int
    header: bytes
    body: bytes

    @property
    def fields(self) -> dict[str, Any]:
        """The header, whichever way it is written; of the binary form the language is a number."""
        return json.loads(self.header) if self.serialisation == 0 else _binary_header(self.header)


def _binary_header(data: bytes) -> dict[str, Any]:
    """code(2) language(1) version(2) opaque(4) flag(4) length(4) remark length(4) { length(2) key length(4) value }"""
    code, language, version, opaque, flag, remark_size = struct.unpack_from(">hbhiii", data)
    at = 17 + remark_size
    remark = data[17:at].decode()
    end = at + 4 + struct.unpack_from(">i", data, at)[0]
    at += 4
    fields = {}
    while at < end:
        (key_size,) = struct.unpack_from(">h", data, at)
        key = data[at + 2 : at + 2 + key_size].decode()
        at += 2 + key_size
        (value_size,) = struct.unpack_from(">i", data, at)
        fields[key] = data[at + 4 : at + 4 + value_size].decode()
        at += 4 + value_size
    header = {"code": code, "language": language, "version": version, "opaque": opaque, "flag": flag}
    return {**header, "remark": remark, "extFields": fields}


def split_frames(data: bytes) -> tuple[list[Frame], bytes]:
    """All whole frames at the start of `data`, and the rest."""
    frames = []
    while len(data) >= 8:
        (length,) = struct.unpack_from(">i", data)
        if len(data) < 4 + length:
            break
        raw, data = data[: 4 + length], data[4 + length :]
        header_end = 8 + int.from_bytes(raw[5:8], "big")
        frames.append(Frame(raw, raw[4], raw[8:header_end], raw[header_end:]))
    return frames, data


def ask(
    port: int,
    code: int,
    fields: dict[str, str] | None = None,
    body: bytes = b"",
    *,
    version: int = 409,
    timeout_s: float = 30,
) -> Frame:
    """Send one request on a connection of its own and return the answer.

    Raises:
        OSError: no connection, closed without an answer, or no answer in time.
    """
    header = json.dumps(
        {"code": code, "flag": 0, "language": "PYTHON", "opaque": 1, "version": version, "extFields": fields or {}}
    ).encode()
    with socket.create_connection((LOOPBACK, port), timeout_s) as connection:
        connection.sendall(struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body)
        data = b""
        while True:
            frames, data = split_frames(data)
            if frames:
                return frames[0]
            chunk = connection.recv(65536)
            if not chunk:
                raise ConnectionError(f"port {port} closed the connection without an answer to {code}")
            data += chunk


def loads_lenient(text: str | bytes) -> Any:
    """JSON with unquoted integer keys, as Java brokers write it."""
    as_text = text.decode() if isinstance(text, bytes) else text
    return json.loads(re.sub(r"([{,]\s*)(-?\d+)(\s*:)", r'\1"\2"\3', as_text))


def registered_brokers(namesrv_port: int) -> dict[str, dict[str, str]]:
    """Broker name -> broker id (as text) -> address, as the name server has it."""
    table = loads_lenient(ask(namesrv_port, GET_BROKER_CLUSTER_INFO).body)["brokerAddrTable"]
    return {name: dict(entry["brokerAddrs"]) for name, entry in table.items()}


def wait_registered(namesrv_port: int, broker_name: str, broker_id: int = 0, within_s: float = 40) -> str:
    """Wait until the name server knows a broker; returns its address."""
    return (
        wait_until(
            lambda: registered_brokers(namesrv_port).get(broker_name, {}).get(str(broker_id)),
            what=f"{broker_name} {broker_id} registered at {namesrv_port}",
            within_s=within_s,
        )
        or ""
    )


def wait_topic(namesrv_port: int, topic: str, within_s: float = 40) -> None:
    """Wait until the name server has a route of a topic."""
    wait_until(
        lambda: ask(namesrv_port, GET_ROUTE, {"topic": topic}).fields["code"] == 0,
        what=f"route of {topic} at {namesrv_port}",
        within_s=within_s,
    )
