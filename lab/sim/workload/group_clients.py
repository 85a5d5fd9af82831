"""Raw clients of groups with a registry that ask every member, also those that should refuse.

They know all members' addresses and use no routes: the member that accepted the last request is asked first, and the
next one after a refusal or a timeout. So every permission is tested at every moment. Each response is passed to the
checkers with the time of its request.
"""

from collections.abc import Callable
from random import Random

from lab.sim.checkers.model import STORED, TOPICS, BrokerQueue, ExpectedState
from lab.sim.workload.consumer import Consumer, QueueCursor
from lab.sim.workload.producer import RawSendTarget, SimProducer
from lab.sim.workload.raw_client import Then
from lab.sim.world.world import World
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.topic import retry_topic

QUEUES = {TOPICS[0]: 3, TOPICS[1]: 1}
OnResponse = Callable[[str, Command, int, Command], None]
"""Called with the address, the request, its time in µs, and the response."""


class MemberPicker:
    """Choice of the member to ask in each group, for one client."""

    def __init__(self, random: Random, addresses: dict[str, list[str]]) -> None:
        """`addresses`: members by group."""
        self._random = random
        self.addresses = addresses
        self._best = {name: random.choice(found) for name, found in addresses.items()}

    def choose(self, group: str) -> str:
        """Return an address: mostly the one of the member that accepted the last request."""
        return self._best[group] if self._random.random() < 0.93 else self._random.choice(self.addresses[group])

    def bad(self, group: str, address: str) -> None:
        """Note a refusal or a timeout: the next member is asked first."""
        if self._best[group] == address:
            found = self.addresses[group]
            self._best[group] = found[(found.index(address) + 1) % len(found)]

    def good(self, group: str, address: str) -> None:
        """Note an accepted request."""
        self._best[group] = address


class GroupProducer(SimProducer):
    """Sends to the member that accepts messages."""

    def __init__(
        self,
        world: World,
        expected: ExpectedState,
        name: str,
        random: Random,
        members: MemberPicker,
        on_response: OnResponse,
        *,
        pace_ms: int,
        kinds: frozenset[str],
    ) -> None:
        """`on_response` is called with every response."""
        super().__init__(world, expected, name, random, (), pace_ms=pace_ms, kinds=kinds, binary=False)
        self._members = members
        self._on_response = on_response

    def begin(self) -> None:
        """Start to send."""
        self.after(300, self._step)

    def place(self, topic: str, tried: set[str]) -> RawSendTarget | None:
        """See `SimProducer`."""
        groups = sorted(self._members.addresses)
        group = self.random.choice([name for name in groups if name not in tried] or groups)
        return RawSendTarget(group, self._members.choose(group), QUEUES[topic])

    def ask(self, address: str, command: Command, timeout_ms: int, then: Then) -> int:
        """Send a request; its response is passed to the checkers too."""
        sent_us = self._world.now_us

        def answered(answer: Command | None) -> None:
            self._note(address, answer)
            if answer is not None:
                self._on_response(address, command, sent_us, answer)
            then(answer)

        return super().ask(address, command, timeout_ms, answered)

    def _note(self, address: str, answer: Command | None) -> None:
        group = next(name for name, found in self._members.addresses.items() if address in found)
        if answer is not None and answer.code in STORED:
            self._members.good(group, address)
        else:
            self._members.bad(group, address)


class GroupConsumer(Consumer):
    """Reads from the member that permits it, and commits there."""

    def __init__(
        self,
        world: World,
        expected: ExpectedState,
        name: str,
        group: str,
        random: Random,
        members: MemberPicker,
        on_response: OnResponse,
        *,
        suspend_ms: int,
    ) -> None:
        """`on_response` is called with every response."""
        super().__init__(world, expected, name, group, "*", random, (), binary=False, suspend_ms=suspend_ms)
        self._sources = members
        self._on_response = on_response

    def begin(self) -> None:
        """Send heartbeats, assign queues."""
        self.after(200, self._beat)
        self.after(400, self._balance)
        self.after(1_500, self._commit_all)

    def _addresses(self) -> list[str]:
        return [address for found in self._sources.addresses.values() for address in found]

    def _queues(self) -> list[BrokerQueue]:
        return [
            BrokerQueue(group, topic, queue_id)
            for topic, count in (*QUEUES.items(), (retry_topic(self.group), 1))
            for group in self._sources.addresses
            for queue_id in range(count)
        ]

    def _member(self, cursor: QueueCursor, *, master_only: bool = False) -> tuple[int, str] | None:  # noqa: ARG002
        return 0, self._sources.choose(cursor.group)

    def ask(self, address: str, command: Command, timeout_ms: int, then: Then) -> int:
        """Send a request; its response is passed to the checkers too. After a refusal the next member is asked."""
        sent_us = self._world.now_us

        def answered(answer: Command | None) -> None:
            if command.code != Code.HEART_BEAT:
                self._note(address, command, answer)
            if answer is not None:
                self._on_response(address, command, sent_us, answer)
            then(answer)

        return super().ask(address, command, timeout_ms, answered)

    def _note(self, address: str, command: Command, answer: Command | None) -> None:
        group = next(name for name, found in self._sources.addresses.items() if address in found)
        if answer is None or answer.code == ResponseCode.NO_PERMISSION:
            self._sources.bad(group, address)
        elif command.code in (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE) and answer.code != ResponseCode.SYSTEM_ERROR:
            self._sources.good(group, address)
