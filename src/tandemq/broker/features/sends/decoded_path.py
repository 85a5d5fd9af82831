"""Sends that are decoded in full: every kind of message, with all checks.

Retry topics and everything else that the engine does not take come this way; see `processor`.

Source: docs/reference/requests.md, "sending"; RocketMQ SendMessageProcessor.
"""

from tandemq.boundary import Now
from tandemq.broker.features.sends.slowed import SlowedSends
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.messages.half_message import as_half, is_half
from tandemq.broker.kernel.messages.refused import SendRefused, check_room
from tandemq.broker.kernel.messages.system_properties import (
    delay_level,
    immunity_problem,
    may_ask,
    part_problem,
    property_problem,
)
from tandemq.broker.kernel.messages.timed_message import requested_time
from tandemq.broker.kernel.puts import Puts, trace_fields
from tandemq.broker.kernel.quotas import Quotas
from tandemq.broker.kernel.sends import VERSION_3_4_9, SendPlace, read_send_fields
from tandemq.broker.state.groups import Groups
from tandemq.broker.state.message_type import message_type, priority_of, type_problem
from tandemq.broker.state.topics import Topic, internal_topic
from tandemq.codec.record.record import CRC_PROPERTY_BYTES, PROPERTIES_BYTES_MAX, BatchPart, decode_batch, message_id
from tandemq.codec.remoting.frame import encode_command
from tandemq.codec.remoting.recall_handle import encode_handle
from tandemq.codec.remoting.requests import SendFields, is_true
from tandemq.engine import CHECKED_BYTES_MAX, Budget
from tandemq.errors import ProtocolError, RecordTooLarge
from tandemq.model.attributes import PRIORITY
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import PRIORITY as PRIORITY_PROPERTY
from tandemq.model.message import (
    PRODUCER_GROUP,
    TIMER_NAMES,
    TRAN_MSG,
    TRANSACTION_MASK,
    SysFlag,
    decode_properties,
    encode_properties,
)
from tandemq.model.topic import (
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    Permission,
    dead_letter_topic,
    takes_no_sends,
    topic_name_error,
)
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.log.commit_log import AppendMessageResult

