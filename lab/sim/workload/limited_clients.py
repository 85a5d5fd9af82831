"""Clients of limits: an administrator who changes them, one that sends too much, one that pulls and one that pops.

They ask masters only. What is beyond a limit is the business of `checkers.limits`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from random import Random

from lab.pops import handle_of
from lab.sim.checkers.limits import (
    FREE_TOPIC,
    LIMITED_TOPIC,
    POPPING_GROUP,
    PULL_MESSAGES_MAX,
    PULLING_GROUP,
    HeldMessage,
    LimitChecks,
    keys_of,
)
from lab.sim.checkers.model import Attempt, ExpectedState
from lab.sim.workload.producer import SEND_TIMEOUT_MS, SimProducer
from lab.sim.workload.raw_client import RawClient
from lab.sim.workload.stepping_client import Ask, SteppingClient, Steps
from lab.sim.world.access import BUSY
from lab.sim.world.world import MS, World
from tandemq.codec.record.record import decode_message, parse_record
from tandemq.codec.remoting.fastjson import dumps
from tandemq.codec.remoting.pops import PopQuery, ack_request, pop_request
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import StoredMessage
from tandemq.model.pop import Handle
from tandemq.model.quota import GROUP, TOPIC, USER, Quota

PAUSE_MS = (2_500, 8_000)
BURST_MS = (300, 2_500)
BURSTS = (1, 3, 8)
LONG_PAUSE_MS = 9_000
ASK_MS = 2_500
POLL_MS = 1_000
INVISIBLE_MS = 5_000
MasterOf = Callable[[str], str]


class LimitAdministrator(SteppingClient):
    """Sets limits at each group by itself; `is_stopped` ends it after the present change."""

    def __init__(
        self,
        world: World,
        checks: LimitChecks,
        groups: list[str],
        master_of: MasterOf,
        random: Random,
        *,
        has_users: bool,
    ) -> None:
        """`master_of`: returns the address of a group's master; `has_users`: whether users may have limits."""
        super().__init__("limit-admin", random, master_of)
        self._world = world
        self._checks = checks
        self._groups = sorted(groups)
        self._kinds = [self._of_topic, self._of_pulls, self._of_pops, *([self._of_user] if has_users else [])]
        self._calm_us: dict[str, int] = {}
        """Until when a group's limits are not changed."""
        self.on_sent: Callable[[str], None] = lambda _: None
        """Called with the group whose master is sent a change."""
        self.on_confirmed: Callable[[str], None] = lambda _: None
        """Called with the group whose master confirmed it."""

    def work(self) -> Steps:
        """See `SteppingClient`."""
        for group in self._groups:
            yield from self._change(group, [draw() for draw in self._kinds])
        while not self.is_stopped:
            self.is_idle = True
            yield self.random.randrange(*PAUSE_MS)
            self.is_idle = False
            group = self.random.choice(self._groups)
            if self._world.now_us >= self._calm_us.get(group, 0) and not self.is_stopped:
                yield from self._change(group, [self.random.choice(self._kinds)()])

    def _change(self, group: str, quotas: list[Quota]) -> Steps:
        for quota in quotas:
            self._checks.changing(group, quota)
        ways: set[tuple[str, int]] = set()
        body = dumps({"quotas": quotas})
        while True:
            self.on_sent(group)
            number, address = self._checks.setting(group), self._master_of(group)
            answer = yield Ask(group, Command(Code.TANDEM_SET_QUOTAS, body=body))
            ways.add((address, self.link))
            if answer is not None:
                self._checks.was_set(group, number)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                lingers = len(ways) > 1
                self._world.fold("limits", group, str(quotas))
                self._checks.confirmed(group, quotas, lingers=lingers)
                if lingers:
                    self._calm_us[group] = self._world.now_us + 20_000 * MS
                self.on_confirmed(group)
                return
            yield self.random.randrange(100, 700)

    # What is set.

    def _of_topic(self) -> Quota:
        draw, slows = self.random.random(), self.random.random() < 0.4
        if draw < 0.15:
            return Quota(TOPIC, LIMITED_TOPIC)
        if draw < 0.35:
            return Quota(TOPIC, LIMITED_TOPIC, bytes_per_second=self.random.choice((800, 2_000)), slows=slows)
        return Quota(TOPIC, LIMITED_TOPIC, messages_per_second=self.random.choice((1, 2, 4)), slows=slows)

    def _of_user(self) -> Quota:
        slows = self.random.random() < 0.3
        return Quota(USER, BUSY.access_key, messages_per_second=self.random.choice((0, 2, 3, 5)), slows=slows)

    def _of_pulls(self) -> Quota:
        return Quota(GROUP, PULLING_GROUP, messages_per_second=self.random.choice((2, 4, 8)))

    def _of_pops(self) -> Quota:
        return Quota(GROUP, POPPING_GROUP, in_flight=self.random.choice((2, 4, 7)))


