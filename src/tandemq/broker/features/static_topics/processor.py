"""Requests about logical queues of static topics: sends, pulls and offsets.

    request with a logical queue ──► segment ──► this broker's queue     the ordinary part of the broker
                                        └──────► another broker's queue  forwarded, with `lo=false`
                response in logical offsets ◄──┘

Only the broker that leads a logical queue answers, others refuse with NOT_LEADER_FOR_QUEUE. `lo=false` in a request
says that its queue and offset are those of the broker. Requests about other topics do not come here. Replies neither:
they are stored after they were passed on, see `reply_message`.

A message that is delivered later than it is stored (delay level, time, transaction) is refused: its queue may have
moved to another broker by then, and consumers would have passed the place.

Source: docs/reference/requests.md, "static topics"; RocketMQ TopicQueueMappingManager and the processors that use it.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tandemq.boundary import LinkKind, Now
from tandemq.broker.features.static_topics.forwarding import Forwarding
from tandemq.broker.features.static_topics.pull_views import PhysicalView, SegmentView
from tandemq.broker.kernel.connection import Handler, Link
from tandemq.broker.kernel.context import CurrentTurn
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pulls import LINK_BYTES_MAX, PullAnswer, PullRefused, Pulls
from tandemq.broker.kernel.sends import Sends
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command
from tandemq.codec.remoting.requests import PullFields, is_true, read_fields
from tandemq.errors import ProtocolError, StoreError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import TIMER_NAMES, TRAN_MSG, decode_properties
from tandemq.model.queue_mapping import LogicalQueue, QueueMapping, QueueSegment

_COMMIT, _SUSPEND = 1, 2
"""Bits of a pull's sysFlag."""


class _Names(NamedTuple):
    """Names of the header fields of a request."""

    topic: str = "topic"
    queue_id: str = "queueId"
    properties: str = "properties"


_LONG, _SHORT = _Names(), _Names("b", "e", "i")
_SENDS: dict[int, _Names] = {Code.SEND_MESSAGE: _LONG, Code.SEND_MESSAGE_V2: _SHORT, Code.SEND_BATCH_MESSAGE: _SHORT}
_PULLS = (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE)
"""Without replica reads, which are about the queues of a broker."""
_OFFSETS = (
    Code.QUERY_CONSUMER_OFFSET,
    Code.UPDATE_CONSUMER_OFFSET,
    Code.SEARCH_OFFSET_BY_TIMESTAMP,
    Code.GET_MAX_OFFSET,
    Code.GET_MIN_OFFSET,
    Code.GET_EARLIEST_MSG_STORETIME,
)
_NAMES: dict[int, _Names] = {**_SENDS, **dict.fromkeys((*_PULLS, *_OFFSETS), _LONG)}
_Then = Callable[[Command | None, Now], None]
"""Called once with the response about a segment; None: its broker does not answer."""


