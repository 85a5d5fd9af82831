"""Applications of groups with a registry: the real client, which follows roles as it learns of them.

Beside the clients of `groupclients`, which ask every member at every moment, in a part of the seeds. What they promise
anywhere holds here as well (`producing`, `consuming`), every permission they used is judged (I6), and:

I14  once a group serves again and nothing else goes wrong, the client finds that out: no message is given up then
"""

from random import Random

from tandemq.boundary import Now
from tandemq.errors import TandemError
from tandemq.sim.checkers.model import SentMessage
from tandemq.sim.workload.application import Surroundings
from tandemq.sim.workload.client_consumer import ConsumingApplication
from tandemq.sim.workload.client_producer import ProducingApplication
from tandemq.sim.workload.group_clients import Heard
from tandemq.sim.world.world import SECOND, Violation

RETRY_MS = 10_000
FOUND_US = 10 * SECOND
"""Within this time after every group serves again a client has a message stored."""


class GroupProducing(ProducingApplication):
    """Sends through the real client to whoever takes it."""

    def __init__(
        self,
        around: Surroundings,
        name: str,
        ip: str,
        random: Random,
        heard: Heard,
        *,
        pace_ms: int,
        kinds: frozenset[str],
    ) -> None:
        """`heard` gets every answer."""
        super().__init__(around, name, ip, random, pace_ms=pace_ms, kinds=kinds, retry_ms=RETRY_MS, uses_late=False)
        self.witness.on_answer = heard
        self.calm_us: int | None = None
        """Told by the owner: since when all groups serve, and nothing goes wrong any more."""

    def has_stored_since(self, since_us: int) -> bool:
        """Whether it has sent a message after a time, and heard that it is stored."""
        return any(
            attempt.is_stored and attempt.sent_us >= since_us
            for made in reversed(self._maker.made[-100:])
            for attempt in made.attempts
        )

    def _judge_given_up(self, first: SentMessage, error: TandemError) -> None:
        if self.calm_us is not None and first.made_us >= self.calm_us:
            raise Violation("I14", f"{self.name} gave up {first.key}, and nothing was wrong any more: {error}")


class GroupConsuming(ConsumingApplication):
    """Consumes through the real client from whoever may be read."""

    def __init__(
        self,
        around: Surroundings,
        name: str,
        ip: str,
        random: Random,
        heard: Heard,
        *,
        group: str,
        orderly: bool,
        suspend_ms: int,
    ) -> None:
        """`heard` gets every answer."""
        super().__init__(around, name, ip, random, group=group, expression="*", orderly=orderly, suspend_ms=suspend_ms)
        self.witness.on_answer = heard

    def lost(self, _address: str, _now: Now) -> None:
        """Who serves next is no matter of its number: that everything arrives is judged in the end."""
