"""Interface of sends for other features."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from tandemq.boundary import Now
from tandemq.broker.kernel.connection import Link
from tandemq.broker.state.topics import Topic
from tandemq.codec.remoting.requests import SendFields, SendFieldsV1, read_fields
from tandemq.engine import EndedHalf
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command

VERSION_3_4_9 = 121
"""Clients from this version on send `maxReconsumeTimes`."""
ENGINE_SENDS = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.END_TRANSACTION,
    }
)
"""Requests that the engine may take."""


class SendPlace(NamedTuple):
    """Where a message goes."""

    topic: Topic
    queue_id: int


class OpenHalves(Protocol):
    """The open transactions, for the engine."""

    def may_end(self) -> bool:
        """Whether transactions may be ended now."""

    def ended_by_engine(self, ends: list[EndedHalf], wall_ms: int) -> None:
        """Take the ends of transactions whose messages are appended."""


class Sends(ABC):
    """The sends of one broker."""

    @abstractmethod
    def take(self, link: Link, command: Command, now: Now) -> None:
        """Store any send, and add its response or refusal to the acks (`Puts.acks`)."""

    @abstractmethod
    def admit(self, fields: SendFields, body: bytes, wall_ms: int) -> SendPlace:
        """Check topic, queue, permission and size of a message; returns where it goes. May create the topic.

        Raises:
            SendRefused: the message is not accepted.
        """

    @abstractmethod
    def know_transactions(
        self,
        owner: OpenHalves | None,
        open_halves: Mapping[int, tuple[int, str, int]] | None = None,
        ended: dict[int, bool] | None = None,
    ) -> None:
        """Set the open transactions that the engine may commit, and those that ended in this turn.

        `owner` None: they are not known, and the engine commits none.
        """


def read_send_fields(command: Command) -> SendFields:
    """Return the header fields of a send or a reply, which come under long or short names.

    Raises:
        ProtocolError: a field is missing or malformed.
    """
    if command.code not in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
        return read_fields(SendFields, command.fields)
    first = read_fields(SendFieldsV1, command.fields)
    return SendFields(*(getattr(first, name) for name in SendFields.__struct_fields__))