class _Refused(Exception):
    """A request that is not answered otherwise."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class _Request(NamedTuple):
    """One request about a logical queue that this broker leads."""

    link: Link
    command: Command
    mapping: QueueMapping
    queue_id: int
    queue: LogicalQueue


class _Reply:
    """The response to a request: returned to the dispatcher if it is known at once, else sent later."""

    def __init__(self, link: int, command: Command, links: Mapping[int, Link], turn: CurrentTurn) -> None:
        self._link = link
        self._command = command
        self._links = links
        self._turn = turn
        self._answer: Command | None = None
        self._is_late = False

    def give(self, answer: Command) -> None:
        """Answer the request."""
        if not self._is_late:
            self._answer = answer
        elif self._link in self._links and not self._command.is_oneway:
            self._turn.out.send(self._link, encode_command(answer))

    def at_once(self) -> Command | None:
        """Return the response if it is known; a later response is sent."""
        self._is_late = True
        return self._answer


class StaticTopics(Feature):
    """The requests about logical queues."""

    def __init__(self, kernel: Kernel, forwarding: Forwarding) -> None:
        """Begin with the mappings that are loaded."""
        self.table: Mapping[str, QueueMapping] = kernel.topics.mappings.table
        """The mappings by topic; empty on most brokers, which then do not look further."""
        self._puts = kernel.puts
        self._sends = kernel.features.find(Sends)
        self._pulls = kernel.features.find(Pulls)
        self._forwarding = forwarding
        self._ordinary: dict[int, Handler] = {}
        """Handlers of requests about this broker's own queues, by code."""
        self._links = kernel.links
        self._outbox = kernel.outbox
        self._turn = kernel.turn

    def wrap(self, code: Code, request: Request) -> Request:
        """Take the requests that may be about a logical queue."""
        if code not in _NAMES:
            return request
        self._ordinary[code] = request.handle
        return request._replace(handle=self._on_request)

    def _on_request(self, link: Link, command: Command, now: Now) -> Command | None:
        """Handle a request; returns the response, or None if it comes later, or with the sends."""
        code = command.code
        is_refused = code in _PULLS and link.kind is not LinkKind.REMOTING
        if is_refused or not self.table or command.fields.get(_NAMES[code].topic) not in self.table:
            return self._ordinary[code](link, command, now)
        names = _NAMES[command.code]
        if command.fields.get("lo", "").lower() == "false":
            return self._take_physical(link, command, now)
        mapping = self.table[command.fields[names.topic]]
        try:
            queue_id = _integer(command, names.queue_id)
            if command.code in _SENDS:
                queue_id = mapping.chosen(queue_id)
            queue = mapping.led_queue(queue_id)
            if queue is None:
                raise _Refused(ResponseCode.NOT_LEADER_FOR_QUEUE, mapping.not_led_remark(queue_id))
            return self._take(_Request(link, command, mapping, queue_id, queue), now)
        except _Refused as refused:
            return command.answer(refused.code, remark=refused.remark)
        except PullRefused as refused:
            return command.answer(refused.code, remark=refused.remark, fields=refused.fields)

    def _take(self, request: _Request, now: Now) -> Command | None:
        code = request.command.code
        if code in _SENDS:
            self._take_send(request, _SENDS[code], now)
            return None
        if code in _PULLS:
            return self._take_pull(request, now)
        reply = _Reply(request.link.number, request.command, self._links, self._turn)
        takers = {
            Code.QUERY_CONSUMER_OFFSET: self._query_offset,
            Code.UPDATE_CONSUMER_OFFSET: self._commit_offset,
            Code.SEARCH_OFFSET_BY_TIMESTAMP: self._search_offset,
            Code.GET_MAX_OFFSET: self._bound,
            Code.GET_MIN_OFFSET: self._bound,
            Code.GET_EARLIEST_MSG_STORETIME: self._earliest,
        }
        takers[Code(code)](request, reply, now)
        return reply.at_once()

    def _take_physical(self, link: Link, command: Command, now: Now) -> Command | None:
        """Handle a request of the leader of a logical queue about a segment of it in a queue of this broker."""
        if command.code in _SENDS:
            self._sends.take(link, command, now)
            return None
        if command.code in _PULLS:
            return self._pulls.take(link.number, command, self._turn.out, now, PhysicalView())
        return self._ordinary[command.code](link, command, now)

    # Sends.

    def _take_send(self, request: _Request, names: _Names, now: Now) -> None:
        """Store a message in the queue of the leading segment; its response shows the logical queue."""
        _, command, _, queue_id, queue = request
        _check_properties(decode_properties(command.fields.get(names.properties, "")))
        segment = queue.leader
        physical = _changed(command, {names.queue_id: str(segment.queue_id)})
        self._sends.take(request.link, physical, now)
        link, answers, end, waits, count = self._puts.acks[-1]
        if answers and end:
            self._puts.acks[-1] = (link, _shown_sent(answers, queue_id, segment), end, waits, count)

    # Pulls.

    def _take_pull(self, request: _Request, now: Now) -> Command | None:
        command, queue = request.command, request.queue
        if self._turn.serving.read is not None:
            raise _Refused(ResponseCode.NO_PERMISSION, self._turn.serving.read)
        self._pulls.check_readable()
        fields = read_fields(PullFields, command.fields)
        segment = queue.at(fields.queue_offset)
        if segment is None:
            raise _Refused(ResponseCode.PULL_NOT_FOUND, "the offsets of this queue are not known yet")
        if fields.sys_flag & _COMMIT and fields.commit_offset >= 0 and self._turn.serving.takes_pulled_commits:
            self._commit_with_pull(request, fields, now)
        view, start = SegmentView(queue, segment), segment.physical(fields.queue_offset)
        segment_end = queue.end_of(segment)
        if segment_end is not None and start >= segment_end:
            if queue.following(segment) is None:
                raise _Refused(ResponseCode.PULL_NOT_FOUND, "the offsets of the next segment are not known yet")
            return _pull_answer(command, view.next_segment(), "NO_MATCHED_LOGIC_QUEUE")
        most = fields.max_msg_nums
        if segment_end is not None:
            most = min(most, segment_end - max(start, segment.start_offset))
        flags = fields.sys_flag & ~_COMMIT if view.is_leader else fields.sys_flag & ~(_COMMIT | _SUSPEND)
        physical = _changed(
            command,
            {
                "queueId": str(segment.queue_id),
                "queueOffset": str(start),
                "maxMsgNums": str(most),
                "sysFlag": str(flags),
            },
        )
        if segment.bname == request.mapping.bname:
            return self._pulls.take(request.link.number, physical, self._turn.out, now, view)
        if self._outbox.backlog(request.link.number) >= LINK_BYTES_MAX:
            raise _Refused(ResponseCode.SYSTEM_BUSY, "this connection has not taken its messages yet; pull again later")
        reply = _Reply(request.link.number, command, self._links, self._turn)

        def on_answer(answer: Command | None, _at: Now) -> None:
            reply.give(_no_answer(command, segment) if answer is None else _shown_pull(command, view, answer))

        self._ask(request, segment, physical, on_answer, now)
        return reply.at_once()

    def _commit_with_pull(self, request: _Request, fields: PullFields, now: Now) -> None:
        """Commit the offset that came with a pull; without a response."""
        commit = {
            "consumerGroup": fields.consumer_group,
            "topic": fields.topic,
            "queueId": str(request.queue_id),
            "commitOffset": str(fields.commit_offset),
        }
        command = Command(Code.UPDATE_CONSUMER_OFFSET, fields=commit)
        reply = _Reply(request.link.number, command, {}, self._turn)
        self._commit_offset(request._replace(command=command), reply, now)
        reply.at_once()

    # Offsets.

    def _query_offset(self, request: _Request, reply: _Reply, now: Now) -> None:
        """Answer the offset of a group: of the newest segment in which it has one."""
        queue, command = request.queue, request.command
        if queue.segments == queue.placed()[:1] and queue.leader.logic_offset == 0:
            self._ask(request, queue.leader, command, self._shown_offset(request, queue.leader, reply), now)
            return
        self._query_from(request, list(queue.segments), reply, now)

    def _query_from(self, request: _Request, left: list[QueueSegment], reply: _Reply, now: Now) -> None:
        command = request.command
        if not left:
            remark = "Not found, maybe this group consumer boot first"
            reply.give(command.answer(ResponseCode.QUERY_NOT_FOUND, remark=remark))
            return
        segment = left[-1]
        shown = self._shown_offset(request, segment, reply)

        def on_answer(answer: Command | None, now: Now) -> None:
            if answer is not None and answer.code == ResponseCode.QUERY_NOT_FOUND:
                self._query_from(request, left[:-1], reply, now)
            else:
                shown(answer, now)

        self._ask(request, segment, _changed(command, {"setZeroIfNotFound": "false"}), on_answer, now)

    def _commit_offset(self, request: _Request, reply: _Reply, now: Now) -> None:
        command = request.command
        logical = _integer(command, "commitOffset")
        segment = self._placed(request, logical)
        physical = {"commitOffset": str(max(0, segment.physical(logical)))}

        def on_answer(answer: Command | None, _at: Now) -> None:
            reply.give(
                _no_answer(command, segment) if answer is None else command.answer(answer.code, remark=answer.remark)
            )

        self._ask(request, segment, _changed(command, physical), on_answer, now)

    def _bound(self, request: _Request, reply: _Reply, now: Now) -> None:
        """Answer the first or the last offset of a logical queue."""
        placed = request.queue.placed()
        index = 0 if request.command.code == Code.GET_MIN_OFFSET else -1
        if not placed:
            raise _Refused(ResponseCode.SYSTEM_ERROR, "the offsets of this queue are not known yet")
        self._ask(request, placed[index], request.command, self._shown_offset(request, placed[index], reply), now)

    def _earliest(self, request: _Request, reply: _Reply, now: Now) -> None:
        command, segment = request.command, self._placed(request, 0)

        def on_answer(answer: Command | None, _at: Now) -> None:
            if answer is None:
                reply.give(_no_answer(command, segment))
            else:
                reply.give(command.answer(answer.code, remark=answer.remark, fields=_kept(answer, "timestamp")))

        self._ask(request, segment, command, on_answer, now)

    def _search_offset(self, request: _Request, reply: _Reply, now: Now) -> None:
        self._search_from(request, list(request.queue.placed()), reply, now)

    def _search_from(self, request: _Request, left: list[QueueSegment], reply: _Reply, now: Now) -> None:
        """Answer the offset of a time: in the first segment with a message of that time or later."""
        if not left:
            raise _Refused(ResponseCode.SYSTEM_ERROR, "the offsets of this queue are not known yet")
        command, segment = request.command, left[0]
        shown = self._shown_offset(request, segment, reply)
        if len(left) == 1:
            self._ask(request, segment, command, shown, now)
            return

        def on_end(answer: Command | None, now: Now) -> None:
            end = _offset_in(answer)
            if end is None:
                shown(answer, now)
                return

            def on_found(found: Command | None, now: Now) -> None:
                offset = _offset_in(found)
                if offset is not None and offset >= end:
                    self._search_from(request, left[1:], reply, now)
                else:
                    shown(found, now)

            self._ask(request, segment, command, on_found, now)

        end_request = Command(Code.GET_MAX_OFFSET, fields={"topic": request.mapping.topic})
        self._ask(request, segment, end_request, on_end, now)

    def _placed(self, request: _Request, logical: int) -> QueueSegment:
        segment = request.queue.at(logical)
        if segment is None:
            raise _Refused(ResponseCode.SYSTEM_ERROR, "the offsets of this queue are not known yet")
        return segment

    def _shown_offset(self, request: _Request, segment: QueueSegment, reply: _Reply) -> _Then:
        """Return a callback that turns the response about a segment into one about its logical queue."""
        command = request.command

        def on_answer(answer: Command | None, _at: Now) -> None:
            offset = _offset_in(answer)
            if answer is None:
                reply.give(_no_answer(command, segment))
            elif offset is None:
                reply.give(command.answer(answer.code, remark=answer.remark))
            else:
                fields = {"offset": str(segment.logical(offset))}
                reply.give(command.answer(answer.code, remark=answer.remark, fields=fields))

        return on_answer

    # One segment.

    def _ask(self, request: _Request, segment: QueueSegment, command: Command, then: _Then, now: Now) -> None:
        """Have a request answered by the broker that has the segment: this or another one."""
        asked = _changed(command, {"queueId": str(segment.queue_id)})
        if segment.bname == request.mapping.bname:
            try:
                answer = self._ordinary[command.code](request.link, asked, now)
            except (ProtocolError, StoreError) as error:
                answer = command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
            then(answer, now)
            return
        asked.fields |= {"lo": "false", "bname": segment.bname}
        self._forwarding.call(request.mapping.topic, segment.bname, asked, then, now)