_WRITE = int(Permission.WRITE)
_BROKER_BITS = int(TRANSACTION_MASK | SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
"""Bits of sysFlag that the broker sets."""

_Response = tuple[bytes | None, int, bool, int]
"""An `Ack` without its link: frames, log offset, waits, messages."""


class DecodedPath:
    """Check and store sends whose headers are decoded."""

    def __init__(self, state: Puts, groups: Groups, quotas: Quotas) -> None:
        """Begin; responses go to `state.acks`."""
        self._state = state
        self._groups = groups
        self._quotas = quotas
        self.slowed = SlowedSends()
        self._limits_version = quotas.version
        self._common: dict[str, str] = {}

    def set_in_all(self, properties: dict[str, str]) -> None:
        """Set these properties in all messages from now on."""
        self._common = properties

    def take_slowed(self, now: Now) -> None:
        """Store or refuse the sends whose time to wait is over."""
        for send in self.slowed.take_due(now.mono_ms):
            if send.refusal:
                ack = self._refuse(send.command, ResponseCode.SYSTEM_BUSY, send.refusal)
                self._state.acks.append((send.link.number, *ack))
            else:
                self._take(send.link, send.command, now, has_waited=True)

    def keeps_order(self, link: Link) -> bool:
        """Whether sends of a connection wait that the engine, which knows the present limits only, would overtake."""
        if self._limits_version != self._quotas.version:
            self._limits_version = self._quotas.version
            self.slowed.hold()
        return link.number in self.slowed.held

    def take(self, link: Link, command: Command, now: Now) -> None:
        """Store any send, and add its response or refusal to the acks; or have it wait."""
        self._take(link, command, now, has_waited=False)

    def _take(self, link: Link, command: Command, now: Now, *, has_waited: bool) -> None:
        """Store a send. `has_waited`: until its rates allow it; it has used them."""
        try:
            fields = read_send_fields(command)
            if not has_waited and self._waits(link, command, fields, now):
                return
            messages = self._state.count
            ack = self._store_any(link, command, fields, now)
            for budget in () if has_waited else self._budgets(link, fields.topic):
                budget.wait_ms(now.mono_ms)  # the rate of a topic that the send has created begins now
                budget.use(self._state.count - messages, len(command.body))
        except SendRefused as refused:
            ack = self._refuse(command, refused.code, refused.remark)
        except ProtocolError as error:
            ack = self._refuse(command, ResponseCode.SYSTEM_ERROR, str(error))
        except RecordTooLarge as error:
            ack = self._refuse(command, ResponseCode.MESSAGE_ILLEGAL, str(error))
        self._state.acks.append((link.number, *ack))

    def _budgets(self, link: Link, name: str) -> tuple[Budget, ...]:
        """Return the rates that a send uses."""
        topic = self._state.topics.get(name)
        of_topic = None if topic is None else topic.budget
        return tuple(budget for budget in (of_topic, link.budget) if budget is not None)

    def _waits(self, link: Link, command: Command, fields: SendFields, now: Now) -> bool:
        """Whether a send waits until its rates allow it and those before it are stored, or its refusal does.

        Raises:
            SendRefused: a rate is used up, and too many sends wait.
            ProtocolError: it would wait, and is a malformed batch.
        """
        budgets = self._budgets(link, fields.topic)
        waits_ms = {budget: budget.wait_ms(now.mono_ms) for budget in budgets}
        exceeded = [budget for budget, wait_ms in waits_ms.items() if wait_ms]
        wait_ms = max([self.slowed.wait_ms(link, fields.topic, now.mono_ms), *waits_ms.values()])
        if not wait_ms:
            return False
        if all(budget.slows for budget in exceeded):
            messages = len(decode_batch(command.body)) if is_true(fields.batch) else 1
            if self.slowed.add(link, command, fields.topic, messages, budgets, wait_ms, now.mono_ms):
                for budget in exceeded[:1]:
                    self._quotas.slowed(budget)
                return True
        if not exceeded:
            raise SendRefused(ResponseCode.SYSTEM_BUSY, "too many sends wait for their limits")
        self._quotas.refused(exceeded[0])
        refusal = f"{exceeded[0].name} exceeds its limit, try again in {wait_ms} ms"
        if not self.slowed.add_refused(link, command, refusal, now.mono_ms):
            raise SendRefused(ResponseCode.SYSTEM_BUSY, refusal)
        return True

    def _refuse(self, command: Command, code: int, remark: str) -> _Response:
        answer = None if command.is_oneway else encode_command(command.answer(code, remark=remark))
        return answer, 0, False, 1

    def _store_any(self, link: Link, command: Command, fields: SendFields, now: Now) -> _Response:
        if self._state.refusal is not None:
            raise SendRefused(*self._state.refusal)
        topic, queue_id = self.admit(fields, command.body, now.wall_ms)
        if is_true(fields.batch):
            return self._store_batch(link, command, fields, topic, queue_id, now)
        return self._store_one(link, command, fields, topic, queue_id, now)

    def admit(self, fields: SendFields, body: bytes, wall_ms: int) -> SendPlace:
        """Check topic, queue, permission and size of a message; returns where it goes. May create the topic.

        Raises:
            SendRefused: the message is not accepted.
        """
        topic = self._admit(fields, wall_ms)
        queue_id = fields.queue_id
        nums = topic.config.write_queue_nums
        if queue_id >= max(nums, topic.config.read_queue_nums):
            raise SendRefused(
                ResponseCode.SYSTEM_ERROR, f"queue id {queue_id} is illegal: {fields.topic} has {nums} queues"
            )
        if queue_id < 0 and nums > 0:
            queue_id = self._state.random.randrange(nums)
        if queue_id < 0:
            raise SendRefused(ResponseCode.NO_PERMISSION, f"topic[{fields.topic}] has no queue to write to")
        if len(body) > self._state.config.message_bytes_max:
            raise SendRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the body has {len(body)} bytes, maxMessageSize is {self._state.config.message_bytes_max}",
            )
        return SendPlace(topic, queue_id)

    def _admit(self, fields: SendFields, wall_ms: int) -> Topic:
        name = fields.topic
        problem = topic_name_error(name)
        if problem is not None:
            raise SendRefused(ResponseCode.SYSTEM_ERROR, problem)
        if takes_no_sends(name):
            raise SendRefused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        topic = self._state.topics.get(name)
        unserved = self._state.topics.unserved_remark(name) if topic is None else None
        if unserved is not None:
            raise SendRefused(ResponseCode.NO_PERMISSION, unserved)
        if topic is None and name.startswith(RETRY_PREFIX):
            topic = self._state.own_topic(name, wall_ms)
        if topic is None:
            topic = self._state.topics.create_on_send(
                name, fields.default_topic, fields.default_topic_queue_nums, wall_ms
            )
        if topic is None:
            full = self._state.topics.full([internal_topic(name, 1)])
            if full is not None:
                raise SendRefused(ResponseCode.SYSTEM_ERROR, f"topic[{name}] cannot be created: {full}")
            raise SendRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist, apply first please! create it with `tandemq topic create {name}`",
            )
        if topic.config.order and not self._state.config.permission & _WRITE:
            raise SendRefused(
                ResponseCode.NO_PERMISSION, f"the broker[{self._state.config.broker_name}] accepts no messages"
            )
        if not topic.config.perm & _WRITE:
            raise SendRefused(
                ResponseCode.NO_PERMISSION, f"topic[{name}] accepts no messages: its permission lacks WRITE"
            )
        return topic

    def _store_one(
        self, link: Link, command: Command, fields: SendFields, topic: Topic, queue_id: int, now: Now
    ) -> _Response:
        state = self._state
        properties = decode_properties(fields.properties)
        waits = properties.pop("WAIT", "true").lower() != "false"
        properties.pop("__CRC32#", None)
        _check(property_problem(properties, fields.sys_flag))
        self._check_type(topic, properties)
        queue_id = self._prioritized(topic, queue_id, properties)
        half = is_half(properties, fields.reconsume_times)
        if fields.sys_flag & TRANSACTION_MASK and not half:
            raise SendRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"sysFlag {fields.sys_flag} marks a transaction, but the property {TRAN_MSG} is not true",
            )
        name, requested_id = fields.topic, queue_id
        if name.startswith(RETRY_PREFIX) and not name.startswith(DLQ_PREFIX):
            topic, queue_id = self._after_retry(command, fields, topic, queue_id, properties, now.wall_ms)
        out_ms = None
        if half:
            topic, queue_id = self._as_half(topic, queue_id, properties, now.wall_ms)
        elif delay_level(properties):
            topic, queue_id = self._state.redirect_delayed(topic, queue_id, properties)
        elif (out_ms := requested_time(properties, state.config, now.wall_ms)) is not None:
            topic, queue_id = self._state.as_timed(topic, queue_id, properties, out_ms, now.wall_ms)
        properties |= self._common
        unique = properties.get("UNIQ_KEY", "")
        stored = state.store.put(
            state.topics.queue(topic, queue_id), body=command.body, properties=encode_properties(properties).encode(),
            flag=fields.flag, sys_flag=fields.sys_flag & ~_BROKER_BITS, born_ms=fields.born_timestamp,
            born_host=link.born_host, store_ms=now.wall_ms, store_host=state.store_host,
            reconsume_times=fields.reconsume_times,
        )  # fmt: skip
        queue_offset, log_offset, size = stored
        handle = ""
        if half:
            state.note_half(stored, name)
        elif out_ms is not None:
            state.note_timed(stored, properties, out_ms)
            if unique and not name.startswith(RETRY_PREFIX):
                handle = encode_handle(name, state.config.broker_name, out_ms, unique)
        self._count(command.body)
        group = topic.config.topic_name.removeprefix(DLQ_PREFIX)
        if group != topic.config.topic_name:
            origin = properties.get("RETRY_TOPIC", name)
            state.dead_letters.note(group, origin, properties, fields.reconsume_times, log_offset, now.mono_ms)
        ids = message_id(state.store_host, log_offset)
        return self._ack(command, ids, requested_id, queue_offset, unique, log_offset + size, waits, handle=handle)

    def _prioritized(self, topic: Topic, queue_id: int, properties: dict[str, str]) -> int:
        """Return the queue that the priority of a message chooses; a message of another type loses its priority."""
        priority, name = priority_of(properties), topic.config.topic_name
        if priority is None or name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return queue_id
        if message_type(properties) != PRIORITY:
            del properties[PRIORITY_PROPERTY]
            return queue_id
        last = topic.config.write_queue_nums - 1
        return queue_id if last < 0 or name in self._state.topics.mappings.table else min(priority, last)

    def _after_retry(
        self, command: Command, fields: SendFields, topic: Topic, queue_id: int, properties: dict[str, str],
        wall_ms: int,
    ) -> tuple[Topic, int]:  # fmt: skip
        """Return where a consumer's own retry send goes: its retry topic, or after many attempts the dead letters."""
        group_name = fields.topic.removeprefix(RETRY_PREFIX)
        group = self._groups.find(group_name, wall_ms)
        if group is None:
            raise SendRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group_name}; create it first",
            )
        retries_max = group.retry_max_times
        if command.version >= VERSION_3_4_9 and fields.max_reconsume_times is not None:
            retries_max = fields.max_reconsume_times
        if fields.reconsume_times < retries_max:
            return topic, queue_id
        properties.pop("DELAY", None)
        return self._state.own_topic(dead_letter_topic(group_name), wall_ms), 0

    def _as_half(self, topic: Topic, queue_id: int, properties: dict[str, str], wall_ms: int) -> tuple[Topic, int]:
        """Return where a half message is stored; its properties get the topic and queue of the message."""
        state = self._state
        if state.config.reject_transactions:
            raise SendRefused(ResponseCode.NO_PERMISSION, "sending transaction messages is forbidden")
        if state.half_refusal is not None:
            raise SendRefused(ResponseCode.SYSTEM_BUSY, state.half_refusal)
        if not properties.get(PRODUCER_GROUP):
            raise SendRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"a transactional message needs its producer group, in {PRODUCER_GROUP}"
            )
        if delay_level(properties) or not TIMER_NAMES.isdisjoint(properties):
            raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, "a transactional message may not be delayed")
        _check(immunity_problem(properties))
        as_half(properties, topic.config.topic_name, queue_id)
        check_room(properties | self._common, CHECKED_BYTES_MAX, "a half message")
        return self._state.own_topic(HALF_TOPIC, wall_ms), 0

    def _store_batch(
        self, link: Link, command: Command, fields: SendFields, topic: Topic, queue_id: int, now: Now
    ) -> _Response:
        state = self._state
        common = decode_properties(fields.properties)
        waits = common.pop("WAIT", "true").lower() != "false"
        _check(property_problem(common, fields.sys_flag))
        if delay_level(common) or fields.topic.startswith(RETRY_PREFIX):
            raise SendRefused(
                ResponseCode.MESSAGE_ILLEGAL, "a batch may not be delayed and may not go to a retry topic"
            )
        if fields.sys_flag & TRANSACTION_MASK or is_half(common, fields.reconsume_times):
            raise SendRefused(
                ResponseCode.MESSAGE_ILLEGAL, "a batch may not be part of a transaction; send its messages one by one"
            )
        parts = decode_batch(command.body)
        out_ms = requested_time(common, state.config, now.wall_ms)
        requested_id = queue_id
        if out_ms is not None:
            topic, queue_id = self._state.as_timed(topic, queue_id, common, out_ms, now.wall_ms)
        set_here = self._common
        kept = {key: value for key, value in common.items() if key != "UNIQ_KEY" and key not in set_here}
        shared = encode_properties(kept | set_here).encode()
        longest = max([len(part.properties) for part in parts]) + 1 + len(shared) + CRC_PROPERTY_BYTES
        if longest > PROPERTIES_BYTES_MAX:
            raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, f"the properties of a message take {longest} bytes")
        queue = state.topics.queue(topic, queue_id)
        for part in parts:
            if state.config.message_type_check:
                self._check_type(topic, common | decode_properties(part.properties.decode("utf-8", "replace")))
            if may_ask(part.properties):
                asked = decode_properties(part.properties.decode("utf-8", "replace"))
                _check(part_problem(asked, is_timed=out_ms is not None))
        # A batch lies in one file. Besides its body, a message needs at most 113 bytes, shared properties and topic.
        state.store.log.reserve(len(command.body) + len(parts) * (113 + len(shared) + len(topic.encoded)))
        first = queue.next_offset
        placed = [self._store_part(link, fields, queue, part, shared, now) for part in parts]
        if out_ms is not None:
            for message in placed:
                state.note_timed(message, common, out_ms)
        ids = ",".join([message_id(state.store_host, message.log_offset) for message in placed])
        end = placed[-1].log_offset + placed[-1].size
        return self._ack(command, ids, requested_id, first, common.get("UNIQ_KEY", ""), end, waits, len(parts))

    def _store_part(
        self, link: Link, fields: SendFields, queue: ConsumeQueue, part: BatchPart, shared: bytes, now: Now
    ) -> AppendMessageResult:
        raw = part.properties
        if raw and raw[-1] != 2:
            raw += b"\x02"
        self._count(part.body)
        return self._state.store.put(
            queue, body=part.body, properties=raw + shared, flag=part.flag, sys_flag=fields.sys_flag & ~0x30,
            born_ms=fields.born_timestamp, born_host=link.born_host, store_ms=now.wall_ms,
            store_host=self._state.store_host, reconsume_times=fields.reconsume_times,
        )  # fmt: skip

    def _check_type(self, topic: Topic, properties: dict[str, str]) -> None:
        """Refuse a message that is not of its topic's type, if the setting asks for it."""
        if self._state.config.message_type_check:
            problem = type_problem(topic.config, properties)
            if problem is not None:
                raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, problem)

    def _count(self, body: bytes) -> None:
        self._state.count_message(len(body))

    def _ack(
        self, command: Command, ids: str, queue_id: int, queue_offset: int, unique: str, end: int,
        waits: bool, count: int = 1, handle: str = "",
    ) -> _Response:  # fmt: skip
        if command.is_oneway:
            return None, end, False, count
        fields = {
            **trace_fields(self._state.config), "msgId": ids, "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
        }  # fmt: skip
        if unique:
            fields["transactionId"] = unique
        if handle:
            fields["recallHandle"] = handle
        return encode_command(command.answer(ResponseCode.SUCCESS, fields=fields)), end, waits, count


def _check(problem: str | None) -> None:
    """Refuse a message with a problem, if there is one."""
    if problem is not None:
        raise SendRefused(ResponseCode.MESSAGE_ILLEGAL, problem)
