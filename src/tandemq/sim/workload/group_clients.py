"""Clients of groups with a registry that ask every member, also those that should refuse: frames, as in `raw_client`.

They know all members' addresses and follow no route: whoever answered last is asked first, and the next one when he
refuses or is silent. So every permission is put to the test at every moment. Each answer goes to the checkers with
the moment at which it was asked for.
"""

from collections.abc import Callable
from random import Random

from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.topic import retry_topic
from tandemq.sim.checkers.model import STORED, Shadow
from tandemq.sim.workload.consumer import Consumer, Lane
from tandemq.sim.workload.messages import TOPICS
from tandemq.sim.workload.producer import SimProducer
from tandemq.sim.workload.raw_client import Then
from tandemq.sim.world.world import World

QUEUES = {TOPICS[0]: 3, TOPICS[1]: 1}
Heard = Callable[[str, Command, int, Command], None]
"""Address, request, when it was asked (µs), answer."""


class Members:
    """Whom to ask in each group, as one client sees it."""

    def __init__(self, random: Random, addresses: dict[str, list[str]]) -> None:
        """`addresses` by group."""
        self._random = random
        self.addresses = addresses
        self._best = {name: random.choice(found) for name, found in addresses.items()}

    def choose(self, group: str) -> str:
        """An address: nearly always that of whoever was good last."""
        return self._best[group] if self._random.random() < 0.93 else self._random.choice(self.addresses[group])

    def bad(self, group: str, address: str) -> None:
        """He refused, or was silent: another one next."""
        if self._best[group] == address:
            found = self.addresses[group]
            self._best[group] = found[(found.index(address) + 1) % len(found)]

    def good(self, group: str, address: str) -> None:
        """He did what was asked."""
        self._best[group] = address


class GroupProducer(SimProducer):
    """Sends to whoever takes it."""

    def __init__(
        self,
        world: World,
        shadow: Shadow,
        name: str,
        random: Random,
        members: Members,
        heard: Heard,
        *,
        pace_ms: int,
        kinds: frozenset[str],
    ) -> None:
        """`heard` gets every answer."""
        super().__init__(world, shadow, name, random, (), pace_ms=pace_ms, kinds=kinds, binary=False)
        self._members = members
        self._heard = heard

    def begin(self) -> None:
        """Send."""
        self.after(300, self._step)

    def place(self, topic: str, tried: set[str]) -> tuple[str, str, int] | None:
        """See `SimProducer`."""
        groups = sorted(self._members.addresses)
        group = self.random.choice([name for name in groups if name not in tried] or groups)
        return group, self._members.choose(group), QUEUES[topic]

    def ask(self, address: str, command: Command, timeout_ms: int, then: Then) -> int:
        """Send a request; the checkers hear of its answer too."""
        sent_us = self._world.now_us

        def answered(answer: Command | None) -> None:
            self._note(address, answer)
            if answer is not None:
                self._heard(address, command, sent_us, answer)
            then(answer)

        return super().ask(address, command, timeout_ms, answered)

    def _note(self, address: str, answer: Command | None) -> None:
        group = next(name for name, found in self._members.addresses.items() if address in found)
        if answer is not None and answer.code in STORED:
            self._members.good(group, address)
        else:
            self._members.bad(group, address)


class GroupConsumer(Consumer):
    """Reads from whoever lets it, and tells its offsets there."""

    def __init__(
        self,
        world: World,
        shadow: Shadow,
        name: str,
        group: str,
        random: Random,
        members: Members,
        heard: Heard,
        *,
        suspend_ms: int,
    ) -> None:
        """`heard` gets every answer."""
        super().__init__(world, shadow, name, group, "*", random, (), binary=False, suspend_ms=suspend_ms)
        self._sources = members
        self._heard = heard

    def begin(self) -> None:
        """Introduce ourselves, share the queues."""
        self.after(200, self._beat)
        self.after(400, self._balance)
        self.after(1_500, self._commit_all)

    def _addresses(self) -> list[str]:
        return [address for found in self._sources.addresses.values() for address in found]

    def _queues(self) -> list[tuple[str, str, int]]:
        return [
            (topic, group, queue_id)
            for topic, count in (*QUEUES.items(), (retry_topic(self.group), 1))
            for group in self._sources.addresses
            for queue_id in range(count)
        ]

    def _member(self, lane: Lane, *, master_only: bool = False) -> tuple[int, str] | None:  # noqa: ARG002
        return 0, self._sources.choose(lane.group)

    def ask(self, address: str, command: Command, timeout_ms: int, then: Then) -> int:
        """Send a request; the checkers hear of its answer too. Whoever refuses is not asked next."""
        sent_us = self._world.now_us

        def answered(answer: Command | None) -> None:
            if command.code != Code.HEART_BEAT:
                self._note(address, command, answer)
            if answer is not None:
                self._heard(address, command, sent_us, answer)
            then(answer)

        return super().ask(address, command, timeout_ms, answered)

    def _note(self, address: str, command: Command, answer: Command | None) -> None:
        group = next(name for name, found in self._sources.addresses.items() if address in found)
        if answer is None or answer.code == ResponseCode.NO_PERMISSION:
            self._sources.bad(group, address)
        elif command.code in (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE) and answer.code != ResponseCode.SYSTEM_ERROR:
            self._sources.good(group, address)
