"""Ordered pops: a group has one batch of a queue at a time, until its messages are acknowledged or visible again.

    pop ──► batch ──► acknowledged from the first message on ──► the group's offset moves
               └► invisible time over ──► the queue may be popped again; its messages count one more attempt

An ordered pop makes no checkpoint: the group's offset stays where the batch begins. The batches are saved in
`consumerOrderInfo.json` as Java brokers write it, and copied to slaves, so that a new master knows what is handed out.

Source: docs/reference/pop.md; RocketMQ ConsumerOrderInfoManager.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile
from typing import Any

import msgspec

from tandemq.boundary import Now
from tandemq.broker.kernel.copied_tables import Polled, StreamedTable, Table
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.state.consumer_offsets import WHOLE
from tandemq.codec.ha import KIND_FEATURE_TABLES
from tandemq.codec.remoting.bodies import integer
from tandemq.codec.remoting.fastjson import dumps, dumps_java, loads
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.command import Command
from tandemq.model.pop import MESSAGES_MAX
from tandemq.storage.json_tables import TableFile

KIND = KIND_FEATURE_TABLES + 2
SAVE_MS = 10_000
FORGET_MS = 86_400_000
"""Time after which a batch is forgotten whose queue the group does not pop any more."""
FORGOTTEN_AT_ONCE = 4_096
"""Maximum number of them that are forgotten in one turn."""
BATCHES_MAX = 200_000
"""Maximum number of batches; beyond it the one that was popped longest ago is forgotten."""
VOID_MAX = 1_000
"""Void entries that the heap of times may have, besides one for each place."""
Place = tuple[str, str, int]
"""Topic, group and queue id."""


class OrderedBatch(msgspec.Struct, frozen=True):
    """What the last ordered pop of a queue handed out. A change makes another one: a worker may be saving this one."""

    pop_ms: int
    invisible_ms: int
    offsets: list[int]
    acked: int = 0
    """A bit for each message that is acknowledged."""
    visible_ms: dict[int, int] = {}
    """By queue offset: when a message is visible again, if a client has changed that."""
    attempts: dict[int, int] = {}
    """By queue offset: how often a message was handed out before."""
    attempt_id: str = ""
    popped_ms: int = 0
    """When the queue was popped last."""

    def blocks_until(self) -> int:
        """Return the calendar time from which on the queue may be popped; 0: at once."""
        left = [offset for bit, offset in enumerate(self.offsets) if not self.acked >> bit & 1]
        return max((self.visible_ms.get(offset, self.pop_ms + self.invisible_ms) for offset in left), default=0)

    def next_offset(self) -> int:
        """Return the queue offset at which the group reads on: that of the first message without acknowledgement."""
        for bit, offset in enumerate(self.offsets):
            if not self.acked >> bit & 1:
                return offset
        return self.offsets[-1] + 1

    def as_json(self) -> dict[str, Any]:
        """Return the batch in the form of the file."""
        first = self.offsets[0]
        return {
            "a": self.attempt_id or None,
            "cm": self.acked,
            "i": self.invisible_ms,
            "l": self.popped_ms,
            "o": [first, *[offset - first for offset in self.offsets[1:]]],
            "oc": self.attempts,
            "ot": self.visible_ms,
            "popTime": self.pop_ms,
        }


def _batch(raw: Any) -> OrderedBatch:
    if not isinstance(raw, dict) or not isinstance(raw.get("o"), list) or not 0 < len(raw["o"]) <= MESSAGES_MAX:
        raise ProtocolError(f"a batch of 1 to {MESSAGES_MAX} offsets is expected")
    first, *distances = [integer(item, "o") for item in raw["o"]]
    return OrderedBatch(
        integer(raw.get("popTime"), "popTime"),
        integer(raw.get("i"), "i"),
        [first, *[first + distance for distance in distances]],
        integer(raw.get("cm"), "cm"),
        _numbers(raw.get("ot")),
        _numbers(raw.get("oc")),
        str(raw.get("a") or ""),
        integer(raw.get("l"), "l"),
    )


def _numbers(raw: Any) -> dict[int, int]:
    if not isinstance(raw, dict | None):
        raise ProtocolError("an object of numbers by offset is expected")
    return {int(offset): integer(value, "number") for offset, value in (raw or {}).items()}


def _batches(table: dict[str, Any]) -> dict[Place, OrderedBatch]:
    """Return the batches in a table.

    Raises:
        ProtocolError, ValueError, AttributeError: it is malformed.
    """
    found: dict[Place, OrderedBatch] = {}
    for key, queues in (table.get("table") or {}).items():
        topic, _, group = key.rpartition("@")
        for queue_id, raw in queues.items():
            found[topic, group, int(queue_id)] = _batch(raw)
    return found


def _encoded(snapshot: dict[str, Any]) -> bytes:
    """Return the content of the file, encoded in steps, so that the broker goes on meanwhile: a line for each batch."""
    lines: dict[str, list[bytes]] = {}
    for (topic, group, queue_id), batch in snapshot[_BATCHES].items():
        lines.setdefault(f"{topic}@{group}", []).append(b'"%d":%b' % (queue_id, dumps(batch.as_json())))
    return b'{"table":{\n%b}}' % b",\n".join(
        b"%b:{\n%b}" % (dumps(key), b",\n".join(own)) for key, own in lines.items()
    )


_BATCHES = "batches"
"""In a snapshot for `_encoded`: the batches by place."""
FILE = TableFile(
    "consumerOrderInfo.json", _batches, rebuilt="messages of ordered pops may be handed out again", encode=_encoded
)


class Orders(Feature):
    """The batches of all ordered pops, and of those of a master that this broker copies."""

    def __init__(self, kernel: Kernel) -> None:
        """Load the file, and save it from time to time."""
        self._saver = kernel.saver
        self.table: dict[Place, OrderedBatch] = _batches(FILE.load(kernel.disk))
        """The one that was popped longest ago first."""
        self._changes: dict[Place, None] | None = None
        """Changed since the table was published last; None: that is not wanted."""
        self._is_dirty = False
        self._unlocks: list[tuple[int, Place]] = []
        """Heap of the times at which queues may be popped again; those that `_unlock_ms` does not have are void."""
        self._unlock_ms: dict[Place, int] = {}
        """The earliest time of each place in the heap."""
        kernel.every(SAVE_MS, self._clean)

    def tables(self) -> tuple[Table, ...]:
        """See `Feature`."""
        return (OrdersTable(self),)

    def is_blocked(self, place: Place, offset: int, attempt_id: str, wall_ms: int) -> bool:
        """Whether messages of the last batch are still invisible; the client that got it may pop it again.

        `offset`: where the group reads on; if it is not that of the batch, an operator has set it.
        """
        batch = self.table.get(place)
        if batch is None or offset != batch.next_offset() or (attempt_id and attempt_id == batch.attempt_id):
            return False
        return wall_ms < batch.blocks_until()

    def popped(
        self, place: Place, offsets: Sequence[int], attempt_id: str, invisible_ms: int, now: Now
    ) -> OrderedBatch:
        """Note a batch that is handed out, and return it with the attempts of its messages."""
        before = self.table.pop(place, None)
        attempts: dict[int, int] = {}
        if before is not None and attempt_id and attempt_id == before.attempt_id:
            attempts = before.attempts
        elif before is not None:
            known = set(before.offsets)
            attempts = {offset: before.attempts.get(offset, 0) + 1 for offset in offsets if offset in known}
        batch = OrderedBatch(now.wall_ms, invisible_ms, list(offsets), 0, {}, attempts, attempt_id, now.wall_ms)
        self.table[place] = batch
        while len(self.table) > BATCHES_MAX:
            self.forget(next(iter(self.table)))
        self._note(place, batch)
        return batch

    def changed_time(self, place: Place, offset: int, visible_ms: int) -> None:
        """Note that a client has changed when a message of a batch is visible again."""
        before = self.table[place]
        self._change(place, msgspec.structs.replace(before, visible_ms=before.visible_ms | {offset: visible_ms}))

    def _change(self, place: Place, batch: OrderedBatch) -> OrderedBatch:
        self.table[place] = batch
        self._note(place, batch)
        return batch

    def acknowledged(self, place: Place, offset: int) -> OrderedBatch:
        """Note that a message of a batch is acknowledged, and return the batch."""
        before = self.table[place]
        acked = before.acked | 1 << before.offsets.index(offset)
        return self._change(place, msgspec.structs.replace(before, acked=acked))

    def _note(self, place: Place, batch: OrderedBatch) -> None:
        self._changed(place)
        until_ms = batch.blocks_until()
        if until_ms < self._unlock_ms.get(place, until_ms + 1):
            self._unlock_at(place, until_ms)

    def _unlock_at(self, place: Place, until_ms: int) -> None:
        self._unlock_ms[place] = until_ms
        heappush(self._unlocks, (until_ms, place))
        if len(self._unlocks) > 2 * len(self._unlock_ms) + VOID_MAX:
            self._unlocks = [(time_ms, place) for place, time_ms in self._unlock_ms.items()]
            heapify(self._unlocks)

    def take_unlocked(self, wall_ms: int) -> list[str]:
        """Return the topics of queues that may be popped again since the last call."""
        found: dict[str, None] = {}
        while self._unlocks and self._unlocks[0][0] <= wall_ms:
            noted_ms, place = heappop(self._unlocks)
            if self._unlock_ms.get(place) != noted_ms:
                continue
            del self._unlock_ms[place]
            batch = self.table.get(place)
            if batch is None:
                continue
            if (until_ms := batch.blocks_until()) > wall_ms:
                self._unlock_at(place, until_ms)
            else:
                found[place[0]] = None
        return list(found)

    def forget(self, place: Place) -> None:
        """Forget the batch of a queue: an operator has set the group's offset."""
        if self.table.pop(place, None) is not None:
            self._changed(place)

    def _changed(self, place: Place) -> None:
        self._is_dirty = True
        if self._changes is not None:
            self._changes[place] = None

    @property
    def has_changes(self) -> bool:
        """Whether `take_changes` has any."""
        return bool(self._changes)

    def collect_changes(self, *, is_wanted: bool) -> None:
        """Start or stop collecting changes for `take_changes`."""
        self._changes = {} if is_wanted else None

    def take_changes(self) -> bytes | None:
        """Return what has changed since the last call, in the form of the file; None if nothing has."""
        if not self._changes:
            return None
        places, self._changes = list(self._changes), {}
        return dumps_java(self.as_json(places))

    def topic_removed(self, topic: str, _now: Now) -> None:
        """See `Feature`."""
        for place in [place for place in self.table if place[0] == topic]:
            self.forget(place)

    def group_removed(self, group: str, _now: Now) -> None:
        """See `Feature`."""
        for place in [place for place in self.table if place[1] == group]:
            self.forget(place)

    def _clean(self, now: Now) -> None:
        # Deleting the first key of a dict again and again takes longer each time, so they are all found before.
        overdue = takewhile(lambda item: now.wall_ms - item[1].popped_ms >= FORGET_MS, self.table.items())
        for place, _ in list(islice(overdue, FORGOTTEN_AT_ONCE)):
            self.forget(place)
        self.save_tables()

    def save_tables(self) -> None:
        """See `Feature`."""
        if self._is_dirty:
            self._saver.later(FILE, lambda: {_BATCHES: self.table.copy()}, is_awaited=False)
            self._is_dirty = False

    def as_json(self, places: Sequence[Place] | None = None) -> dict[str, Any]:
        """Return the table, or the batches of some places, in the form of the file; null: forgotten."""
        found: dict[str, dict[int, Any]] = {}
        for topic, group, queue_id in self.table if places is None else places:
            batch = self.table.get((topic, group, queue_id))
            found.setdefault(f"{topic}@{group}", {})[queue_id] = None if batch is None else batch.as_json()
        return {"table": found}

    def take(self, table: dict[str, Any], *, is_whole: bool) -> None:
        """Take batches of a master.

        Raises:
            ProtocolError: they are malformed.
        """
        try:
            if is_whole:
                self.table = _batches(table)
            else:
                for key, queues in (table.get("table") or {}).items():
                    topic, _, group = key.rpartition("@")
                    for queue_id, raw in queues.items():
                        self.table.pop((topic, group, int(queue_id)), None)
                        if raw is not None:
                            self.table[topic, group, int(queue_id)] = _batch(raw)
        except (ValueError, AttributeError) as error:
            raise ProtocolError(f"batches of ordered pops: {error}") from error
        self._is_dirty = True


class OrdersTable(StreamedTable):
    """The batches, as slaves copy them."""

    code = Code.TANDEM_POP_ORDERS
    is_optional = True
    kind = KIND
    is_needed = False
    is_waited_for = False

    def __init__(self, orders: Orders) -> None:
        """Begin."""
        self._orders = orders

    def polled(self, _command: Command) -> bytes:
        """See `Table`."""
        return self.whole()

    def take_polled(self, polled: Polled) -> None:
        """See `Table`."""
        self._orders.take(loads(polled.body, is_trusted=True), is_whole=True)

    @property
    def has_changes(self) -> bool:
        """See `Table`."""
        return self._orders.has_changes

    def collect_changes(self, *, is_wanted: bool) -> None:
        """See `Table`."""
        self._orders.collect_changes(is_wanted=is_wanted)

    def take_changes(self) -> bytes | None:
        """See `Table`."""
        return self._orders.take_changes()

    def whole(self) -> bytes:
        """See `Table`."""
        return dumps(self._orders.as_json() | {WHOLE: True})

    def take(self, table: dict[str, Any], _payload: bytes) -> None:
        """See `Table`."""
        self._orders.take(table, is_whole=bool(table.get(WHOLE)))
