"""Values of Kafka's protocol: big-endian numbers, strings, arrays, and the zigzag numbers of records.

Source: Kafka's protocol guide, "Protocol Primitive Types".
"""

import struct
from collections.abc import Callable
from typing import TypeVar

from tandemq.errors import ProtocolError

T = TypeVar("T")
_INT8, _INT16, _INT32, _INT64 = (struct.Struct(f">{kind}") for kind in "bhiq")
ELEMENTS_MAX = 10_000
"""Maximum number of elements of an array in a request."""


class WireReader:
    """Reads the values of one request. Each method raises ProtocolError if the request ends before the value."""

    def __init__(self, data: bytes) -> None:
        """`data`: a request without its length."""
        self._data = data
        self._at = 0

    def _number(self, form: struct.Struct) -> int:
        try:
            (value,) = form.unpack_from(self._data, self._at)
        except struct.error as error:
            raise ProtocolError("the request ends within a number") from error
        self._at += form.size
        return int(value)

    def int8(self) -> int:
        """Read a number of one byte."""
        return self._number(_INT8)

    def int16(self) -> int:
        """Read a number of two bytes."""
        return self._number(_INT16)

    def int32(self) -> int:
        """Read a number of four bytes."""
        return self._number(_INT32)

    def int64(self) -> int:
        """Read a number of eight bytes."""
        return self._number(_INT64)

    def string(self) -> str | None:
        """Read a string; None if it is null."""
        size = self.int16()
        if size < 0:
            return None
        if size > len(self._data) - self._at:
            raise ProtocolError("the request ends within a string")
        self._at += size
        try:
            return self._data[self._at - size : self._at].decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("a string is no UTF-8") from error

    def sized(self) -> bytes:
        """Read bytes behind their length; none if they are null."""
        size = max(self.int32(), 0)
        if size > len(self._data) - self._at:
            raise ProtocolError("the request ends within bytes")
        self._at += size
        return self._data[self._at - size : self._at]

    def array(self, element: Callable[[], T]) -> list[T] | None:
        """Read an array, each element by a function; None if it is null.

        Raises:
            ProtocolError: it has more than `ELEMENTS_MAX` elements.
        """
        count = self.int32()
        if count < 0:
            return None
        if count > ELEMENTS_MAX:
            raise ProtocolError(f"an array has {count} elements; at most {ELEMENTS_MAX} are read")
        return [element() for _ in range(count)]


class WireWriter:
    """Collects the values of one response."""

    def __init__(self) -> None:
        """Start empty."""
        self.data = bytearray()

    def int8(self, value: int) -> None:
        """Append a number of one byte."""
        self.data += _INT8.pack(value)

    def int16(self, value: int) -> None:
        """Append a number of two bytes."""
        self.data += _INT16.pack(value)

    def int32(self, value: int) -> None:
        """Append a number of four bytes."""
        self.data += _INT32.pack(value)

    def int64(self, value: int) -> None:
        """Append a number of eight bytes."""
        self.data += _INT64.pack(value)

    def string(self, value: str | None) -> None:
        """Append a string, or null."""
        if value is None:
            self.int16(-1)
            return
        encoded = value.encode()
        self.int16(len(encoded))
        self.data += encoded

    def sized(self, value: bytes) -> None:
        """Append bytes behind their length."""
        self.int32(len(value))
        self.data += value


def zigzag(value: int) -> bytes:
    """Return a signed number of up to 64 bits in Kafka's variable length."""
    rest = (value << 1) ^ (value >> 63)
    if rest < 0x80:
        return rest.to_bytes(1, "big")
    found = bytearray()
    while rest >= 0x80:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)
