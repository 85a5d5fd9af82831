"""Headers of requests, in JSON and in binary form, as Java clients write them: fields in the order of Java's maps.

Source: docs/internals/remoting.md 2, 3; captured frames in tests/golden/frames.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping

VERSION_4 = 409  # 4.9.8
VERSION_5 = 479  # 5.3.3
_BINARY_WORD = 1 << 24
_FIXED = struct.Struct(">hBhiiii")
_JAVA = 0


def json_frame(code: int, opaque: int, fields: Mapping[str, str], body: bytes, version: int = VERSION_5) -> bytes:
    """Return a frame whose header is a JSON object."""
    header = json_header(code, str(opaque), fields, version)
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def json_header(code: int, opaque: str, fields: Mapping[str, str], version: int = VERSION_5) -> bytes:
    """Return the header alone; `opaque` is text, for a caller that fills it in later."""
    ext = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
    return (
        f'{{"code":{code},"extFields":{ext},"flag":0,"language":"JAVA","opaque":{opaque},'
        f'"serializeTypeCurrentRPC":"JSON","version":{version}}}'
    ).encode()


def binary_frame(code: int, opaque: int, fields: Mapping[str, str], body: bytes, version: int = VERSION_4) -> bytes:
    """Return a frame with a header in RocketMQ's binary form."""
    ext = b"".join(_binary_field(name.encode(), value.encode()) for name, value in fields.items())
    header = _FIXED.pack(code, _JAVA, version, opaque, 0, 0, len(ext)) + ext
    return struct.pack(">II", 4 + len(header) + len(body), _BINARY_WORD | len(header)) + header + body


def _binary_field(name: bytes, value: bytes) -> bytes:
    return struct.pack(">H", len(name)) + name + struct.pack(">I", len(value)) + value
