"""Limits of a user, a topic or a consumer group.

    user    messages and bytes per second that it sends; its connections
    topic   messages and bytes per second that are sent to it
    group   messages and bytes per second that are delivered to it; popped messages that it has not acknowledged

Source: docs/reference/quotas.md.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Literal

import msgspec

from tandemq.errors import ProtocolError
from tandemq.model.topic import group_name_error, topic_name_error

Kind = Literal["user", "topic", "group"]
USER: Kind = "user"
TOPIC: Kind = "topic"
GROUP: Kind = "group"
EACH = "*"
"""Name of the limit that holds for each one without a limit of its own."""
NAME_CHARACTERS_MAX = 255
RATE_MAX = 1_000_000_000_000
"""Maximum of a rate: thousandths of what an hour allows fit into 64 bits."""
IN_FLIGHT_MAX = 100_000
CONNECTIONS_MAX = 1_000_000
_NAME_FAULTS: dict[str, Callable[[str], str | None]] = {
    USER: lambda _name: None,
    TOPIC: topic_name_error,
    GROUP: group_name_error,
}
_Rate = Annotated[int, msgspec.Meta(ge=0, le=RATE_MAX)]


class Quota(msgspec.Struct, frozen=True, rename="camel"):
    """The limits of one user, topic or group; 0: unlimited."""

    kind: Kind
    name: str
    messages_per_second: _Rate = 0
    bytes_per_second: _Rate = 0
    connections: Annotated[int, msgspec.Meta(ge=0, le=CONNECTIONS_MAX)] = 0
    """Of a user."""
    in_flight: Annotated[int, msgspec.Meta(ge=0, le=IN_FLIGHT_MAX)] = 0
    """Of a group."""
    slows: bool = False
    """Whether sends beyond the limit of a user or topic wait for up to a second instead of being refused."""

    @property
    def key(self) -> tuple[Kind, str]:
        """Its kind and name."""
        return self.kind, self.name

    @property
    def is_unlimited(self) -> bool:
        """Whether it limits nothing."""
        return not (self.messages_per_second or self.bytes_per_second or self.connections or self.in_flight)

    def check(self) -> None:
        """Check what the types do not say.

        Raises:
            ProtocolError: the name is malformed, or the kind does not have one of the limits.
        """
        for fault in self._faults():
            raise ProtocolError(f"the limit of {self.kind} {self.name[:NAME_CHARACTERS_MAX]!r}: {fault}")

    def _faults(self) -> Iterator[str]:
        if not 0 < len(self.name) <= NAME_CHARACTERS_MAX or not self.name.isprintable():
            yield f"the name must have 1 to {NAME_CHARACTERS_MAX} printable characters"
        elif self.name != EACH and (fault := _NAME_FAULTS[self.kind](self.name)) is not None:
            yield fault
        if self.connections and self.kind != USER:
            yield "only users have a limit of connections"
        if self.in_flight and self.kind != GROUP:
            yield "only groups have a limit of messages in flight"
        if self.slows and self.kind == GROUP:
            yield "deliveries to a group always wait: slows is for users and topics"
