"""One delivery of a popped message, until it is ended."""

import msgspec

from tandemq.client.consumer.pop.poller import PopPoller
from tandemq.client.core.calls import Ticket
from tandemq.model.message import MessageQueue, StoredMessage
from tandemq.model.pop import Handle


class PopDelivery(msgspec.Struct, eq=False):
    """A popped message. It comes back at `until_ms` unless it is acknowledged before."""

    message: StoredMessage
    queue: MessageQueue
    """The queue it was read from; its topic may be the group's retry topic."""
    topic: str
    """The topic that was popped."""
    handle: Handle
    """The newest one: a changed time makes the ones before void."""
    poller: PopPoller
    popped_ms: int
    """When it arrived, milliseconds on the monotonic clock."""
    until_ms: int
    """When it comes back, milliseconds on the monotonic clock."""
    is_waiting: bool = True
    """Whether it was not taken yet."""
    is_renewed: bool = True
    """Whether its time is prolonged before it is over."""
    is_ended: bool = False
    changing: Ticket[None] | None = None
    """Settled when the request in flight that changes its time has ended."""
