"""Topics that live for some seconds: created, filled with a few messages, deleted, at times created again.

    create ─► messages ─► delete, again until it is confirmed ─► (create again, empty) ─► the next topic

A topic whose outcome is unknown is left alone: a late request could create it once more. Messages name no default
topic, so that none creates a topic that is deleted. Names are not used twice, so that places in queues stay unique.
"""

from functools import partial
from random import Random

from lab.sim.checkers.model import CYCLE_PREFIX, TOPICS, Attempt, ExpectedState, SentMessage
from lab.sim.workload.group_clients import GroupProducer, MemberPicker, OnResponse
from lab.sim.workload.producer import SEND_TIMEOUT_MS, RawSendTarget, SimProducer
from lab.sim.workload.raw_client import Then
from lab.sim.world.world import World
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command

NAME = "pc"
SHARE = 0.2
"""Share of the seeds with such topics."""
PAUSE_MS = 2_000
LIFE_MS = 4_000
AGAIN = 0.3
"""Share of the deleted topics that are created again."""


class _TopicCycles(SimProducer):
    """Base class of both producers."""

    _number = 0

    def _step(self) -> None:
        target = self.place(TOPICS[0], set())
        if self.is_stopped or target is None:
            self.after(PAUSE_MS, self._step)
            return
        self._number += 1
        topic = f"{CYCLE_PREFIX}{self._number}"
        self._create(target, topic, partial(self._created, target, topic))

    def address_of(self, target: RawSendTarget) -> str:
        """Return the address of the broker that gets the next request."""
        return target.address

    def _create(self, target: RawSendTarget, topic: str, then: Then) -> None:
        fields = {
            "topic": topic,
            "defaultTopic": "",
            "readQueueNums": "1",
            "writeQueueNums": "1",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        command = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields)
        self.ask(self.address_of(target), command, SEND_TIMEOUT_MS, then)

    def _created(self, target: RawSendTarget, topic: str, answer: Command | None) -> None:
        if answer is None or answer.code != 0:
            self.after(PAUSE_MS, self._step)
            return
        for _ in range(self.random.randrange(1, 5)):
            self.attempt([self._make(topic, plain=True)], target.group, self.address_of(target), 0, set())
        self.after(self.random.randrange(100, LIFE_MS), partial(self._delete, target, topic))

    def _delete(self, target: RawSendTarget, topic: str) -> None:
        command = Command(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": topic})
        self.ask(self.address_of(target), command, SEND_TIMEOUT_MS, partial(self._deleted, target, topic))

    def _deleted(self, target: RawSendTarget, topic: str, answer: Command | None) -> None:
        if answer is None or answer.code != 0:
            self.after(500, partial(self._delete, target, topic))
            return
        self._world.fold("deleted", topic, answer.code)
        self._expected.deletions[target.group, topic] = self._world.now_us
        self.after(self.random.randrange(PAUSE_MS // 4, PAUSE_MS * 2), partial(self._go_on, target, topic))

    def _go_on(self, target: RawSendTarget, topic: str) -> None:
        if self.random.random() < AGAIN and not self.is_stopped:
            del self._expected.deletions[target.group, topic]
            self._create(target, topic, lambda _: None)
        self._step()

    def _command(self, messages: list[SentMessage], queue_id: int, *, waits: bool) -> Command:
        command = super()._command(messages, queue_id, waits=waits)
        command.fields["c" if "c" in command.fields else "defaultTopic"] = messages[0].topic
        return command

    def _answered(self, attempt: Attempt, _tried: set[str], answer: Command | None) -> None:
        self._record_response(attempt, answer)


class TopicCycles(_TopicCycles):
    """A raw producer that creates and deletes topics."""

    def __init__(self, world: World, expected: ExpectedState, random: Random, name_servers: tuple[str, ...]) -> None:
        """No topic exists."""
        super().__init__(world, expected, NAME, random, name_servers, pace_ms=PAUSE_MS, kinds=frozenset(), binary=False)


class GroupTopicCycles(_TopicCycles, GroupProducer):
    """The same for groups with a registry."""

    def __init__(
        self,
        world: World,
        expected: ExpectedState,
        random: Random,
        members: MemberPicker,
        on_response: OnResponse,
    ) -> None:
        """See `GroupProducer`."""
        GroupProducer.__init__(
            self, world, expected, NAME, random, members, on_response, pace_ms=PAUSE_MS, kinds=frozenset()
        )

    def address_of(self, target: RawSendTarget) -> str:
        """Return the address of the member that gets the next request."""
        return self._members.choose(target.group)
