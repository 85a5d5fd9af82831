"""Raw consumers that pop: members of a group that is assigned no queues.

    pop at each group's master ─► each message: acknowledge, alone or with others ─► the next pop
                                              └► change its invisible time, or leave it: it comes back

Every record is checked on arrival, as for consumers that pull; `checkers.pops` judges what comes back and when.
"""

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import NamedTuple

from msgspec import structs

from lab.pops import batch_ack_body, handle_of
from lab.sim.checkers.deliveries import Deliveries
from lab.sim.checkers.model import POP_GROUP, TOPICS, ExpectedState
from lab.sim.checkers.pops import Hold, PopChecks
from lab.sim.workload.group_clients import MemberPicker, OnResponse
from lab.sim.workload.raw_client import RawClient, Then
from lab.sim.world.world import Violation, World
from tandemq.codec.record.record import decode_message, parse_record, record_fault
from tandemq.codec.remoting.pops import PopQuery, pop_request
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import StoredMessage
from tandemq.model.pop import Handle, pop_retry_topic

ASK_MS = 1_500
POLL_MS = 3_000
IDLE_MS = 300
LEFT, CHANGED, TOGETHER = 0.25, 0.1, 0.3
"""Shares of the messages that are left, that get another invisible time, and that are acknowledged with others."""
CHANGE_MARGIN_MS = 1_000
"""How long before its end the invisible time of a message is changed at the latest."""


class _Popped(NamedTuple):
    handle: Handle
    topic: str
    """In which the message lies."""
    hold: Hold


class RawPopConsumer(RawClient):
    """One member of the group."""

    def __init__(
        self,
        world: World,
        expected: ExpectedState,
        checks: PopChecks,
        name: str,
        random: Random,
        name_servers: tuple[str, ...],
        *,
        invisible_ms: tuple[int, int],
    ) -> None:
        """`invisible_ms`: shortest and longest time that messages are invisible."""
        super().__init__(name, random, name_servers)
        self._world = world
        self._expected = expected
        self._checks = checks
        self._invisible_ms = invisible_ms
        self._deliveries = Deliveries(world, expected, name, POP_GROUP)
        self._polled: set[tuple[str, str]] = set()
        """Broker groups and topics with a pop that has no answer yet."""
        self.is_hasty = False
        """Whether every message is acknowledged from now on."""

    def begin(self) -> None:
        """Fetch routes, begin to pop."""
        self._look()
        self.after(IDLE_MS, self._pop_all)

    def _look(self) -> None:
        for topic in TOPICS:
            self.fetch_route(topic)
        self.after(700 if TOPICS[0] not in self.routes else 5_000, self._look)

    def _pop_all(self) -> None:
        for topic in TOPICS:
            for group in self.groups(topic):
                if (group, topic) not in self._polled:
                    self._pop(group, topic)
        self.after(IDLE_MS, self._pop_all)

    def groups(self, topic: str) -> list[str]:
        """Return the broker groups with a topic."""
        route = self.routes.get(topic)
        return [] if route is None else sorted(name for name, members in route.members.items() if 0 in members)

    def address_of(self, group: str) -> str:
        """Return the address of the broker to ask."""
        return next(route.members[group][0] for route in self.routes.values() if 0 in route.members.get(group, {}))

    # Pops.

    def _pop(self, group: str, topic: str) -> None:
        self._polled.add((group, topic))
        invisible_ms, address = self.random.randrange(*self._invisible_ms), self.address_of(group)
        most = self.random.choice((1, 8, 32))
        query = PopQuery(POP_GROUP, topic, most, invisible_ms, "*", "TAG", starts_at_end=False)
        command, sent_us = pop_request(query, POLL_MS), self._world.now_us
        self.ask(address, command, POLL_MS + ASK_MS, partial(self._popped, group, topic, address, sent_us))

    def _popped(self, group: str, topic: str, address: str, sent_us: int, answer: Command | None) -> None:
        self._polled.discard((group, topic))
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return
        taken: list[_Popped] = []
        for message in self._messages(address, answer.body):
            handle = handle_of(message, answer.fields, group)
            stored_in = pop_retry_topic(POP_GROUP, topic, handle.kind)
            as_stored = structs.replace(message, queue_id=handle.queue_id, queue_offset=handle.offset)
            wanted = self._deliveries.given(address, group, stored_in, as_stored)
            taken.append(_Popped(handle, stored_in, self._checks.given(group, wanted, sent_us, handle.invisible_ms)))
        self._work(group, topic, taken)

    def _messages(self, address: str, body: bytes) -> Iterator[StoredMessage]:
        """Yield the messages of a response; none that has a bit flipped at rest: it comes back.

        Raises:
            Violation: I10.
        """
        position = 0
        while position < len(body):
            record = parse_record(body, position, len(body))
            fault = record if isinstance(record, str) else None
            if not isinstance(record, str):
                fault = record_fault(body, position, record.size, record.body_start, record.body_end, record.body_crc)
            if isinstance(record, str) or fault is not None:
                if self._expected.has_bit_rot(address):
                    return
                raise Violation("I10", f"{address} gave {self.name} a corrupt record: {fault}")
            try:
                yield decode_message(body, position, len(body))
            except ProtocolError as error:
                raise Violation("I10", f"{address} gave {self.name} an unreadable record: {error}") from error
            position += record.size

    # What becomes of messages.

    def _work(self, group: str, topic: str, taken: list[_Popped]) -> None:
        together: list[_Popped] = []
        for popped in taken:
            draw = 1.0 if self.is_hasty else self.random.random()
            if draw < LEFT:
                continue
            if draw < LEFT + CHANGED:
                self._change(group, popped)
            elif self.is_hasty or draw < LEFT + CHANGED + TOGETHER:
                together.append(popped)
            else:
                delay_ms = self.random.choice((1, 1, 200, self._invisible_ms[1]))
                self.after(delay_ms, partial(self._ack, group, popped))
        if together:
            self._ack_together(group, topic, together)

    def _fields_of(self, popped: _Popped) -> dict[str, str]:
        return {
            "consumerGroup": POP_GROUP,
            "topic": popped.topic,
            "queueId": str(popped.handle.queue_id),
            "extraInfo": str(popped.handle),
            "offset": str(popped.handle.offset),
        }

    def _ack(self, group: str, popped: _Popped) -> None:
        self._checks.asked(popped.hold)
        command = Command(Code.ACK_MESSAGE, fields=self._fields_of(popped))
        self.ask(self.address_of(group), command, ASK_MS, partial(self._acked, [popped]))

    def _ack_together(self, group: str, topic: str, taken: list[_Popped]) -> None:
        for popped in taken:
            self._checks.asked(popped.hold)
        body = batch_ack_body(POP_GROUP, topic, group, [popped.handle for popped in taken])
        command = Command(Code.BATCH_ACK_MESSAGE, body=body)
        self.ask(self.address_of(group), command, ASK_MS, partial(self._acked, taken))

    def _acked(self, taken: list[_Popped], answer: Command | None) -> None:
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            for popped in taken:
                self._checks.confirmed(popped.hold)
                self._deliveries.finished.add(popped.hold.key)

    def _change(self, group: str, popped: _Popped) -> None:
        """Request another invisible time, and acknowledge the message with its new handle."""
        hold, now_us = popped.hold, self._world.now_us
        invisible_ms = self.random.randrange(*self._invisible_ms)
        if hold.until_us - now_us < CHANGE_MARGIN_MS * 1_000:
            return
        before_us = hold.until_us
        self._checks.changed(hold, now_us, invisible_ms)
        command = Command(
            Code.CHANGE_MESSAGE_INVISIBLETIME,
            fields=self._fields_of(popped) | {"invisibleTime": str(invisible_ms)},
        )
        then = partial(self._changed, group, popped, before_us, now_us, invisible_ms)
        self.ask(self.address_of(group), command, CHANGE_MARGIN_MS, then)

    def _changed(
        self, group: str, popped: _Popped, before_us: int, sent_us: int, invisible_ms: int, answer: Command | None
    ) -> None:
        if answer is None or answer.code != ResponseCode.SUCCESS or self._world.now_us >= before_us:
            return
        self._checks.renewed(popped.hold, sent_us, invisible_ms)
        fields, old = answer.fields, popped.handle
        handle = old._replace(
            start_offset=old.offset,
            pop_ms=int(fields["popTime"]),
            invisible_ms=int(fields["invisibleTime"]),
            revive_queue=int(fields["reviveQid"]),
        )
        if self.is_hasty or self.random.random() < 0.5:
            self._ack(group, popped._replace(handle=handle))


