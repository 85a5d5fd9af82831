"""Queues with held pulls and with messages that may not be shown yet: their pulls are tried when one may be.

Messages are stored, and may be shown, in the order of the log. The queues that a turn stored messages in are therefore
kept together, with the part of the log that it wrote: nothing is done for them until the visible end reaches it.
"""

from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter

from tandemq.storage.consume_queue import ConsumeQueue


class _Part:
    """A part of the log, and queues whose first message that may not be shown yet is in it."""

    __slots__ = ("end", "queues", "shown_end")

    def __init__(self, start: int, end: int) -> None:
        self.shown_end = start
        """Log offset up to which messages in it could be shown when the queues were tried last."""
        self.end = end
        self.queues: dict[ConsumeQueue, None] = {}


_end_of = attrgetter("end")


class UnseenQueues:
    """The queues, by the part of the log that has their first message that may not be shown yet."""

    def __init__(self) -> None:
        """Begin without queues."""
        self._parts: list[_Part] = []
        """In the order of the log; none is empty."""
        self._part_of: dict[ConsumeQueue, _Part] = {}

    def __len__(self) -> int:
        """Return the number of queues."""
        return len(self._part_of)

    def stored(self, start: int, end: int, queues: Iterable[ConsumeQueue]) -> None:
        """Add queues with messages in a part of the log behind all others, unless they have earlier ones."""
        part = _Part(start, end)
        part.queues = dict.fromkeys(queue for queue in queues if queue not in self._part_of)
        if part.queues:
            self._parts.append(part)
            self._part_of.update(dict.fromkeys(part.queues, part))

    def add(self, queue: ConsumeQueue, log_offset: int) -> None:
        """Add a queue with a message that may not be shown yet at a log offset."""
        number = bisect_right(self._parts, log_offset, key=_end_of)
        is_known = number < len(self._parts) and self._parts[number].shown_end <= log_offset
        part = self._parts[number] if is_known else _Part(log_offset, log_offset + 1)
        before = self._part_of.get(queue)
        if before is not None:
            if before.end <= part.end:
                return
            self._remove(queue, before)
        if not is_known:
            self._parts.insert(number, part)
        part.queues[queue] = None
        self._part_of[queue] = part

    def _remove(self, queue: ConsumeQueue, part: _Part) -> None:
        del part.queues[queue]
        if not part.queues:
            self._parts.remove(part)

    def take_shown(self, visible_end: int) -> list[ConsumeQueue]:
        """Return the queues that may have a message that can be shown now; those of parts that are shown go."""
        found: list[ConsumeQueue] = []
        while self._parts and self._parts[0].shown_end < visible_end:
            part = self._parts[0]
            found += part.queues
            if visible_end < part.end:
                part.shown_end = visible_end
                break
            del self._parts[0]
            for queue in part.queues:
                del self._part_of[queue]
        return found

    def clear(self) -> None:
        """Remove all."""
        self._parts.clear()
        self._part_of.clear()