class SendingTooMuch(SimProducer):
    """Sends bursts of messages, and takes refusals for an answer."""

    def __init__(
        self,
        world: World,
        expected: ExpectedState,
        checks: LimitChecks,
        random: Random,
        groups: list[str],
        master_of: MasterOf,
        *,
        has_user: bool,
    ) -> None:
        """`has_user`: whether it signs as `BUSY`."""
        super().__init__(world, expected, "l0", random, (), pace_ms=1_000, kinds=frozenset(), binary=False)
        self._checks = checks
        self._groups = sorted(groups)
        self._master_of = master_of
        self._has_user = has_user

    def begin(self) -> None:
        """Begin to send."""
        self.after(400, self._step)

    def _step(self) -> None:
        if self.is_stopped:
            return
        group = self.random.choice(self._groups)
        address = self._master_of(group)
        for _ in range(self.random.choice(BURSTS)):
            topic = FREE_TOPIC if self._has_user and self.random.random() < 0.25 else LIMITED_TOPIC
            self._send_to(group, address, topic)
        is_calm = self.random.random() < 0.06
        self.after(LONG_PAUSE_MS if is_calm else self.random.randrange(*BURST_MS), self._step)

    def _send_to(self, group: str, address: str, topic: str) -> None:
        messages = [self._make(topic, plain=True) for _ in range(self.random.choice((1, 1, 1, 1, 3)))]
        expected = self._expected
        attempt = Attempt(len(expected.attempts), messages, group, 0, self._world.now_us, address=address)
        at, calm_us = self._checks.serving(address), self._checks.sending(attempt)
        command = self._command(messages, 0, waits=True)

        def answered(answer: Command | None) -> None:
            if answer is None:
                return
            self._world.fold("limited", attempt.number, answer.code)
            expected.record_response(attempt, answer.code, answer.fields, self._world.now_us)
            keys = keys_of(topic, has_user=self._has_user)
            self._checks.answered(attempt, at, keys, calm_us, answer.remark or "")

        attempt.link = self.name, self.ask(address, command, SEND_TIMEOUT_MS, answered)
        expected.record_attempt(attempt)


class _Reader(RawClient):
    """Base class of both readers: one request at a time to each group."""

    def __init__(
        self, world: World, checks: LimitChecks, name: str, random: Random, groups: list[str], master_of: MasterOf
    ) -> None:
        """`master_of`: returns the address of a group's master at this moment."""
        super().__init__(name, random, ())
        self._world = world
        self._checks = checks
        self._groups = sorted(groups)
        self._master_of = master_of

    def begin(self) -> None:
        """Begin to read."""
        for group in self._groups:
            self.after(700, partial(self._read, group))

    def _read(self, group: str) -> None:
        raise NotImplementedError


class PullingTooMuch(_Reader):
    """Pulls all messages of the limited topic, again and again."""

    def _read(self, group: str, offset: int = 0) -> None:
        fields = {
            "consumerGroup": PULLING_GROUP,
            "topic": LIMITED_TOPIC,
            "queueId": "0",
            "queueOffset": str(offset),
            "maxMsgNums": str(PULL_MESSAGES_MAX),
            "sysFlag": "6",
            "commitOffset": "0",
            "suspendTimeoutMillis": str(POLL_MS),
            "subVersion": "1",
            "expressionType": "TAG",
            "subscription": "*",
        }
        address, sent_us = self._master_of(group), self._world.now_us
        at = self._checks.serving(address)

        def answered(answer: Command | None) -> None:
            following = 0
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                count = sum(1 for _ in messages_in(answer.body))
                following = offset + count
                self._checks.given(at, group, sent_us, count)
            elif answer is not None and answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                following = int(answer.fields["nextBeginOffset"])
            self.after(self.random.randrange(20, 300), partial(self._read, group, following))

        self.ask(address, Command(Code.PULL_MESSAGE, fields=fields), POLL_MS + ASK_MS, answered)


class PoppingTooMuch(_Reader):
    """Pops messages of the limited topic, and acknowledges half of them after a while."""

    def _read(self, group: str) -> None:
        most = self.random.choice((1, 4, 16))
        query = PopQuery(POPPING_GROUP, LIMITED_TOPIC, most, INVISIBLE_MS, "*", "TAG", starts_at_end=False)
        address, sent_us = self._master_of(group), self._world.now_us
        at = self._checks.serving(address)

        def answered(answer: Command | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                until_us = sent_us + INVISIBLE_MS * 980
                handles = [handle_of(message, answer.fields, group) for message in messages_in(answer.body)]
                held = [HeldMessage(str(handle), at, sent_us, until_us) for handle in handles]
                self._checks.holding(group, held)
                for handle, message in zip(handles, held, strict=True):
                    if self.random.random() < 0.5:
                        delay_ms = self.random.choice((1, 500, 2_000))
                        self.after(delay_ms, partial(self._acknowledge, address, handle, message))
            self.after(self.random.randrange(20, 300), partial(self._read, group))

        self.ask(address, pop_request(query, POLL_MS), POLL_MS + ASK_MS, answered)

    def _acknowledge(self, address: str, handle: Handle, held: HeldMessage) -> None:
        held.is_open = False
        self.ask(address, ack_request(handle, POPPING_GROUP, LIMITED_TOPIC), ASK_MS, lambda _: None)


def messages_in(body: bytes) -> Iterator[StoredMessage]:
    """Yield the messages of a response, up to one that has a bit flipped at rest."""
    position = 0
    while position < len(body):
        record = parse_record(body, position, len(body))
        if isinstance(record, str):
            return
        try:
            yield decode_message(body, position, len(body))
        except ProtocolError:
            return
        position += record.size
