"""Application that consumes through the real client and checks its guarantees.

I4   within an assignment of a queue offsets grow; orderly: one message at a time
I7   a committed offset never passes an unfinished message, and does not move back
I13  a message sent back is redelivered or becomes a dead letter                              (see `checkers.final`)
I22  with a window of duplicates: no message is delivered again that is in it; what is skipped was finished
I14  when the connection to a master breaks, reading continues at a connected slave, long before the next poll of
routes
"""

from collections import deque
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from lab.sim.checkers.deliveries import RECONSUME_MAX, Deliveries
from lab.sim.checkers.model import TOPICS, BrokerQueue, QueuePlace
from lab.sim.workload.application import Application, ApplicationContext
from lab.sim.world.world import Violation
from tandemq.boundary import Event, Now, Turn
from tandemq.client.consumer.delivery import Delivery
from tandemq.client.consumer.queues.assigned_queue import AssignedQueue, AssignmentState
from tandemq.client.core.settings import ConsumeFrom, ConsumerOptions
from tandemq.client.node import ClientNode
from tandemq.model.group import Sql
from tandemq.model.message import MessageQueue

WINDOWS = (0, 3, 1_000)
"""Windows of duplicates, messages per queue."""
MOVE_MS = 1_500
"""Time limit for reading a lost master's queues elsewhere."""


class _Commit(NamedTuple):
    """An offset committed at a broker, and the generation of the process queue it comes from."""

    generation: int
    offset: int
    address: str
    time_us: int

    def moves_back(self, before: "_Commit") -> bool:
        """Return whether this is a lower offset of the same generation, committed later.

        Commits that one turn sends to two brokers are at once: which comes first depends on the order of connections.
        """
        is_at_once = self.address != before.address and self.time_us == before.time_us
        return self.generation == before.generation and self.offset < before.offset and not is_at_once


