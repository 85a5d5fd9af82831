"""Raw producers of timed messages: each message is due after its own delay, unless it is recalled.

Times are near and far; with the seed's short roll window those far away are stored again while they wait. Recalls are
sent until the message's time, and beyond.
"""

from dataclasses import replace
from functools import partial
from random import Random

from lab.sim.checkers.model import Attempt, ExpectedState, Recall
from lab.sim.workload.group_clients import GroupProducer, MemberPicker, OnResponse
from lab.sim.workload.producer import SEND_TIMEOUT_MS, SimProducer
from lab.sim.world.world import World
from tandemq.codec.remoting.recall_handle import decode_handle
from tandemq.config.settings import BrokerConfig
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command

NAME = "pt"
ROLL_WINDOW_S = 6
"""timerRollWindowSlot, so that messages are stored again."""
PACE_MS = 1_500
LONGEST_MS = ((1_500, 4), (6_000, 4), (15_000, 1))
"""Longest delays, with their weights."""
TIMED = 0.3
"""Share of the seeds with timed messages."""
RECALLED = 0.2
"""Share of the messages that are recalled."""


class _TimedSends(SimProducer):
    """Base class of both producers."""

    def _step(self) -> None:
        if self.is_stopped:
            return
        for _ in range(self.random.randrange(1, 4)):
            wanted = self._make(self._factory.topic(), plain=True)
            longest, weights = zip(*LONGEST_MS, strict=True)
            wanted.timer_ms = self.random.randrange(1, self.random.choices(longest, weights)[0])
            self._send([wanted], set())
        self.after(self.random.randrange(PACE_MS // 4, PACE_MS * 2), self._step)

    def _record_response(self, attempt: Attempt, answer: Command | None) -> None:
        super()._record_response(attempt, answer)
        handle = "" if answer is None else answer.fields.get("recallHandle", "")
        if handle and self.random.random() < RECALLED:
            delay_ms = self.random.randrange(attempt.messages[0].timer_ms + 500)
            self.after(delay_ms, partial(self._recall, attempt, handle))

    def _recall(self, attempt: Attempt, handle: str) -> None:
        if self.is_stopped:
            return
        message = attempt.messages[0]
        fields = {"producerGroup": f"P-{self.name}", "topic": message.topic, "recallHandle": handle}
        command = Command(RequestCode.RECALL_MESSAGE, fields=fields)
        recall = Recall(attempt.group, message.key, decode_handle(handle).time_ms - 1, self._world.now_us)
        self._expected.recall_requests.setdefault(message.key, self._world.now_us)
        address = self.place_of(attempt)
        self.ask(address, command, SEND_TIMEOUT_MS, partial(self._recalled, recall))

    def place_of(self, attempt: Attempt) -> str:
        """Return the address of the broker that recalls a message."""
        return attempt.address

    def _recalled(self, recall: Recall, answer: Command | None) -> None:
        if answer is not None and answer.code == 0:
            self._world.fold("recalled", recall.key, answer.code)
            self._expected.recalls.append(recall._replace(confirmed_us=self._world.now_us))


class TimedProducer(_TimedSends):
    """A raw producer of timed messages."""

    def __init__(
        self,
        world: World,
        expected: ExpectedState,
        random: Random,
        name_servers: tuple[str, ...],
        kinds: frozenset[str],
    ) -> None:
        """`kinds`: kinds of messages of the seed; none is sent in batches."""
        super().__init__(
            world,
            expected,
            NAME,
            random,
            name_servers,
            pace_ms=PACE_MS,
            kinds=kinds & {"oneway", "nowait"},
            binary=False,
        )


class GroupTimedProducer(_TimedSends, GroupProducer):
    """A raw producer of timed messages for groups with a registry."""

    def __init__(
        self,
        world: World,
        expected: ExpectedState,
        random: Random,
        members: MemberPicker,
        on_response: OnResponse,
        kinds: frozenset[str],
    ) -> None:
        """See `GroupProducer`. `kinds`: kinds of messages of the seed; none is sent in batches."""
        GroupProducer.__init__(
            self,
            world,
            expected,
            NAME,
            random,
            members,
            on_response,
            pace_ms=PACE_MS,
            kinds=kinds & {"oneway", "nowait"},
        )

    def place_of(self, attempt: Attempt) -> str:
        """Return the address of the member that is asked to recall a message."""
        return self._members.choose(attempt.group)


def with_timed(base: BrokerConfig) -> BrokerConfig:
    """Return the settings of brokers in a seed with timed messages."""
    return replace(base, timer_roll_window=ROLL_WINDOW_S, recall_enable=True)
