"""The history of a run for the independent judge, and a reader that polls every queue from its beginning.

    chaos.history, transactions, pops, filters ─► Recorder ─► HISTORY.jsonl ─► judge

The clock is the monotonic one, which all threads of the clients share. Messages are named by their bodies, queues by
topic, group and number; a group of the run is one broker to the judge, whichever member answers.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any

from judge.writing import HistoryWriter, hash_of
from tandemq import PullConsumer
from tandemq.errors import TandemError
from tandemq.model.message import MessageQueue
from tandemq.model.topic import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

SENDS_MAX = 16
"""How often a client sends a message at most, the attempts of a proxy included."""
READER = "chaos-reader"
"""Process and group of the reader."""
_POLL_S = 0.2
_PAUSE_S = 0.5


def now_ms() -> float:
    """Return the time of the history."""
    return time.monotonic() * 1_000


def mono_ms_of(at: float) -> float:
    """Return a calendar time, seconds since 1970, as time of the history."""
    return now_ms() + (at - time.time()) * 1_000


def content_hash(body: str, tag: str) -> str:
    """Return the hash of what must not change."""
    return hash_of(body.encode(), tag.encode())


class Recorder:
    """Writes what the clients of one group do; threads may share it."""

    def __init__(
        self,
        file: IO[str],
        topic: str,
        broker: str,
        *,
        run: str,
        system: str,
        promises: Mapping[str, Any],
        clock: Callable[[], float] = now_ms,
    ) -> None:
        """`broker`: name of the group. `promises`: see `judge.history.Promises`. `clock`: milliseconds."""
        self.writer = HistoryWriter(file, clock, run=run, system=system, promises=promises)
        self._topic = topic
        self.broker = broker
        """Name of the group of brokers."""
        self._sends: dict[str, tuple[str, int]] = {}
        self._recalls: dict[str, int] = {}
        self._read: set[str] = set()
        """Bodies that the reader has got."""

    def queue(self, queue_id: int, topic: str = "") -> str:
        """Return the name of a queue."""
        return f"{topic or self._topic}/{self.broker}/{queue_id}"

    def sending(
        self,
        process: str,
        body: str,
        *,
        due: float = 0.0,
        is_timed: bool = False,
        is_half: bool = False,
        sends: int = SENDS_MAX,
    ) -> None:
        """Record that a producer sends a message.

        Args:
            process: the producer.
            body: of the message.
            due: earliest delivery in monotonic seconds, 0 if at once.
            is_timed: whether it has a time, and no delay level.
            is_half: whether it is a half message.
            sends: how often the client sends it at most.
        """
        fields: dict[str, Any] = {"tx": True} if is_half else {}
        t = now_ms()
        if due and is_timed:
            fields["due"] = due * 1_000
        elif due:
            fields["delay_ms"] = max(0.0, due * 1_000 - t)
        digest = content_hash(body, process)
        op = self.writer.invoke(process, "send", t=t, id=body, topic=self._topic, hash=digest, sends=sends, **fields)
        self._sends[body] = process, op

    def answered(self, body: str, status: str, queue: str = "", offset: int | None = None) -> None:
        """Record a response that says that the message is stored."""
        process, op = self._sends.pop(body)
        self.writer.end(process, "send", op, status=status, q=queue or None, offset=offset)

    def failed(self, body: str) -> None:
        """Record a send without a response that says so: the message may be stored."""
        process, op = self._sends.pop(body)
        self.writer.end(process, "send", op, "unknown")

    def answered_waiting(self, body: str, status: str, queue_id: int, offset: int, *, is_timed: bool) -> None:
        """Record such a response for a delayed or timed message."""
        self.answered(body, status, self.queue(queue_id, TIMER_TOPIC if is_timed else SCHEDULE_TOPIC), offset)

    def half_stored(self, body: str) -> None:
        """Record such a response for a half message."""
        self.answered(body, "SEND_OK", self.queue(0, HALF_TOPIC))

    def decided(self, process: str, body: str, *, is_commit: bool) -> None:
        """Record that a producer decides a transaction."""
        self.writer.invoke(process, "end", id=body, outcome="commit" if is_commit else "rollback")

    def recalling(self, process: str, body: str) -> None:
        """Record that a producer takes a timed message back."""
        self._recalls[body] = self.writer.invoke(process, "recall", id=body)

    def recalled(self, process: str, body: str) -> None:
        """Record that this was confirmed."""
        self.writer.end(process, "recall", self._recalls.pop(body))

    def delivered(self, group: str, queue: str, offset: int, body: str, tag: str = "") -> None:
        """Record a delivery to a group whose members do not tell their assignments."""
        message: list[object] = [offset, body, content_hash(body, tag)] if tag else [offset, body]
        self.writer.note(group, "poll", group=group, q=queue, messages=[message], partial=True, unordered=True)

    def holding(self, group: str, process: str, queues: list[str]) -> None:
        """Record all queues that a consumer of a group holds from now on."""
        self.writer.note(process, "hold", group=group, queues=queues)

    def sent_back(self, group: str, queue: str, offset: int, body: str) -> None:
        """Record that a consumer sends a message back."""
        self.writer.invoke(group, "back", group=group, id=body, q=queue, offset=offset)

    def popped(self, group: str, queue: str, offset: int, body: str, invisible_ms: float, at: float) -> None:
        """Record a popped message. `at`: when it was popped, s since 1970; `offset`: -1 if it is from a retry topic."""
        since = round(mono_ms_of(at), 3)
        fields: dict[str, Any] = {"messages": [[offset, body]], "since": since, "invisible_ms": invisible_ms}
        self.writer.note(group, "pop", group=group, q=queue, **fields)

    def changing(self, group: str, queue: str, offset: int, invisible_ms: float) -> int:
        """Record that a popped message is to come back at another time; return the number of the operation."""
        fields: dict[str, Any] = {"q": queue, "offset": offset, "invisible_ms": invisible_ms}
        return self.writer.invoke(group, "invisible", group=group, **fields)

    def changed(self, group: str, op: int, *, is_confirmed: bool) -> None:
        """Record the outcome of that."""
        self.writer.end(group, "invisible", op, "ok" if is_confirmed else "unknown")

    def acking(self, group: str, queue: str, offset: int) -> int:
        """Record that a consumer acknowledges a popped message; return the number of the operation."""
        return self.writer.invoke(group, "ack", group=group, q=queue, offset=offset)

    def acked(self, group: str, op: int, *, is_confirmed: bool) -> None:
        """Record the outcome of an acknowledgement."""
        self.writer.end(group, "ack", op, "ok" if is_confirmed else "unknown")

    def asking_offset(self, group: str, queue: str) -> int:
        """Record that a committed offset is requested; return the number of the operation."""
        return self.writer.invoke("offsets", "offset", group=group, q=queue)

    def offset(self, op: int, offset: int, node: str) -> None:
        """Record a committed offset."""
        self.writer.end("offsets", "offset", op, offset=offset, node=node)

    def polled(self, queue: str, messages: Iterable[tuple[int, str, str]], *, first: int | None = None) -> None:
        """Record a poll of the reader: offset, body and tag of each message. `first`: the offset that was requested."""
        found = [[offset, body, content_hash(body, tag)] for offset, body, tag in messages]
        self._read.update(str(body) for _, body, _ in found)
        fields: dict[str, Any] = {} if first is None else {"from": first}
        self.writer.note(READER, "poll", group=READER, q=queue, messages=found, **fields)

    def has_read(self, bodies: Iterable[str]) -> bool:
        """Return whether the reader has got all these messages."""
        return self._read.issuperset(bodies)

    def committing(self, queue: str, offset: int) -> int:
        """Record that the reader commits an offset; return the number of the operation."""
        return self.writer.invoke(READER, "commit", group=READER, q=queue, offset=offset)

    def committed(self, op: int, *, is_confirmed: bool) -> None:
        """Record the outcome of a commit."""
        self.writer.end(READER, "commit", op, "ok" if is_confirmed else "unknown")

    def stored(
        self, node: str, held: Iterable[tuple[int, int, str, str]], ends: Mapping[int, int] | None = None
    ) -> None:
        """Record all messages of the topic, when nothing is in flight: queue, offset, body and tag of each.

        Args:
            node: the member in whose log they are.
            held: the messages, in the order of their offsets.
            ends: ends of the queues; by default behind their last messages.
        """
        queues: dict[int, list[list[Any]]] = {queue_id: [] for queue_id in ends or ()}
        for queue_id, offset, body, tag in held:
            queues.setdefault(queue_id, []).append([offset, body, content_hash(body, tag)])
        for queue_id, messages in queues.items():
            fields: dict[str, Any] = {
                "from": 0,
                "next": messages[-1][0] + 1 if ends is None else ends[queue_id],
                "messages": messages,
                "complete": True,
                "node": node,
            }
            self.writer.note(node, "read", q=self.queue(queue_id), **fields)

    def settled(self) -> None:
        """Record that the faults are over and everything was consumed."""
        self.writer.note("run", "settled")


def read_all(
    name_server: str, topic: str, recorder: Recorder, drained: threading.Event, *, commit_s: float = 0.0
) -> None:
    """Poll every queue of a topic from its beginning, until everything is drained.

    `commit_s`: interval of the commits of the reader's group; 0: it commits nothing.
    """
    asyncio.run(_read_all(name_server, topic, recorder, drained, commit_s))


async def _read_all(
    name_server: str, topic: str, recorder: Recorder, drained: threading.Event, commit_s: float
) -> None:
    due_s = time.monotonic() + commit_s
    async with PullConsumer(name_server, group=READER) as consumer:
        queues: list[MessageQueue] = []
        while not queues and not drained.is_set():
            try:
                queues = await consumer.queues(topic)
            except TandemError:
                await asyncio.sleep(_PAUSE_S)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek(queue, 0)
            recorder.polled(recorder.queue(queue.queue_id), (), first=0)
        while not drained.is_set():
            if commit_s and time.monotonic() > due_s:
                due_s = time.monotonic() + commit_s
                await _commit(consumer, queues, recorder)
            try:
                polled = await consumer.poll_queues(timeout_s=_POLL_S)
            except TandemError:
                await asyncio.sleep(_PAUSE_S)
                continue
            found: dict[int, list[tuple[int, str, str]]] = {}
            for queue, message in polled:
                body = message.body.decode(errors="replace")
                found.setdefault(queue.queue_id, []).append((message.queue_offset, body, message.tags))
            for queue_id, messages in found.items():
                recorder.polled(recorder.queue(queue_id), messages)


async def _commit(consumer: PullConsumer, queues: Iterable[MessageQueue], recorder: Recorder) -> None:
    positions = [(queue, consumer.position(queue)) for queue in queues]
    ops = [
        recorder.committing(recorder.queue(queue.queue_id), offset) for queue, offset in positions if offset is not None
    ]
    is_confirmed = True
    try:
        await consumer.commit()
    except TandemError:
        is_confirmed = False
    for op in ops:
        recorder.committed(op, is_confirmed=is_confirmed)
