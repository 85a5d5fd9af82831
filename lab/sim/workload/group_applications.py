"""Applications on the real client in groups with a registry, which detect role changes as production clients do.

They run in some seeds beside the raw clients of `group_clients`, which ask every member at every moment. The checks of
`client_producer` and `client_consumer` hold, every permission they used is checked (I6), and:

I14  once a group is active again and no fault remains, the client recovers: no message fails then
"""

from random import Random

from lab.sim.checkers.model import SentMessage
from lab.sim.workload.application import ApplicationContext
from lab.sim.workload.client_consumer import ConsumingApplication
from lab.sim.workload.client_producer import ProducingApplication
from lab.sim.workload.group_clients import OnResponse
from lab.sim.world.world import SECOND, Violation
from tandemq.boundary import Now
from tandemq.errors import TandemError

RETRY_MS = 10_000
FOUND_US = 10 * SECOND
"""Time limit for a client to have a message stored after every group is active again."""


class GroupProducing(ProducingApplication):
    """Sends through the real client."""

    def __init__(
        self,
        context: ApplicationContext,
        name: str,
        ip: str,
        random: Random,
        on_response: OnResponse,
        *,
        pace_ms: int,
        kinds: frozenset[str],
    ) -> None:
        """`on_response` is called with every response."""
        super().__init__(context, name, ip, random, pace_ms=pace_ms, kinds=kinds, retry_ms=RETRY_MS, uses_late=False)
        self.monitor.on_answer = on_response
        self.calm_us: int | None = None
        """Time since which all groups are active and no fault remains; set by the owner."""

    def has_stored_since(self, since_us: int) -> bool:
        """Return whether a message sent after a time was reported as stored."""
        return any(
            attempt.is_stored and attempt.sent_us >= since_us
            for made in reversed(self._factory.made[-100:])
            for attempt in made.attempts
        )

    def _judge_given_up(self, first: SentMessage, error: TandemError) -> None:
        if self.calm_us is not None and first.made_us >= self.calm_us:
            raise Violation("I14", f"{self.name} gave up {first.key}, and nothing was wrong any more: {error}")


class GroupConsuming(ConsumingApplication):
    """Consumes through the real client."""

    def __init__(
        self,
        context: ApplicationContext,
        name: str,
        ip: str,
        random: Random,
        on_response: OnResponse,
        *,
        group: str,
        orderly: bool,
        suspend_ms: int,
    ) -> None:
        """`on_response` is called with every response."""
        super().__init__(context, name, ip, random, group=group, expression="*", orderly=orderly, suspend_ms=suspend_ms)
        self.monitor.on_answer = on_response

    def lost(self, _address: str, _now: Now) -> None:
        """Ignore the loss of a connection, as roles change; the end of the run checks that everything arrives."""
