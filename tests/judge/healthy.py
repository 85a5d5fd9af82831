"""A healthy history of every kind of operation, and what alters it.

Orders/a/0   a-0 … a-4 of producer a in turn with b-0 … b-4 of producer b, then t-1 (committed), d-1 (delayed)
Orders/a/1   w-1 (timed)
"""

import io
import json
from collections.abc import Callable, Iterable
from typing import Any

from judge.verdict import Verdict, judge
from judge.writing import HistoryWriter, hash_of

Lines = list[dict[str, Any]]
Q0, Q1 = "Orders/a/0", "Orders/a/1"
DELAYED_Q, TIMER_Q, HALF_Q = "SCHEDULE_TOPIC_XXXX/a/2", "rmq_sys_wheel_timer/a/0", "RMQ_SYS_TRANS_HALF_TOPIC/a/0"
SECOND = 1_000.0


class Run:
    """Writes a history whose clock moves by one millisecond with each line."""

    def __init__(self, **promises: object) -> None:
        self.file = io.StringIO()
        self.now_ms = 0.0
        self.writer = HistoryWriter(self.file, self._tick, run="healthy", promises=promises)

    def _tick(self) -> float:
        self.now_ms += 1.0
        return self.now_ms

    def send(self, process: str, name: str, q: str = Q0, offset: int | None = None, **fields: Any) -> None:
        """Send a message, acknowledged at a place."""
        digest = hash_of(name.encode())
        op = self.writer.invoke(process, "send", id=name, topic="Orders", hash=digest, **fields)
        self.writer.end(process, "send", op, status="SEND_OK", q=q, offset=offset)

    def call(self, process: str, f: str, type_: str = "ok", **fields: Any) -> None:
        """Write an operation and its outcome."""
        op = self.writer.invoke(process, f, **fields)
        self.writer.end(process, f, op, type_)

    def poll(self, process: str, q: str, first: int, *names: str, group: str = "g") -> None:
        """Poll messages at offsets from `first` on."""
        self.writer.note(process, "poll", group=group, q=q, messages=messages(first, names), **{"from": first})

    def read(self, q: str, first: int, *names: str) -> None:
        """Read a whole queue."""
        end = first + len(names)
        fields = {"from": first, "next": end, "complete": True}
        self.writer.note("end", "read", q=q, messages=messages(first, names), **fields)

    def offset(self, group: str, q: str, offset: int) -> None:
        """Report a committed offset."""
        op = self.writer.invoke("watch", "offset", group=group, q=q)
        self.writer.end("watch", "offset", op, offset=offset)

    def pop(self, q: str, first: int, *names: str, invisible_ms: float = 10 * SECOND) -> None:
        """Pop messages at offsets from `first` on."""
        given = messages(first, names)
        since = self.now_ms
        self.writer.note("pop", "pop", group="gp", q=q, messages=given, since=since, invisible_ms=invisible_ms)

    def hold(self, process: str, *queues: str) -> None:
        """Hold these queues and no other ones."""
        self.writer.note(process, "hold", group="g", queues=list(queues))

    def lines(self) -> Lines:
        """Return the lines as objects."""
        return [json.loads(line) for line in self.file.getvalue().splitlines()]


def messages(first: int, names: Iterable[str]) -> list[list[object]]:
    return [[first + index, name, hash_of(name.encode())] for index, name in enumerate(names)]


SENT = ("a-0", "b-0", "a-1", "b-1", "a-2", "b-2", "a-3", "b-3", "a-4", "b-4")
ALL = (*SENT, "t-1", "d-1")


def healthy(**promises: object) -> Lines:
    """Return a healthy history. Line 1 is the header."""
    run = Run(late_ms=SECOND, **promises)
    for offset, name in enumerate(SENT):
        run.send(name[0], name, offset=offset)
    run.send("t", "t-1", HALF_Q, 0, tx=True)
    run.send("t", "t-2", HALF_Q, 1, tx=True)
    run.call("t", "end", id="t-1", outcome="commit")
    run.call("t", "end", id="t-2", outcome="rollback")
    run.send("a", "d-1", DELAYED_Q, 0, delay_ms=SECOND)
    run.send("a", "w-1", TIMER_Q, 0, due=run.now_ms + SECOND)
    run.send("a", "w-2", TIMER_Q, 1, due=run.now_ms + SECOND)
    run.call("a", "recall", id="w-2")
    run.writer.note("c", "assign", group="g")
    run.hold("c", Q0, Q1)
    run.hold("d")
    run.poll("c", Q0, 0, *ALL[:5])
    run.call("c", "back", group="g", id="a-1")
    run.poll("c", "%RETRY%g/a/0", 0, "a-1")
    run.poll("c", Q0, 5, *ALL[5:11])
    run.call("c", "commit", group="g", q=Q0, offset=5)
    run.offset("g", Q0, 5)
    run.offset("g", Q0, 5)
    run.pop(Q0, 0, "a-0", "b-0")
    run.call("pop", "ack", group="gp", q=Q0, offset=0)
    run.call("pop", "invisible", group="gp", q=Q0, offset=1, invisible_ms=2 * SECOND)
    run.now_ms += 3 * SECOND / 2
    run.poll("c", Q0, 11, "d-1")
    run.poll("c", Q1, 0, "w-1")
    run.now_ms += 20 * SECOND
    run.pop(Q0, 1, "b-0")
    run.call("pop", "ack", group="gp", q=Q0, offset=1)
    run.read(Q0, 0, *ALL)
    run.read(Q1, 0, "w-1")
    run.writer.note("end", "settled")
    return run.lines()


def verdict_of(lines: Lines) -> Verdict:
    """Return the judge's verdict."""
    return judge(json.dumps(line) + "\n" for line in lines)


def index_of(lines: Lines, matches: Callable[[dict[str, Any]], bool]) -> int:
    """Return the index of the first line that matches."""
    return next(index for index, line in enumerate(lines) if matches(line))


def at(f: str, type_: str = "ok", **fields: Any) -> Callable[[dict[str, Any]], bool]:
    """Return whether a line is of an operation and has these fields."""
    wanted = {"f": f, "type": type_, **fields}
    return lambda line: all(line.get(name) == value for name, value in wanted.items())