class ConsumingApplication(Application):
    """One member of a consumer group."""

    def __init__(
        self,
        context: ApplicationContext,
        name: str,
        ip: str,
        random: Random,
        *,
        group: str,
        expression: str | Sql,
        orderly: bool,
        suspend_ms: int,
    ) -> None:
        """`expression`: tags as `A || B`, `*`, or SQL92. `suspend_ms`: long-poll time."""
        super().__init__(context, name, ip, random)
        # Drawn apart, so that the other draws of a seed do not depend on it.
        self._window = Random(f"duplicates {random.getstate()[1][:4]}").choice(WINDOWS)
        self._expression = expression
        self._options = ConsumerOptions(
            group=group,
            orderly=orderly,
            consume_from=ConsumeFrom.FIRST,
            max_reconsume_times=RECONSUME_MAX,
            pull_messages=16,
            long_poll_ms=suspend_ms,
            pull_timeout_ms=suspend_ms + 2_000,
            prefetch_messages=random.choice((8, 1_000)),
            rebalance_ms=8_000,
            commit_ms=3_000,
            lock_renew_ms=5_000,
            lock_live_ms=8_000,
            suspend_ms=500,
            error_pause_ms=500,
            duplicate_window=self._window,
        )
        self._deliveries = Deliveries(context.world, context.expected, name, group)
        self._highest: dict[AssignedQueue, tuple[int, int]] = {}
        """Assigned queue to (generation of its process queue, highest offset delivered)."""
        self._reported: dict[AssignedQueue, _Commit] = {}
        """Assigned queue to the highest offset committed."""
        self._generations: dict[AssignedQueue, int] = {}
        """Assigned queue to the generation of its process queue after the last turn."""
        self._open: dict[MessageQueue, dict[int, Delivery]] = {}
        """Unfinished deliveries."""
        self._sent_back: set[tuple[MessageQueue, int]] = set()
        self._in_window: dict[MessageQueue, deque[str]] = {}
        """Keys of the messages finished last, by queue: duplicates of them must be skipped."""
        self.is_hasty = False
        """Whether messages are finished at once, so that a backlog ends in time; set by the owner."""
        self.moves = 0
        """Number of times that reading had to move to a slave."""
        self.monitor.on_commit = self._committed

    def begin(self, client: ClientNode, now: Now) -> None:
        """See `Application`."""
        for known in (self._highest, self._reported, self._generations, self._open, self._sent_back, self._in_window):
            known.clear()
        self._consumer = client.push_consumer(self._options, now)
        self._consumer.on_skipped = self._skipped
        self._consumer.on_returned = self._returned
        for topic in TOPICS:
            self._consumer.subscribe(topic, self._expression, now)

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        """See `boundary.Node`."""
        turn = super().turn(received, events, now)
        self._generations = {
            share: share.process_queue.generation for share in self._consumer.rebalance_service.active()
        }
        return turn

    def act(self, now: Now) -> bool:
        """Take the deliveries there are."""
        taken = False
        while not self.is_ending and (delivery := self._consumer.next_delivery()) is not None:
            taken = True
            self._take(delivery, now)
        return taken

    def _take(self, delivery: Delivery, now: Now) -> None:
        message, queue, share = delivery.message, delivery.queue, delivery.assigned
        assert share is not None, "no consumer takes messages"
        place = QueuePlace(queue.broker_name, queue.topic, queue.queue_id, message.queue_offset)
        address = self.monitor.read_from.get(place, share.puller.read_from)
        wanted = self._deliveries.given(address, queue.broker_name, queue.topic, message)
        self._judge_order(share, queue, message.queue_offset)
        if any(wanted.key in keys for keys in self._in_window.values()):
            raise Violation(
                "I22", f"{self.name} was given {queue}@{message.queue_offset} and has finished {wanted.key}"
            )
        self._open.setdefault(queue, {})[message.queue_offset] = delivery
        if self._deliveries.is_rejected(wanted, message):
            self._sent_back.add((queue, message.queue_offset))
            ticket = self._consumer.retry(delivery, now, self.random.choice((0, 1)))
            ticket.then(lambda _: self._end(delivery))
        elif self.is_hasty or self.random.random() < 0.8:
            self._finish(delivery, wanted.key, now)
        else:
            self.after(self.random.randrange(50, 2_000), now, partial(self._finish, delivery, wanted.key))

    def _finish(self, delivery: Delivery, key: str, now: Now) -> None:
        self._deliveries.finished.add(key)
        if self._window and not any(key in keys for keys in self._in_window.values()):
            self._in_window.setdefault(delivery.queue, deque(maxlen=self._window)).append(key)
        self._end(delivery)
        self._consumer.ack(delivery, now)

    def _end(self, delivery: Delivery) -> None:
        opened = self._open.get(delivery.queue, {})
        if opened.get(delivery.message.queue_offset) is delivery:
            del opened[delivery.message.queue_offset]

    def _returned(self, delivery: Delivery) -> None:
        """Forget an unfinished message that is in the retry topic now."""
        self._open.get(delivery.queue, {}).pop(delivery.message.queue_offset, None)

    # Checks.

    def _skipped(self, delivery: Delivery) -> None:
        key = delivery.message.unique_key
        if key not in self._deliveries.finished:
            raise Violation(
                "I22", f"{self.name} skips {delivery.queue}@{delivery.message.queue_offset}, unfinished {key}"
            )
        self.context.world.fold("skip", self.name, delivery.message.queue_offset, key)

    def _judge_order(self, share: AssignedQueue, queue: MessageQueue, queue_offset: int) -> None:
        generation, highest = self._highest.get(share, (-1, -1))
        if generation == share.process_queue.generation and queue_offset <= highest:
            if (queue, queue_offset) not in self._sent_back:
                raise Violation("I4", f"{self.name} was given {queue}@{queue_offset} after {highest}")
        else:
            self._highest[share] = (share.process_queue.generation, queue_offset)
        if self._options.orderly and self._unfinished(queue):
            raise Violation("I4", f"{self.name} consumes {queue} in order, and was given @{queue_offset} too early")

    def _unfinished(self, queue: MessageQueue) -> list[int]:
        return [offset for offset, delivery in self._open.get(queue, {}).items() if delivery.is_ours]

    def _committed(self, place: BrokerQueue, offset: int, address: str) -> None:
        group, topic, queue_id = place
        queue = MessageQueue(topic, group, queue_id)
        share = self._consumer.rebalance_service.get(queue)
        if share is None or share.state is not AssignmentState.ACTIVE:
            return
        if self._generations.get(share) not in (None, share.process_queue.generation):
            return  # committed in the turn in which the queue was reassigned, before that
        commit = _Commit(share.process_queue.generation, offset, address, self.context.world.now_us)
        unfinished = self._unfinished(queue)
        if unfinished and min(unfinished) < offset:
            raise Violation("I7", f"{self.name} commits {offset} for {queue}, and has not finished @{min(unfinished)}")
        before = self._reported.get(share)
        if before is not None and commit.moves_back(before):
            raise Violation("I7", f"{self.name} commits {offset} for {queue} after {before.offset}")
        if before is None or before.generation != commit.generation or before.offset <= offset:
            self._reported[share] = commit

    def lost(self, address: str, now: Now) -> None:
        """See `Application`: if it was a master, its queues must be read from a slave soon."""
        group, broker_id = self.context.members[address]
        links = self.client.remoting
        slaves = {
            slave: link
            for slave, link in self.monitor.open_links.items()
            if self.context.members[slave].group == group and not links.is_down(slave)
        }
        shares = [share for share in self._consumer.rebalance_service.active() if share.queue.broker_name == group]
        if broker_id == 0 and shares and slaves and not self.is_ending:
            self.after(MOVE_MS, now, partial(self._judge_move, address, shares, slaves))

    def _judge_move(self, master: str, shares: list[AssignedQueue], slaves: dict[str, int], _now: Now) -> None:
        there = [slave for slave, link in slaves.items() if self.monitor.open_links.get(slave) == link]
        if master in self.monitor.open_links or not there or self.is_ending:
            return
        for share in shares:
            queue = share.queue
            asked = self.monitor.asked.get(BrokerQueue(queue.broker_name, queue.topic, queue.queue_id), 0)
            if share.state is AssignmentState.ACTIVE and share.process_queue.has_room:
                self.moves += 1
                if asked == 0:
                    raise Violation(
                        "I14",
                        f"{self.name} lost {master} {MOVE_MS} ms ago and still does not read "
                        f"{queue} from {', '.join(there)}",
                    )
