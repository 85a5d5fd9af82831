"""END_TRANSACTION (37) and RESUME_CHECK_HALF_MESSAGE (323).

A transaction ends once: a repeated request is answered like the first one and changes nothing. The response to a commit
waits for flush and replicas as that to a send does.

Source: docs/reference/transactions.md; RocketMQ EndTransactionProcessor, AdminBrokerProcessor.
"""

import logging

from tandemq.boundary import Now
from tandemq.broker.features.transactions.service import Transactions
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.messages.half_message import HalfMessage, decode_half
from tandemq.codec.record.record import message_id, parse_message_id
from tandemq.codec.remoting.frame import encode_command
from tandemq.codec.remoting.requests import EndTransactionFields, ResumeCheckFields, read_fields
from tandemq.errors import ProtocolError, RecordTooLarge, StoreError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import CHECK_TIMES, FIRST_OFFSET, SysFlag
from tandemq.model.topic import CHECK_MAX_TIME_TOPIC, HALF_TOPIC

log = logging.getLogger(__name__)
_COMMIT = int(SysFlag.TRANSACTION_COMMIT)
_ROLLBACK = int(SysFlag.TRANSACTION_ROLLBACK)
REFUSALS_LOGGED_MS = 1_000
_HOST_CHARACTERS = 16
"""Length of an IPv4 store host in an offset id."""


