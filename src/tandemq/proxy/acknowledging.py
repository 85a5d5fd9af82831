"""Acknowledgements, changed invisible times and dead letters of clients.

Source: docs/reference/grpc.md; RocketMQ AckMessageActivity, ChangeInvisibleDurationActivity,
ForwardMessageToDLQActivity.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

from tandemq.client.core.operations import Steps, current_time, refusal
from tandemq.errors import TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.pop import INVISIBLE_MS_MAX
from tandemq.proxy.brokers import TRY_MS, Brokers
from tandemq.proxy.handles import (
    Receipt,
    ack_request,
    change_request,
    changed_receipt,
    check_current,
    dead_letter_request,
    parse_receipt,
)
from tandemq.proxy.names import Caller, group_of, topic_of
from tandemq.proxy.protocol.messaging_pb2 import (
    AckMessageEntry,
    AckMessageRequest,
    AckMessageResponse,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    Code,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
    Status,
)
from tandemq.proxy.renewals import Renewals
from tandemq.proxy.status import OK, CallRefused, common_status, status_of
from tandemq.proxy.times import milliseconds

log = logging.getLogger(__name__)
T = TypeVar("T")
ENTRIES_MAX = 1_024
"""Maximum number of messages that one request acknowledges."""


class Acknowledging:
    """What clients do with received messages."""

    def __init__(self, brokers: Brokers, renewals: Renewals) -> None:
        """`renewals`: know the newest handle of a message."""
        self._brokers = brokers
        self._renewals = renewals
        self.acknowledged = 0
        """Number of messages acknowledged."""

    def acknowledge(self, caller: Caller, query: AckMessageRequest) -> Steps[AckMessageResponse]:
        """Acknowledge messages; each has its outcome.

        Raises:
            CallRefused: there is none, or there are too many.
        """
        topic, group = topic_of(query.topic), group_of(query.group)
        if not 0 < len(query.entries) <= ENTRIES_MAX:
            text = f"the request acknowledges {len(query.entries)} messages; it must be 1 to {ENTRIES_MAX}"
            raise CallRefused(Code.BAD_REQUEST, text)
        if len(query.entries) > 1:
            # All of them together have the time of one.
            until_ms = (yield from current_time()).mono_ms + TRY_MS
            caller = caller._replace(deadline_ms=min(caller.deadline_ms or until_ms, until_ms))
        statuses: list[Status] = []
        for entry in query.entries:
            try:
                yield from self._acknowledge(caller, group, topic, entry)
                statuses.append(OK)
            except TandemError as error:
                statuses.append(status_of(error))
        response = AckMessageResponse(status=common_status(statuses))
        for entry, status in zip(query.entries, statuses, strict=True):
            result = response.entries.add()
            result.message_id, result.receipt_handle = entry.message_id, entry.receipt_handle
            result.status.CopyFrom(status)
        return response

    def _acknowledge(self, caller: Caller, group: str, topic: str, entry: AckMessageEntry) -> Steps[None]:
        known = parse_receipt(entry.receipt_handle)
        yield from self._end(
            caller, group, topic, known, lambda newest: self._do_acknowledge(caller, group, topic, newest)
        )
        self.acknowledged += 1

    def _do_acknowledge(self, caller: Caller, group: str, topic: str, receipt: Receipt) -> Steps[None]:
        check_current(receipt, (yield from current_time()).wall_ms)
        yield from self._do(caller, topic, receipt, ack_request(receipt, group, topic))

    def _end(
        self, caller: Caller, group: str, topic: str, known: Receipt, end: Callable[[Receipt], Steps[T]]
    ) -> Steps[T]:
        """End a message that may be renewed; `end`: does it, given the newest handle."""
        held = self._renewals.claim(caller.client_id, group, topic, known)
        if held.is_asked:
            yield from self._renewals.renewed(held)
        try:
            ended = yield from end(held.receipt)
        except TandemError:
            self._renewals.release(held, (yield from current_time()))
            raise
        self._renewals.end(caller.client_id, known)
        return ended

    def change(self, caller: Caller, query: ChangeInvisibleDurationRequest) -> Steps[ChangeInvisibleDurationResponse]:
        """Change when a message comes back; the old handle counts no more.

        Raises:
            CallRefused: the handle is none or has expired, or the time is out of range.
            TandemError: the broker refuses it, or does not respond.
        """
        topic, group = topic_of(query.topic), group_of(query.group)
        invisible_ms = milliseconds(query.invisible_duration)
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            text = f"the invisible time is {invisible_ms} ms; it must be 0 to {INVISIBLE_MS_MAX}"
            raise CallRefused(Code.ILLEGAL_INVISIBLE_TIME, text)

        def change(receipt: Receipt) -> Steps[Receipt]:
            check_current(receipt, (yield from current_time()).wall_ms)
            asked = change_request(receipt, group, topic, invisible_ms, is_suspended=query.suspend)
            answer = yield from self._do(caller, topic, receipt, asked)
            return changed_receipt(receipt, answer)

        changed = yield from self._end(caller, group, topic, parse_receipt(query.receipt_handle), change)
        return ChangeInvisibleDurationResponse(status=OK, receipt_handle=str(changed))

    def forward(
        self, caller: Caller, query: ForwardMessageToDeadLetterQueueRequest
    ) -> Steps[ForwardMessageToDeadLetterQueueResponse]:
        """Store a message in the group's topic of dead letters, and acknowledge it.

        Raises:
            CallRefused: the handle is none.
            TandemError: the broker refuses it, or does not respond.
        """
        topic, group = topic_of(query.topic), group_of(query.group)

        def forward(receipt: Receipt) -> Steps[None]:
            letter = dead_letter_request(receipt, group, topic, query.message_id)
            yield from self._do(caller, topic, receipt, letter)
            try:
                yield from self._do(caller, topic, receipt, ack_request(receipt, group, topic))
            except TandemError as error:
                # A repeated request would store it again.
                log.warning("a dead letter of group %s and topic %s comes again: %s", group, topic, error)

        yield from self._end(caller, group, topic, parse_receipt(query.receipt_handle), forward)
        return ForwardMessageToDeadLetterQueueResponse(status=OK)

    def _do(self, caller: Caller, topic: str, receipt: Receipt, command: Command) -> Steps[Command]:
        answer = yield from self._brokers.ask_master(
            topic, receipt.handle.broker, lambda _now: command, caller.deadline_ms
        )
        if answer.code in (ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL):
            raise CallRefused(Code.INVALID_RECEIPT_HANDLE, answer.remark or "there is no such message")
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer)
        return answer
