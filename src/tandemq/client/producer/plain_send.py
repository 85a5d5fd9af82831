"""An ordinary message in flight: sent in one attempt, by one object for its ticket, its request and its state.

    ProducerCore.send ─► the engine makes the frame ─► response SUCCESS ─► settled
                                                       └► anything else: `on_answer`, the general way with its retries

Ordinary messages go to a queue of the client's choice while all masters are ready; see also `engine.new_messages`.
Owner: the producer.
"""

from typing import Any, ClassVar, Protocol

from tandemq.boundary import Now
from tandemq.client.core.calls import Ticket
from tandemq.client.core.connections import NO_BUCKET, Answer, DeadlineBucket
from tandemq.client.producer.publish_info import SendTarget
from tandemq.model.message import SendResult


class PlainSender(Protocol):
    """What has sent the message."""

    def plain_stored(self, sent: "PlainSend", queue_id: int, queue_offset: int, msg_id: str, now: Now) -> None:
        """Settle a message that a broker has stored with status SEND_OK."""

    def plain_answered(self, sent: "PlainSend", answer: Answer, now: Now) -> None:
        """Handle another response, or an error."""


class PlainSend(Ticket[SendResult], eq=False, kw_only=True):
    """See the module."""

    sender: PlainSender
    cohort: Any
    unique_key: str
    target: SendTarget
    frame: bytes = b""
    """Its frame, until it is settled."""
    bucket: DeadlineBucket = NO_BUCKET
    sent_ms: int = 0
    closes: ClassVar[bool] = False

    def on_stored(self, queue_id: int, queue_offset: int, msg_id: str, now: Now) -> None:
        """See `core.connections.PendingPlain`."""
        self.sender.plain_stored(self, queue_id, queue_offset, msg_id, now)

    def on_answer(self, answer: Answer, now: Now) -> None:
        """See `core.connections.PendingPlain`."""
        self.sender.plain_answered(self, answer, now)