class TransactionProcessor(Feature):
    """End transactions, and resume the checks of one that was given up."""

    def __init__(self, kernel: Kernel, transactions: Transactions) -> None:
        """Begin."""
        self._store = kernel.store
        self._puts = kernel.puts
        self._transactions = transactions
        self._turn = kernel.turn
        self._current = kernel.current
        self._refused = 0
        """Number of ends refused since the last log line about one."""
        self._refusal_logged_ms = -REFUSALS_LOGGED_MS

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {Code.END_TRANSACTION: Request(self._on_end), Code.RESUME_CHECK_HALF_MESSAGE: Request(self._on_resume)}

    def _unready(self, command: Command, now: Now) -> Command | None:
        """Return the refusal of any request now; None if it is accepted."""
        if not self._turn.serving.is_master:
            return command.answer(ResponseCode.SLAVE_NOT_AVAILABLE, remark="a slave ends no transactions")
        if self._puts.refusal is not None:
            return command.answer(self._puts.refusal[0], remark=self._puts.refusal[1])
        self._transactions.hurry(now)
        if self._transactions.table is None:
            return command.answer(ResponseCode.SYSTEM_BUSY, remark="the open transactions are being read; try again")
        return None

    # END_TRANSACTION.

    def _on_end(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(EndTransactionFields, command.fields)
        refused = self._unready(command, now)
        if refused is not None:
            return refused
        outcome = fields.commit_or_rollback
        if outcome not in (_COMMIT, _ROLLBACK):
            return self._answer_unknown(command, fields)
        half = self._half(fields.commit_log_offset)
        if half is None:
            remark = "Find prepared transaction message failed"
            return self._refuse(command, ResponseCode.SYSTEM_ERROR, remark, fields, now)
        wrong = self._mismatch(half, fields, now)
        if wrong is not None:
            return self._refuse(command, *wrong, fields, now)
        if self._transactions.is_over(fields.tran_state_table_offset):
            self._acknowledge(link, command, 0, remark="the transaction was ended before")
            return None
        current = self._transactions.current(fields.tran_state_table_offset)
        if current is None:
            return self._refuse(
                command,
                ResponseCode.SYSTEM_ERROR,
                f"half message {fields.tran_state_table_offset} is not open: the transaction was ended before, "
                "or given up after too many checks",
                fields,
                now,
            )
        end = 0
        if outcome == _COMMIT:
            try:
                _, log_offset, size = self._transactions.commit(half, current, now)
            except RecordTooLarge as error:
                return command.answer(ResponseCode.MESSAGE_ILLEGAL, remark=str(error))
            end = log_offset + size
        self._transactions.count_end(half.topic, half.message.born_ms, now.wall_ms, is_commit=outcome == _COMMIT)
        self._transactions.note_end(current)
        self._acknowledge(link, command, end)
        return None

    def _refuse(
        self, command: Command, code: ResponseCode, remark: str, fields: EndTransactionFields, now: Now
    ) -> Command:
        """Return a refusal; one per `REFUSALS_LOGGED_MS` is logged, since producers do not read the response."""
        self._refused += 1
        if now.mono_ms >= self._refusal_logged_ms + REFUSALS_LOGGED_MS:
            log.warning(
                "transactions: end of half message %d at log offset %d refused group=%.255s refused=%d: %s",
                fields.tran_state_table_offset,
                fields.commit_log_offset,
                fields.producer_group,
                self._refused,
                remark,
            )
            self._refused, self._refusal_logged_ms = 0, now.mono_ms
        return command.answer(code, remark=remark)

    def _acknowledge(self, link: Link, command: Command, end: int, *, remark: str | None = None) -> None:
        """Respond once the turn is written. `end`: log offset behind what the response waits for, 0: the turn's end."""
        answer = None if command.is_oneway else encode_command(command.answer(ResponseCode.SUCCESS, remark=remark))
        self._puts.acks.append((link.number, answer, end or self._store.log.end, True, 1))

    def _answer_unknown(self, command: Command, fields: EndTransactionFields) -> Command:
        if fields.commit_or_rollback:
            return command.answer(
                ResponseCode.INVALID_PARAMETER,
                remark=f"commitOrRollback={fields.commit_or_rollback}: 0, {_COMMIT} (commit) or {_ROLLBACK} (rollback)",
            )
        remark = "the transaction stays open, and is checked again"
        if command.remark:
            log.info(
                "transactions: group=%.255s does not know the outcome: %.200s", fields.producer_group, command.remark
            )
        return command.answer(ResponseCode.SUCCESS, remark=remark)

    def _half(self, log_offset: int) -> HalfMessage | None:
        try:
            found = self._store.queued_record_at(log_offset)
            half = decode_half(found[1]) if found is not None else None
        except (ProtocolError, StoreError) as error:
            log.error("transactions: the half message at log offset %d cannot be read: %s", log_offset, error)
            return None
        return half if half is not None and half.message.topic == HALF_TOPIC else None

    def _mismatch(self, half: HalfMessage, fields: EndTransactionFields, now: Now) -> tuple[ResponseCode, str] | None:
        """Return code and remark if a request does not belong to the half message that it names."""
        message = half.message
        if half.immunity_ms is not None and not fields.from_transaction_check:
            late_ms = max(half.immunity_ms, self._current.config.transaction_timeout_ms)
            if now.wall_ms - message.born_ms > late_ms:
                return ResponseCode.ILLEGAL_OPERATION, "the time for an answer without a check is over"
        if not half.group:
            return ResponseCode.SYSTEM_ERROR, "the half message names no producer group (PGROUP)"
        if half.group != fields.producer_group:
            return ResponseCode.SYSTEM_ERROR, "The producer group wrong"
        if message.queue_offset != fields.tran_state_table_offset:
            return ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong"
        if message.log_offset != fields.commit_log_offset:
            return ResponseCode.SYSTEM_ERROR, "The commit log offset wrong"
        if not _names(half, fields):
            return ResponseCode.SYSTEM_ERROR, f"The message id wrong: {half.unique_key} is at this offset"
        return None

    # RESUME_CHECK_HALF_MESSAGE.

    def _on_resume(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(ResumeCheckFields, command.fields)
        refused = self._unready(command, now)
        if refused is not None:
            return refused
        _, log_offset = parse_message_id(fields.msg_id)
        found = self._store.queued_record_at(log_offset)
        if found is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=f"there is no message {fields.msg_id} in this log")
        half = decode_half(found[1])
        if half.message.topic not in (HALF_TOPIC, CHECK_MAX_TIME_TOPIC):  # any producer can set the same properties
            return command.answer(
                ResponseCode.SYSTEM_ERROR,
                remark=f"{fields.msg_id} is a message of {half.message.topic}, no half message",
            )
        if half.message.topic == HALF_TOPIC and self._is_known(half.message.queue_offset):
            return command.answer(
                ResponseCode.SYSTEM_ERROR, remark="the transaction is open, or was ended: it needs no resuming"
            )
        stored = self._transactions.put_half(half, now, change={CHECK_TIMES: "0"}, drop=(FIRST_OFFSET,))
        self._puts.note_half(stored, half.topic)
        self._transactions.resumed(half)
        self._acknowledge(link, command, stored.log_offset + stored.size)
        return None

    def _is_known(self, queue_offset: int) -> bool:
        transactions = self._transactions
        return transactions.is_over(queue_offset) or transactions.is_open(queue_offset)


def _names(half: HalfMessage, fields: EndTransactionFields) -> bool:
    """Return whether a request names the message by one of its ids; ids of other clients may be any text.

    After a failover another half message can lie at the same offsets.
    """
    named = {name for name in (fields.msg_id, fields.transaction_id) if name}
    key = half.unique_key
    own = message_id(half.store_host, half.message.log_offset)
    if not key or not named or key in named:
        return True
    return all(name[:_HOST_CHARACTERS] == own[:_HOST_CHARACTERS] or len(name) != len(key) for name in named)
