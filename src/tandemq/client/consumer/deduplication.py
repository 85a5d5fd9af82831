"""Duplicates of messages, recognised by topic and unique key before they are delivered.

    taken ─► admit ─► handled before                         SKIP: acknowledged and counted
                   ├► the same message is being handled      PARK: until that delivery is ended
                   └► else                                   DELIVER: in flight until it is ended
    ended: acknowledged ─► its key is handled, parked duplicates are skipped
           sent back    ─► parked duplicates are delivered

A key is handled only after its message was acknowledged, so a message whose handler failed, or whose process died, is
delivered again. The keys of handled messages are kept per queue, the latest ones, so that a busy queue does not push
out those of a quiet one; a duplicate is recognised in whichever queue it comes: a producer that got no response sends
to another queue. Memory: about 200 bytes per key, at most `IDENTITY_MAX` characters each.

An operator's reset of offsets is a wish to have messages again: those below the position at that time are not checked.

Owner: the consumer. Source: docs/reference/guarantees.md, "duplicates in the client".
"""

from collections import OrderedDict, deque
from enum import Enum
from hashlib import blake2b
from weakref import WeakValueDictionary

from tandemq.client.consumer.delivery import Delivery
from tandemq.model.message import MessageQueue, StoredMessage

IDENTITY_MAX = 400
"""Longest identity. Longer keys are hashed, and so are those with characters that no client of RocketMQ uses."""


class DuplicateDecision(Enum):
    """What happens to a message that is about to be delivered."""

    DELIVER = "deliver"
    SKIP = "skip"
    PARK = "park"


def message_identity(message: StoredMessage) -> str:
    """Return what all copies of a message have in common: "topic:unique key"; "" if it has no unique key.

    Redelivered messages carry their original topic here, so that they equal the first delivery.
    """
    key = message.unique_key
    if not key:
        return ""
    identity = f"{message.topic}:{key}"
    if len(identity) > IDENTITY_MAX or not (key.isascii() and key.isprintable()):
        digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
        identity = f"{message.topic}:#{digest}"
    return identity


class HandledKeys:
    """Identities of the messages handled last, per queue."""

    def __init__(self, per_queue: int, total: int) -> None:
        """`per_queue`, `total`: maximum numbers; beyond `total` the queue used longest ago loses its oldest."""
        self._per_queue = per_queue
        self._total = total
        self._keys: set[str] = set()
        self._queues: OrderedDict[MessageQueue, deque[str]] = OrderedDict()

    def __contains__(self, identity: str) -> bool:
        return identity in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, queue: MessageQueue, identity: str) -> None:
        """Remember a message of a queue."""
        if identity in self._keys:
            return
        order = self._queues.get(queue)
        if order is None:
            order = self._queues[queue] = deque()
        self._queues.move_to_end(queue)
        self._keys.add(identity)
        order.append(identity)
        if len(order) > self._per_queue:
            self._keys.discard(order.popleft())
        elif len(self._keys) > self._total:
            oldest = next(iter(self._queues))
            self._keys.discard(self._queues[oldest].popleft())
            if not self._queues[oldest]:
                del self._queues[oldest]


class DuplicateFilter:
    """Decides about the deliveries of one consumer."""

    def __init__(self, per_queue: int, total: int) -> None:
        """`per_queue`, `total`: see `HandledKeys`."""
        self._handled = HandledKeys(per_queue, total)
        self._in_flight: WeakValueDictionary[str, Delivery] = WeakValueDictionary()
        """Weak: a delivery that the application lost without ending it is not in flight any more."""
        self._parked: dict[str, list[Delivery]] = {}
        self._replay_until: dict[MessageQueue, int] = {}
        self.skipped = 0
        """Number of duplicates that were acknowledged instead of delivered."""

    def admit(self, delivery: Delivery) -> DuplicateDecision:
        """Decide about a delivery. One that is delivered is in flight until `ended`."""
        identity = message_identity(delivery.message)
        if not identity or delivery.assigned is None or self._is_replayed(delivery):
            return DuplicateDecision.DELIVER
        if identity in self._handled:
            return DuplicateDecision.SKIP
        if identity in self._in_flight:
            self._parked.setdefault(identity, []).append(delivery)
            return DuplicateDecision.PARK
        delivery.identity = identity
        self._in_flight[identity] = delivery
        return DuplicateDecision.DELIVER

    def _is_replayed(self, delivery: Delivery) -> bool:
        until = self._replay_until.get(delivery.queue)
        if until is None:
            return False
        if delivery.message.queue_offset < until:
            return True
        del self._replay_until[delivery.queue]
        return False

    def replay(self, queue: MessageQueue, until: int) -> None:
        """Deliver the messages of a queue below an offset without a check: an operator has reset its offset."""
        self._replay_until[queue] = max(until, self._replay_until.get(queue, 0))

    def ended(self, delivery: Delivery, *, is_handled: bool) -> list[Delivery]:
        """End a delivery; returns its parked duplicates, to be skipped if it was handled, else to be delivered."""
        identity = delivery.identity
        if not identity:
            return []
        if is_handled:
            self._handled.add(delivery.queue, identity)
        # Another delivery may be in flight now: this one was parked for too long.
        if self._in_flight.get(identity) in (delivery, None):
            self._in_flight.pop(identity, None)
            return self._parked.pop(identity, [])
        return []

    def overdue(self, delivery: Delivery) -> bool:
        """Take a delivery that was parked for too long; False if it is not parked any more."""
        identity = message_identity(delivery.message)
        parked = self._parked.get(identity, [])
        if delivery not in parked:
            return False
        parked.remove(delivery)
        if not parked:
            del self._parked[identity]
        self._in_flight.pop(identity, None)
        return True
