"""Sends beyond a rate: those of a rate that slows wait, in their order, until it allows them; of others the refusal
waits.

What a waiting send needs is used when it begins to wait, so that each one knows its time. No send of a connection
overtakes a waiting one to the same topic, though the limit may have been raised or removed meanwhile. Refusals wait so
that a producer that repeats at once keeps the broker no busier than one that waits.
"""

from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from msgspec.structs import replace

from tandemq.broker.kernel.connection import Link
from tandemq.engine import Budget
from tandemq.model.command import Command

WAIT_MS_MAX = 1_000
"""How long a send may wait; clients wait for 3 s by default."""
REFUSAL_MS_MIN, REFUSAL_MS_SPREAD = 100, 300
"""How long refusals wait at least, and by how much longer some of them do: so producers do not repeat all at once."""
REFUSAL_STEP_MS = 97
"""Difference between the waits of one refusal and the next, modulo the spread."""
SENDS_MAX = 16_384
BYTES_MAX = 64 << 20
PER_TURN_MAX = 512
"""Maximum number of sends that one turn takes."""


class SlowedSend(NamedTuple):
    """A send that waits."""

    due_ms: int
    """Monotonic."""
    number: int
    link: Link
    command: Command
    topic: str
    refusal: str
    """Why it is refused; "": it is stored."""


class _Waiting:
    """The sends of one connection to one topic that wait to be stored."""

    def __init__(self) -> None:
        self.count = 0
        self.last_ms = 0
        """When the last of them is due."""


class SlowedSends:
    """The sends that wait."""

    def __init__(self) -> None:
        """Begin without sends."""
        self._sends: list[SlowedSend] = []
        """A heap."""
        self._bytes = 0
        self._numbers = count()
        self._waiting: dict[int, dict[str, _Waiting]] = {}
        """Those to be stored, by connection and topic."""
        self.held: set[int] = set()
        """Connections with sends that wait since the limits were changed."""

    def hold(self) -> None:
        """Note that the limits were changed: later sends of a connection may be within them, and must wait too."""
        self.held = set(self._waiting)

    def wait_ms(self, link: Link, topic: str, now_ms: int) -> int:
        """Return after what time no send of a connection to a topic waits any more; 0: none waits."""
        waiting = self._waiting.get(link.number, {}).get(topic)
        return 0 if waiting is None else max(1, waiting.last_ms - now_ms)

    def add(
        self,
        link: Link,
        command: Command,
        topic: str,
        messages: int,
        budgets: tuple[Budget, ...],
        wait_ms: int,
        now_ms: int,
    ) -> bool:
        """Have a send of some messages wait; return whether it may: the time is short enough, and there is room."""
        size = len(command.body)
        if wait_ms > WAIT_MS_MAX or len(self._sends) >= SENDS_MAX or self._bytes + size > BYTES_MAX:
            return False
        for budget in budgets:
            budget.use(messages, size)
        waiting = self._waiting.setdefault(link.number, {}).setdefault(topic, _Waiting())
        waiting.count += 1
        waiting.last_ms = max(waiting.last_ms, now_ms + wait_ms)
        self._push(SlowedSend(waiting.last_ms, next(self._numbers), link, command, topic, ""))
        return True

    def add_refused(self, link: Link, command: Command, refusal: str, now_ms: int) -> bool:
        """Have the refusal of a send wait; return whether it does: there is room."""
        number = next(self._numbers)
        wait_ms = REFUSAL_MS_MIN + number * REFUSAL_STEP_MS % REFUSAL_MS_SPREAD
        if len(self._sends) >= SENDS_MAX or not wait_ms:
            return False
        self._push(SlowedSend(now_ms + wait_ms, number, link, replace(command, body=b""), "", refusal))
        return True

    def _push(self, send: SlowedSend) -> None:
        heappush(self._sends, send)
        self._bytes += len(send.command.body)

    def take_due(self, now_ms: int) -> list[SlowedSend]:
        """Return the sends whose time has come."""
        due: list[SlowedSend] = []
        while self._sends and self._sends[0].due_ms <= now_ms and len(due) < PER_TURN_MAX:
            send = heappop(self._sends)
            self._bytes -= len(send.command.body)
            if not send.refusal:
                self._ended(send)
            due.append(send)
        return due

    def _ended(self, send: SlowedSend) -> None:
        of_link = self._waiting[send.link.number]
        of_link[send.topic].count -= 1
        if not of_link[send.topic].count:
            del of_link[send.topic]
        if not of_link:
            del self._waiting[send.link.number]
            self.held.discard(send.link.number)

    def next_ms(self) -> int | None:
        """Return when the next send is due, monotonic ms; None: none waits."""
        return self._sends[0].due_ms if self._sends else None
