"""Messages of the simulated producers: small and large, with tags, delayed, to be rejected by their consumer.

Every body begins with its producer's name and a number, so that a message is recognised by its bytes, whatever unique
key a client gave it.
"""

from random import Random

from lab.sim.checkers.model import TOPICS, SentMessage
from lab.sim.world.world import World

TAGS = ("A", "B", "C", "")
LATE_US = 25_000_000
"""Time from which messages go to the second topic too."""
BATCH_COUNTS = (1, 2, 4, 8, 12)
"""Numbers of messages that a producer makes at once."""


class MessageFactory:
    """Makes the messages of one producer."""

    def __init__(
        self, world: World, name: str, random: Random, kinds: frozenset[str], *, uses_late: bool = True
    ) -> None:
        """`kinds`: kinds of messages beside plain ones. `uses_late`: whether some go to the second topic."""
        self._world = world
        self._name = name
        self._random = random
        self.kinds = kinds
        self._uses_late = uses_late
        self.made: list[SentMessage] = []

    def topic(self) -> str:
        """Return the topic of the next message."""
        is_late = self._uses_late and self._world.now_us > LATE_US and self._random.random() < 0.2
        return TOPICS[1] if is_late else TOPICS[0]

    def message(self, topic: str, *, plain: bool = False) -> SentMessage:
        """Return a new message without a unique key."""
        random = self._random
        number = len(self.made) + 1
        size = random.choice((20, 60, 200, 700)) + random.randrange(40)
        body = f"{self._name}:{number}:".encode() + random.randbytes(size)
        rejections = random.randrange(1, 4) if "reject" in self.kinds and random.random() < 0.04 else 0
        delay = random.randrange(1, 4) if "delay" in self.kinds and not rejections and random.random() < 0.08 else 0
        if plain:
            delay = rejections = 0
        wanted = SentMessage(
            "",
            self._name,
            topic,
            body,
            random.choice(TAGS),
            f"k{number % 7} {self._name}",
            delay,
            rejections,
            self._world.now_us,
        )
        self.made.append(wanted)
        return wanted

    def by_body(self, body: bytes) -> SentMessage | None:
        """Return the message with this body; None if there is none."""
        name, _, rest = body.partition(b":")
        number = rest.partition(b":")[0]
        if name != self._name.encode() or not number.isdigit() or not 0 < int(number) <= len(self.made):
            return None
        found = self.made[int(number) - 1]
        return found if found.body == body else None
