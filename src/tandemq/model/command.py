"""A remoting command: a request or an answer, as words.

Source: docs/internals/remoting.md, "header"; RocketMQ RemotingCommand.
"""

import msgspec

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2
VERSION_SPOKEN = 409
"""The RocketMQ release whose feature family we claim: 4.9.8."""
LANGUAGE_SPOKEN = "PYTHON"


class Command(msgspec.Struct, gc=False):
    """One command. `fields` are the header's extFields; `binary` tells in which form it came or shall go."""

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
        """Whether this answers a request."""
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer."""
        return bool(self.flag & FLAG_ONEWAY)

    def answer(
        self, code: int, *, remark: str | None = None, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> "Command":
        """The answer to this request, in the form the request came in."""
        return Command(code, self.opaque, FLAG_RESPONSE, remark, fields or {}, body, binary=self.binary)
