"""Pops that wait for messages: by topic, group and queue, until messages arrive or their time is over.

Source: docs/reference/pop.md; RocketMQ PopLongPollingService.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from tandemq.broker.filter.selector import ALL_MESSAGES, MessageSelector
from tandemq.model.command import Command
from tandemq.storage.consume_queue import ConsumeQueue

WAITING_PER_LINK_MAX = 4_096
VOID_AT_ONCE = 1_024
"""Maximum number of entries without a waiting request that are dropped at once."""
Place = tuple[str, int]
"""Group and queue id of a request; -1: any queue."""


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """A pop, or a request for a notification of messages, on a connection."""

    link: int
    command: Command
    """The head of the request."""
    topic: str
    group: str
    queue_id: int
    """-1: any."""
    deadline_ms: int
    """Monotonic time at which it is answered without messages."""
    selector: MessageSelector = ALL_MESSAGES
    most: int = 0
    invisible_ms: int = 0
    """Of a pop: for how long its messages are invisible."""
    starts_at_end: bool = False
    """Whether a group without an offset begins at the last message instead of the first one."""
    order: bool = False
    attempt_id: str = ""
    is_notification: bool = False
    """Whether it asks whether there are messages, and takes none."""
    is_peek: bool = False
    """Whether it looks at messages, and takes none."""
    asked_ms: int = 0
    """Monotonic time up to which the client lets it wait; the deadline is later if the device has to be waited for."""
    reads: dict[ConsumeQueue, None] = field(default_factory=dict)
    """Queues that are read from the device for it."""
    is_waiting: bool = field(default=False, init=False)


class WaitingRequests:
    """The waiting pops of one broker."""

    def __init__(self) -> None:
        """Begin without any."""
        self._by_topic: dict[str, dict[Place, dict[WaitingRequest, None]]] = {}
        self._by_link: dict[int, dict[WaitingRequest, None]] = {}
        self._deadlines: list[tuple[int, int, WaitingRequest]] = []
        """A heap; a number makes all entries different."""
        self._number = count()
        self.size = 0

    def add(self, request: WaitingRequest, *, most: int, most_of_place: int) -> bool:
        """Have a request wait; False if there are too many.

        Args:
            request: it.
            most: maximum of all.
            most_of_place: maximum of one topic, group and queue.
        """
        if self.size >= most or len(self._by_link.get(request.link, ())) >= WAITING_PER_LINK_MAX:
            return False
        if self.count(request.topic, request.group, request.queue_id) >= most_of_place:
            return False
        places = self._by_topic.setdefault(request.topic, {})
        places.setdefault((request.group, request.queue_id), {})[request] = None
        self._by_link.setdefault(request.link, {})[request] = None
        heappush(self._deadlines, (request.deadline_ms, next(self._number), request))
        request.is_waiting = True
        self.size += 1
        return True

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of requests that wait for one topic, group and queue."""
        return len(self._by_topic.get(topic, {}).get((group, queue_id), ()))

    def remove(self, request: WaitingRequest) -> None:
        """Have a request wait no longer; no effect if it does not."""
        if not request.is_waiting:
            return
        request.is_waiting = False
        self.size -= 1
        places, place = self._by_topic[request.topic], (request.group, request.queue_id)
        del places[place][request]
        if not places[place]:
            del places[place]
            if not places:
                del self._by_topic[request.topic]
        of_link = self._by_link[request.link]
        del of_link[request]
        if not of_link:
            del self._by_link[request.link]

    def awaits(self, topic: str) -> bool:
        """Whether a request waits for messages of a topic."""
        return topic in self._by_topic

    def places_of(self, topic: str) -> list[Place]:
        """Return the groups and queues for which requests for a topic wait."""
        return list(self._by_topic.get(topic, ()))

    def at(self, topic: str, place: Place) -> list[WaitingRequest]:
        """Return the requests for a topic, a group and a queue, in the order of their arrival."""
        return list(self._by_topic.get(topic, {}).get(place, ()))

    def due(self, now_ms: int, limit: int) -> list[WaitingRequest]:
        """Remove requests whose time is over, up to a limit, and return them.

        Entries of requests that were answered before go as well, up to `VOID_AT_ONCE`: many may lie behind that of a
        request that has waited for long.
        """
        found: list[WaitingRequest] = []
        for _ in range(limit + VOID_AT_ONCE):
            if not self._deadlines or len(found) >= limit:
                break
            deadline_ms, _, request = self._deadlines[0]
            if request.is_waiting and deadline_ms > now_ms:
                break
            heappop(self._deadlines)
            if request.is_waiting:
                self.remove(request)
                found.append(request)
        return found

    def expire(self, link: int, now_ms: int) -> None:
        """Have the requests of a connection be due now."""
        for request in self._by_link.get(link, ()):
            heappush(self._deadlines, (now_ms, next(self._number), request))

    def next_ms(self) -> int | None:
        """Return the earliest deadline, monotonic ms; perhaps of a request that waits no more. None: none."""
        return self._deadlines[0][0] if self._deadlines else None

    def drop_link(self, link: int) -> None:
        """Forget the requests of a connection that closed."""
        for request in list(self._by_link.get(link, ())):
            self.remove(request)

    def everything(self) -> list[WaitingRequest]:
        """Return all requests."""
        return [request for requests in self._by_link.values() for request in requests]