def _changed(command: Command, fields: dict[str, str]) -> Command:
    """Return the request with other header fields, as an independent command."""
    return Command(
        command.code,
        command.opaque,
        command.flag,
        command.remark,
        command.fields | fields,
        command.body,
        command.language,
        command.version,
        command.binary,
    )


def _integer(command: Command, name: str) -> int:
    text = command.fields.get(name, "")
    if not text.removeprefix("-").isdecimal() or len(text) > 19 or not text.isascii():
        raise _Refused(ResponseCode.SYSTEM_ERROR, f"{name}: an integer is expected, not {text[:32]!r}")
    return int(text)


def _check_properties(properties: dict[str, str]) -> None:
    """Refuse a message that would be delivered later than it is stored."""
    if (
        properties.get("DELAY", "0") != "0"
        or not TIMER_NAMES.isdisjoint(properties)
        or is_true(properties.get(TRAN_MSG, ""))
    ):
        raise _Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            "a message to a static topic may not be delayed or transactional: when it becomes due, its queue may be on "
            "another broker; send it to an ordinary topic",
        )


def _shown_sent(answers: bytes, queue_id: int, segment: QueueSegment) -> bytes:
    """Return the response to a stored message, in terms of the logical queue."""
    shown: list[bytes] = []
    for frame in FrameDecoder().feed(answers):
        answer = decode_command(frame)
        if answer.code == ResponseCode.SUCCESS:
            offset = segment.logical(int(answer.fields["queueOffset"]))
            answer.fields |= {"queueId": str(queue_id), "queueOffset": str(offset)}
        shown.append(encode_command(answer))
    return b"".join(shown)


