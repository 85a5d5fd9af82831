"""Pops: messages of any queue for a group, which are invisible to it for a time.

    checked ──► queues read from the group's offsets ──► checkpoints in the log ──► offsets moved, response
                     └► nothing there: waits until messages arrive or its time is over

Source: docs/reference/pop.md; RocketMQ PopMessageProcessor, PeekMessageProcessor, NotificationProcessor.
"""

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from tandemq.boundary import Now, Turn
from tandemq.broker.features.pop.in_flight import InFlight
from tandemq.broker.features.pop.orders import Orders
from tandemq.broker.features.pop.reader import PopReader
from tandemq.broker.features.pop.revive import Revival
from tandemq.broker.features.pop.revive_queue import ReviveQueues
from tandemq.broker.features.pop.waiting import Place, WaitingRequest, WaitingRequests
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pulls import PullRefused, Pulls
from tandemq.broker.kernel.quotas import Quotas
from tandemq.broker.kernel.read_checks import ReadChecks
from tandemq.broker.kernel.serving import Right, Serving
from tandemq.broker.state.topics import Topic
from tandemq.codec.remoting.frame import encode_command
from tandemq.codec.remoting.requests import NotificationFields, PollingInfoFields, PopFields, is_true, read_fields
from tandemq.config.settings import BrokerConfig
from tandemq.engine import WAITS_UNCHANGED, Budget
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.pop import (
    ANY_QUEUE,
    MESSAGES_MAX,
    ORDERED_QUEUE,
    is_poppable,
    message_offset_info,
    start_offset_info,
)

log = logging.getLogger(__name__)
LATE_MS = 500
"""How long after its own time-out a pop that arrives is not answered with messages any more."""
EARLY_MS = 50
"""How long before its time-out a waiting pop is answered."""
POLL_MS_MAX = 120_000
QUEUES_PER_TURN = 1_024
"""Number of queues that a turn reads for waiting requests; the last one may exceed it."""
TIME_OUTS_PER_TURN = 64
"""Maximum number of waiting requests that a turn answers without messages."""
REFUSED_PER_TURN = 512
"""Maximum number of waiting requests that a turn refuses, once this broker may not answer them any more."""
READ_MS = 2_000
"""Time that a request waits for messages which are read from the device, if it would not wait otherwise."""
ATTEMPT_ID_CHARACTERS = 128
"""Characters of the id of an ordered pop that are kept."""


@dataclass(slots=True)
class _Round:
    """The waiting requests for a topic, as they are tried one after the other, perhaps over several turns."""

    is_wanted: bool = True
    """Whether another round follows: messages came since this one began."""
    seen_end: int = 0
    """Log offset up to which consumers could see messages when it began."""
    places: list[Place] = field(default_factory=list)
    """Groups and queues whose requests are to be tried."""
    requests: list[WaitingRequest] = field(default_factory=list)
    """Those of the present group and queue, the next one last."""

    @property
    def is_over(self) -> bool:
        """Whether all requests have been tried."""
        return not self.places and not self.requests


