"""Names of request-reply, and the two messages of it: the reply that is sent, and the reply that comes back.

    requester ── request: CORRELATION_ID, REPLY_TO_CLIENT, TTL ──► topic ──► responder
        ▲                                                                        │ reply: the same, MSG_TYPE=reply
        └──────── pushed on the requester's connection ◄── broker ◄── <cluster>_REPLY_TOPIC

Source: docs/reference/requests.md, "request-reply"; RocketMQ MessageUtil, MessageConst.
"""

from typing import Protocol

import msgspec

from tandemq.errors import InvalidMessage
from tandemq.model.message import CLUSTER, KEY_SEPARATOR, KEYS, TAGS, UNIQ_KEY, Message
from tandemq.model.topic import reply_topic

CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
"""Client id of the requester."""
TTL = "TTL"
"""For how long the requester waits, milliseconds."""
MSG_TYPE = "MSG_TYPE"
REPLY_TYPE = "reply"
"""Value of MSG_TYPE of a reply."""
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
"""When the broker passed a reply on, milliseconds since 1970."""
ARRIVE_TIME = "ARRIVE_TIME"
"""When the requester received it, milliseconds since 1970."""


class ReplyMessage(msgspec.Struct, frozen=True):
    """The reply to a request, as the requester gets it. Hosts are "ip:port"; `born_host` is the responder."""

    topic: str
    body: bytes
    properties: dict[str, str]
    flag: int
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str

    @property
    def tags(self) -> str:
        """The tag, "" if there is none."""
        return self.properties.get(TAGS, "")

    @property
    def keys(self) -> list[str]:
        """The keys, in the order in which the responder gave them."""
        return [key for key in self.properties.get(KEYS, "").split(KEY_SEPARATOR) if key]

    @property
    def unique_key(self) -> str:
        """The id that the responder assigned, "" if there is none."""
        return self.properties.get(UNIQ_KEY, "")


class HasProperties(Protocol):
    """A received message of any consumer."""

    @property
    def properties(self) -> dict[str, str]:
        """Names and values, as the broker stored them."""


def create_reply(request: HasProperties, body: bytes) -> Message:
    """Return the reply to a received request, to be sent by any producer.

    Raises:
        InvalidMessage: the message does not ask for a reply, or says nothing about the cluster it came from.
        TypeError: the body is not bytes.
    """
    properties = request.properties
    if not properties.get(CORRELATION_ID) or not properties.get(REPLY_TO_CLIENT):
        raise InvalidMessage("the message is not a request, and has no sender that waits for a reply")
    if not properties.get(CLUSTER):
        raise InvalidMessage("the request does not say which cluster it came from: its property CLUSTER is missing")
    shared = {name: properties[name] for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL) if properties.get(name)}
    return Message(reply_topic(properties[CLUSTER]), body, properties={MSG_TYPE: REPLY_TYPE, **shared})