def _no_answer(command: Command, segment: QueueSegment) -> Command:
    remark = f"broker {segment.bname}, which has an older part of this queue, does not answer; try again"
    return command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)


def _kept(answer: Command, name: str) -> dict[str, str]:
    return {name: answer.fields[name]} if name in answer.fields else {}


def _offset_in(answer: Command | None) -> int | None:
    if answer is None or answer.code != ResponseCode.SUCCESS:
        return None
    return _number(answer.fields.get("offset"))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.removeprefix("-").isdecimal() and len(text) <= 19 else None


def _shown_pull(command: Command, view: SegmentView, answer: Command) -> Command:
    """Return another broker's answer to a pull, in the offsets of the logical queue."""
    numbers = [_number(answer.fields.get(name)) for name in ("nextBeginOffset", "minOffset", "maxOffset")]
    next_offset, low, end = numbers
    if next_offset is None or low is None or end is None:
        return command.answer(answer.code, remark=answer.remark)
    shown = view.shown(PullAnswer(answer.code, next_offset, low, end), end)
    return _pull_answer(command, shown, answer.remark, answer.body if shown.code == answer.code else b"")


def _pull_answer(command: Command, shown: PullAnswer, remark: str | None, body: bytes = b"") -> Command:
    return command.answer(shown.code, remark=remark, fields=shown.fields(), body=body)
