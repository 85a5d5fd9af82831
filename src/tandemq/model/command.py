"""Remoting command: a request or a response, decoded.

Source: docs/internals/remoting.md, "header"; RocketMQ RemotingCommand.
"""

import msgspec

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2
VERSION_SPOKEN = 409
"""Version number sent in headers: that of RocketMQ 4.9.8."""
LANGUAGE_SPOKEN = "PYTHON"


class Command(msgspec.Struct, gc=False):
    """One command. `fields` are the header's extFields; `binary` selects the binary form of the header."""

    code: int
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    fields: dict[str, str] = {}
    body: bytes = b""
    language: str = LANGUAGE_SPOKEN
    version: int = VERSION_SPOKEN
    binary: bool = False

    @property
    def is_response(self) -> bool:
        """Whether this is a response."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no response."""
        return bool(self.flag & FLAG_ONEWAY)

    def answer(
        self, code: int, *, remark: str | None = None, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> "Command":
        """Return a response to this request, with the same form of header."""
        return Command(code, self.opaque, FLAG_RESPONSE, remark, fields or {}, body, binary=self.binary)