class GroupPopConsumer(RawPopConsumer):
    """A member of the group at groups with a registry: it asks every broker, also those that should refuse."""

    def __init__(
        self,
        world: World,
        expected: ExpectedState,
        checks: PopChecks,
        name: str,
        random: Random,
        members: MemberPicker,
        on_response: OnResponse,
        *,
        invisible_ms: tuple[int, int],
    ) -> None:
        """`on_response` is called with every response."""
        super().__init__(world, expected, checks, name, random, (), invisible_ms=invisible_ms)
        self._members = members
        self._on_response = on_response

    def begin(self) -> None:
        """Begin to pop."""
        self.after(IDLE_MS, self._pop_all)

    def groups(self, topic: str) -> list[str]:  # noqa: ARG002
        """See `RawPopConsumer`."""
        return sorted(self._members.addresses)

    def address_of(self, group: str) -> str:
        """See `RawPopConsumer`."""
        return self._members.choose(group)

    def ask(self, address: str, command: Command, timeout_ms: int, then: Then) -> int:
        """Send a request; its response is passed to the checkers too. After a refusal the next member is asked."""
        sent_us = self._world.now_us

        def answered(answer: Command | None) -> None:
            group = next(name for name, found in self._members.addresses.items() if address in found)
            if answer is None or answer.code == ResponseCode.NO_PERMISSION:
                self._members.bad(group, address)
            else:
                self._members.good(group, address)
                self._on_response(address, command, sent_us, answer)
            then(answer)

        return super().ask(address, command, timeout_ms, answered)
