"""Remoting command: a request or a response, decoded.

Source: docs/internals/remoting.md, "header"; RocketMQ RemotingCommand.
"""

import msgspec

from tandemq.model.codes import ResponseCode

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2
VERSION_SPOKEN = 409
"""Version number sent in headers: that of RocketMQ 4.9.8."""
LANGUAGE_SPOKEN = "PYTHON"
GO_AWAY_ABOVE_VERSION = 475
"""Version number of RocketMQ 5.3.1: peers of a higher one understand GO_AWAY."""
GO_AWAY_REMARK = "please go away"


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

    @property
    def takes_go_away(self) -> bool:
        """Whether the sender understands GO_AWAY: RocketMQ 5.3.2 or newer, or TandemQ."""
        is_ours = self.language == LANGUAGE_SPOKEN and self.version == VERSION_SPOKEN
        return is_ours or self.version > GO_AWAY_ABOVE_VERSION

    def go_away(self) -> "Command":
        """Return the response by which a node that stops refuses this request."""
        return self.answer(ResponseCode.GO_AWAY, remark=GO_AWAY_REMARK)

    def head(self) -> "Command":
        """Return it without remark, fields and body: what an answer needs that has to wait."""
        return Command(
            self.code, self.opaque, self.flag, language=self.language, version=self.version, binary=self.binary
        )

    def answer(
        self, code: int, *, remark: str | None = None, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> "Command":
        """Return a response to this request, with the same form of header."""
        return Command(code, self.opaque, FLAG_RESPONSE, remark, fields or {}, body, binary=self.binary)