class PopProcessor(Feature):
    """The pops of one broker."""

    def __init__(
        self, kernel: Kernel, queues: ReviveQueues, revival: Revival, orders: Orders, in_flight: InFlight
    ) -> None:
        """Begin without pops. `queues`: the revive topic."""
        self._quotas = kernel.features.find(Quotas)
        self._in_flight = in_flight
        self._limited: dict[str, int] = {}
        """Topics of requests that wait because of a limit of their group, and when to try them (monotonic ms)."""
        self._reader = PopReader(kernel, queues, orders, in_flight, lambda topic: self.wake([topic]))
        self._queues = queues
        self._orders = orders
        self._revival = revival
        self._store = kernel.store
        self._topics = kernel.topics
        self._puts = kernel.puts
        self._turn = kernel.turn
        self._current = kernel.current
        self._pulls = kernel.features.find(Pulls)
        self._checks = ReadChecks(kernel)
        self.waiting = WaitingRequests()
        self._next_revive_queue = count(kernel.random.randrange(queues.count))
        self._touched: dict[str, None] = {}
        """Topics with waiting requests that get messages in this turn."""
        self._rounds: dict[str, _Round] = {}
        """By topic whose waiting requests are to be tried."""
        self._tried_end = -1
        """Log offset up to which consumers could see messages when they were tried last."""
        self._crowded: dict[int, dict[str, None]] = {}
        """Topics of requests that could not be answered because their connection had no room, by connection."""
        self._refused: deque[WaitingRequest] = deque()
        """Requests to be refused, of which some may not wait any more."""
        self._why = ""
        """Why they are refused."""
        self.popped = 0
        """Messages taken since the start."""
        revival.notify_with(self._came_back)

    def adopt_config(self, config: BrokerConfig) -> None:
        """See `Feature`."""
        self._checks.adopt_config(config)

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {
            Code.POP_MESSAGE: Request(self._on_pop, Right.POP),
            Code.PEEK_MESSAGE: Request(self._on_peek, Right.READ),
            Code.NOTIFICATION: Request(self._on_notification, Right.READ),
            Code.POLLING_INFO: Request(self._on_polling_info),
        }

    # Requests.

    def _on_pop(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(PopFields, command.fields)
        try:
            request = self._checked_pop(link, command, fields, now)
        except PullRefused as refused:
            return command.answer(refused.code, remark=refused.remark, fields=_info())
        if self._revival.is_loaded and self._answer(request, now):
            return None
        if not self._wait(request, now):
            code = ResponseCode.POLLING_FULL if request.deadline_ms > now.mono_ms else ResponseCode.POLLING_TIMEOUT
            return command.answer(code, remark=code.name, fields=_info())
        if not self._revival.is_loaded:
            self.wake([request.topic])  # it is tried once the checkpoints are read
        return None

    def _checked_pop(self, link: Link, command: Command, fields: PopFields, now: Now) -> WaitingRequest:
        """Return a pop that may be answered.

        Raises:
            PullRefused: it may not.
        """
        config, checks = self._current.config, self._checks
        if fields.born_time > 0 and now.wall_ms - fields.born_time - fields.poll_time > LATE_MS:
            raise PullRefused(ResponseCode.POLLING_TIMEOUT, "the request arrived too late")
        checks.check_readable()
        if not 0 < fields.max_msg_nums <= MESSAGES_MAX:
            raise PullRefused(
                ResponseCode.INVALID_PARAMETER, f"maxMsgNums={fields.max_msg_nums}: 1 to {MESSAGES_MAX} are allowed"
            )
        if not 0 <= fields.invisible_time <= config.timer_delay_max_s * 1000:
            raise PullRefused(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime={fields.invisible_time}: 0 to {config.timer_delay_max_s * 1000} ms are allowed",
            )
        if not config.timer_enable:
            raise PullRefused(
                ResponseCode.SYSTEM_ERROR, "POP needs timed messages, timerWheelEnable is false on this broker"
            )
        self._check_place(fields.topic, fields.consumer_group, fields.queue_id, now)
        if self._puts.refusal is not None:
            raise PullRefused(*self._puts.refusal)
        return WaitingRequest(
            link.number,
            command.head(),
            fields.topic,
            fields.consumer_group,
            fields.queue_id,
            now.mono_ms + _wait_ms(fields.poll_time, fields.born_time, now),
            checks.selected_by(fields.exp or "*", fields.exp_type),
            most=fields.max_msg_nums,
            invisible_ms=fields.invisible_time,
            starts_at_end=fields.init_mode != 0,
            order=is_true(fields.order),
            attempt_id=(fields.attempt_id or "")[:ATTEMPT_ID_CHARACTERS],
        )

    def _check_place(self, topic: str, group: str, queue_id: int, now: Now) -> Topic:
        """Return a topic that a group may pop.

        Raises:
            PullRefused: it may not.
        """
        checks = self._checks
        if not is_poppable(topic):
            raise PullRefused(
                ResponseCode.INVALID_PARAMETER, f"topic[{topic[:255]}]: pops read retry topics by themselves"
            )
        found = checks.topic(topic)
        if not ANY_QUEUE <= queue_id < found.config.read_queue_nums:
            raise PullRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] has {found.config.read_queue_nums}",
            )
        checks.group(group, now.wall_ms)
        checks.check_allowed(group, topic)
        return found

    def _on_peek(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(PopFields, command.fields)
        try:
            self._checks.check_readable()
            self._check_place(fields.topic, fields.consumer_group, fields.queue_id, now)
        except PullRefused as refused:
            return command.answer(refused.code, remark=refused.remark, fields=_info())
        most = max(1, min(fields.max_msg_nums, MESSAGES_MAX))
        place = fields.topic, fields.consumer_group, fields.queue_id
        request = WaitingRequest(link.number, command.head(), *place, 0, most=most, is_peek=True)
        answer = self._peek(request, now)
        return None if request.reads and not answer.body and self._wait(request, now) else answer

    def _peek(self, request: WaitingRequest, now: Now) -> Command:
        command, found = request.command, self._reader.read(request, None, request.most, now)
        fields = _info(rest=found.rest)
        if not found.count:
            return command.answer(ResponseCode.PULL_NOT_FOUND, remark="NO_MESSAGE_IN_QUEUE", fields=fields)
        body = b"".join(bytes(piece) for piece in found.buffers)
        return command.answer(ResponseCode.SUCCESS, remark="FOUND", fields=fields, body=body)

    def _on_notification(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(NotificationFields, command.fields)
        try:
            self._checks.check_readable()
            self._check_place(fields.topic, fields.consumer_group, fields.queue_id, now)
            selector = self._checks.selected_by(fields.exp or "*", fields.exp_type)
        except PullRefused as refused:
            return command.answer(refused.code, remark=refused.remark)
        deadline_ms = now.mono_ms + _wait_ms(fields.poll_time, fields.born_time, now)
        place = fields.topic, fields.consumer_group, fields.queue_id
        request = WaitingRequest(
            link.number,
            command.head(),
            *place,
            deadline_ms,
            selector,
            order=is_true(fields.order),
            attempt_id=(fields.attempt_id or "")[:ATTEMPT_ID_CHARACTERS],
            is_notification=True,
        )
        if self._answer(request, now):
            return None
        if self._wait(request, now):
            return None
        is_full = request.deadline_ms > now.mono_ms
        return command.answer(ResponseCode.SUCCESS, fields=_notice(has_messages=False, is_full=is_full))

    def _on_polling_info(self, _link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(PollingInfoFields, command.fields)
        try:
            self._check_place(fields.topic, fields.consumer_group, fields.queue_id, now)
        except PullRefused as refused:
            return command.answer(refused.code, remark=refused.remark)
        number = self.waiting.count(fields.topic, fields.consumer_group, fields.queue_id)
        return command.answer(ResponseCode.SUCCESS, fields={"pollingNum": str(number)})

    def _wait(self, request: WaitingRequest, now: Now) -> bool:
        config = self._current.config
        request.asked_ms = request.deadline_ms
        if request.reads:
            request.deadline_ms = max(request.deadline_ms, now.mono_ms + READ_MS)
        if request.deadline_ms <= now.mono_ms:
            return False
        return self.waiting.add(request, most=config.waiting_pops_max, most_of_place=config.waiting_pops_of_queue_max)

    # Answers.

    def _answer(self, request: WaitingRequest, now: Now) -> bool:
        """Answer a request if there are messages for it; return whether it was answered."""
        most = self._allowed(request, now)
        if not most or not self._has_room(request):
            return False
        if request.is_notification:
            return self._notify(request, now)
        if request.is_peek:
            return self._show(request, now)
        revive_queue = next(self._next_revive_queue) % self._queues.count
        found = self._reader.read(request, revive_queue, min(most, request.most), now)
        command = request.command
        if not found.count:
            return False
        fields = _info(now.wall_ms, request.invisible_ms, ORDERED_QUEUE if request.order else revive_queue, found.rest)
        fields["startOffsetInfo"] = start_offset_info(found.queues)
        fields["msgOffsetInfo"] = message_offset_info(found.queues)
        if request.order:
            fields["orderCountInfo"] = ";".join(found.attempts)
        body = b"".join([bytes(piece) for piece in found.buffers])
        answer = command.answer(ResponseCode.SUCCESS, remark="FOUND", fields=fields, body=body)
        waits, end = WAITS_UNCHANGED * self._turn.serving.is_elect, 0 if request.order else self._store.log.end
        self._puts.acks.append((request.link, encode_command(answer), end, waits, 0))
        self.popped += found.count
        if (budget := self._budget(request.group)) is not None:
            budget.use(found.count, len(body))
        return True

    def _budget(self, group: str) -> Budget | None:
        return self._quotas.group(group) if self._quotas.limits_groups else None

    def _allowed(self, request: WaitingRequest, now: Now) -> int:
        """Return how many messages the limits of its group allow; 0: its topic is tried again once they allow some."""
        budget = self._budget(request.group)
        wait_ms = 0 if budget is None else budget.wait_ms(now.mono_ms)
        if budget is not None and wait_ms:
            self._quotas.slowed(budget)
            self._limit(request.topic, now.mono_ms + wait_ms)
            return 0
        room = self._in_flight.room(request.group, now.wall_ms)
        if not room and (back_ms := self._in_flight.next_ms(request.group)) is not None:
            self._limit(request.topic, now.mono_ms + max(1, back_ms - now.wall_ms))
        return room

    def _limit(self, topic: str, until_ms: int) -> None:
        self._limited[topic] = min(until_ms, self._limited.get(topic, until_ms))

    def _has_room(self, request: WaitingRequest) -> bool:
        """Whether a request may be answered in this turn; else its topic is tried again once there is room."""
        has_room = self._pulls.has_room(request.link)
        if not has_room:
            self._crowded.setdefault(request.link, {})[request.topic] = None
        return has_room

    def _notify(self, request: WaitingRequest, now: Now) -> bool:
        request.most = 1
        if not self._reader.read(request, None, request.most, now).rest:
            return False
        answer = request.command.answer(ResponseCode.SUCCESS, fields=_notice(has_messages=True, is_full=False))
        self._turn.out.send(request.link, encode_command(answer))
        return True

    def _show(self, request: WaitingRequest, now: Now) -> bool:
        """Answer a peek whose messages were read from the device; return whether it was answered."""
        answer = self._peek(request, now)
        if not answer.body:
            return False
        self._turn.out.send(request.link, encode_command(answer))
        return True

    def _time_out(self, request: WaitingRequest) -> None:
        """Answer a request whose time is over."""
        command, code = request.command, ResponseCode.POLLING_TIMEOUT
        if request.is_notification:
            answer = command.answer(ResponseCode.SUCCESS, fields=_notice(has_messages=False, is_full=False))
        elif request.is_peek:
            answer = command.answer(ResponseCode.PULL_NOT_FOUND, remark="NO_MESSAGE_IN_QUEUE", fields=_info())
        else:
            answer = command.answer(code, remark=code.name, fields=_info())
        self._turn.out.send(request.link, encode_command(answer))

    # A turn.

    @property
    def _may_answer(self) -> bool:
        """Whether pops may be answered at all."""
        may_store = self._puts.refusal is None and self._turn.serving.refusal(Right.POP) is None
        return may_store and self._revival.is_loaded

    def begin_turn(self, _turn: Turn, now: Now) -> None:
        """Try waiting requests whose topics got messages that may be seen by now."""
        for link in [link for link in self._crowded if self._pulls.has_room(link)]:
            self.wake(self._crowded.pop(link))
        if self._limited:
            due = [topic for topic, due_ms in self._limited.items() if due_ms <= now.mono_ms]
            for topic in due:
                del self._limited[topic]
            self.wake(due)
        if not self._rounds or not self._may_answer:
            return
        self._tried_end = min(self._turn.serving.visible_end, self._store.log.written_end)
        visible, left = self._tried_end, QUEUES_PER_TURN
        for topic, tries in list(self._rounds.items()):
            if tries.is_over and not tries.is_wanted and visible <= tries.seen_end:
                continue
            if tries.is_over:
                tries.is_wanted, tries.seen_end, tries.places = False, visible, self.waiting.places_of(topic)
            left = self._try(topic, tries, left, now)
            if not tries.is_over:
                self._rounds[topic] = self._rounds.pop(topic)  # the other topics have their turn first
                self._tried_end = -1
                return
            if tries.is_wanted:
                self._tried_end = -1
            elif tries.seen_end >= self._store.log.written_end:
                del self._rounds[topic]
            else:
                self._tried_end = min(self._tried_end, tries.seen_end)

    def _try(self, topic: str, tries: _Round, left: int, now: Now) -> int:
        """Answer requests that wait for a topic; return how many more queues this turn may read."""
        while left > 0 and not tries.is_over:
            if not tries.requests:
                tries.requests = self.waiting.at(topic, tries.places.pop())
                tries.requests.reverse()
                continue
            request = tries.requests.pop()
            if not request.is_waiting or not self._has_room(request):
                continue
            left -= self._queues_of(request)
            if self._answer(request, now):
                self.waiting.remove(request)
            elif not request.reads and request.asked_ms <= now.mono_ms:  # it waited for the device alone
                self.waiting.remove(request)
                self._time_out(request)
            elif request.selector.codes is None and request.selector.sql is None and not request.order:
                tries.requests.clear()  # the others would find as little
        return left

    def _queues_of(self, request: WaitingRequest) -> int:
        """Return about how many queues a request reads."""
        topic = self._topics.get(request.topic)
        return 1 + (topic.config.read_queue_nums if topic is not None and request.queue_id == ANY_QUEUE else 0)

    def _came_back(self, topic: str, _group: str) -> None:
        if self.waiting.awaits(topic):
            self._touched[topic] = None

    def before_commit(self, _now: Now) -> None:
        """Note the topics with waiting requests that get messages."""
        if self.waiting.size:
            topics = [queue.topic for queue in self._store.touched]
            self._touched.update(dict.fromkeys(topic for topic in topics if self.waiting.awaits(topic)))

    def committed(self, _now: Now) -> None:
        """Count what was taken, and wake the requests for topics that got messages."""
        self._reader.committed()
        if self._touched:
            self.wake(self._touched)
            self._touched.clear()

    def failed(self) -> None:
        """Forget what was taken: the checkpoints are not in the log."""
        self._reader.failed()
        self._touched.clear()

    def deadline_ms(self) -> int | None:
        """See `Feature`."""
        if self._rounds and self._may_answer:
            visible = min(self._turn.serving.visible_end, self._store.log.written_end)
            if visible > self._tried_end:
                return 0
        if self._refused or (self._crowded and any(map(self._pulls.will_have_room, self._crowded))):
            return 0
        waiting_ms = self.waiting.next_ms()
        times = self._limited.values() if waiting_ms is None else (*self._limited.values(), waiting_ms)
        return min(times, default=None)

    def run_due(self, turn: Turn, now: Now) -> None:
        """Answer requests whose time is over, and wake those for queues whose messages are visible again."""
        self._refuse_some(turn)
        if self.waiting.size:
            unlocked = [topic for topic in self._orders.take_unlocked(now.wall_ms) if self.waiting.awaits(topic)]
            self.wake(unlocked)
        for request in self.waiting.due(now.mono_ms, TIME_OUTS_PER_TURN):
            self._time_out(request)

    def wake(self, topics: Iterable[str]) -> None:
        """Have requests that wait for topics tried again with the next turn."""
        for topic in topics:
            self._rounds.setdefault(topic, _Round()).is_wanted = True
            self._tried_end = -1

    def link_closed(self, link: int, _turn: Turn, _now: Now) -> None:
        """See `Feature`."""
        self.waiting.drop_link(link)
        self._crowded.pop(link, None)

    def rights_changed(self, link: int, _turn: Turn, now: Now) -> None:
        """See `Feature`."""
        self.waiting.expire(link, now.mono_ms)

    def on_serving_change(self, _before: Serving, serving: Serving, turn: Turn, _now: Now) -> None:
        """Refuse the waiting requests once this broker may not be read and written any more."""
        refusal = serving.refusal(Right.POP)
        if refusal is None:
            return
        self._rounds.clear()
        self._limited.clear()
        self._in_flight.forget()
        self._refused, self._why = deque(self.waiting.everything()), refusal
        self._refuse_some(turn)

    def _refuse_some(self, turn: Turn) -> None:
        """Refuse requests that waited when the right to answer them ended, up to REFUSED_PER_TURN."""
        for _ in range(min(REFUSED_PER_TURN, len(self._refused))):
            request = self._refused.popleft()
            if request.is_waiting:
                self.waiting.remove(request)
                answer = request.command.answer(ResponseCode.NO_PERMISSION, remark=self._why, fields=_info())
                turn.send(request.link, encode_command(answer))


def _wait_ms(poll_ms: int, born_ms: int, now: Now) -> int:
    """Return for how long a request waits for messages; the client has counted since it sent it."""
    passed_ms = max(0, now.wall_ms - born_ms) if born_ms > 0 else 0
    return max(0, min(poll_ms, POLL_MS_MAX) - passed_ms - EARLY_MS)


def _info(pop_ms: int = 0, invisible_ms: int = 0, revive_queue: int = 0, rest: int = 0) -> dict[str, str]:
    """Return the fields that every answer to a pop has."""
    return {
        "popTime": str(pop_ms),
        "invisibleTime": str(invisible_ms),
        "reviveQid": str(revive_queue),
        "restNum": str(rest),
    }


def _notice(*, has_messages: bool, is_full: bool) -> dict[str, str]:
    return {"hasMsg": "true" if has_messages else "false", "pollingFull": "true" if is_full else "false"}
