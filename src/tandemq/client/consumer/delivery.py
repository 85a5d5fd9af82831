"""One delivery of a message to the application of a push consumer."""

from collections.abc import Callable

import msgspec

from tandemq.boundary import Now
from tandemq.client.consumer.consume_tracer import TracedDelivery
from tandemq.client.consumer.queues.assigned_queue import AssignedQueue, AssignmentState
from tandemq.model.message import MessageQueue, StoredMessage

_ACTIVE = AssignmentState.ACTIVE


class Delivery(msgspec.Struct, eq=False, weakref=True):
    """One message delivered to the user, until it is ended."""

    message: StoredMessage
    queue: MessageQueue
    assigned: AssignedQueue | None
    """None for a message that a broker sent for direct consumption, which has no offset."""
    generation: int
    """That of the process queue when the message was pulled."""
    is_ended: bool = False
    on_end: Callable[[bool, Now], None] | None = None
    """Called with whether it was acknowledged; for direct consumption."""
    traced: TracedDelivery | None = None
    identity: str = ""
    """What its duplicates have in common; "" if duplicates of it are not looked for."""

    @property
    def is_ours(self) -> bool:
        """Whether its queue is still assigned, and was not moved to another offset."""
        assigned = self.assigned
        return (
            assigned is not None and assigned.state is _ACTIVE and assigned.process_queue.generation == self.generation
        )
