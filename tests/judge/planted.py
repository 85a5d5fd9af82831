"""One fault for each rule of the judge, planted into the healthy history, or a short history of its own."""

from collections.abc import Callable
from typing import Any

from tests.judge.healthy import DELAYED_Q, HALF_Q, Q0, Q1, SECOND, TIMER_Q, Lines, Run, at, healthy, index_of, messages


def _forget(lines: Lines, name: str, *, reads: bool = True, polls: bool = True) -> Lines:
    """Remove a message from what was read."""
    for line in lines:
        if (line.get("f") == "read" and reads) or (line.get("f") in ("poll", "pop") and polls):
            line["messages"] = [one for one in line["messages"] if one[1] != name]
    return lines


def _before(lines: Lines, matches: Callable[[dict[str, Any]], bool], *new: dict[str, Any]) -> Lines:
    index = index_of(lines, matches)
    return [*lines[:index], *new, *lines[index:]]


def _at_end(lines: Lines, *new: dict[str, Any]) -> Lines:
    t = lines[-2]["t"]
    return _before(lines, at("settled"), *({"t": t, "p": "d", "type": "ok", **line} for line in new))


def _poll(q: str, first: int, *names: str, **fields: object) -> dict[str, Any]:
    return {"f": "poll", "group": "h", "q": q, "messages": messages(first, names), **fields}


def lost() -> Lines:
    return _forget(healthy(), "b-2")


def lost_at_the_end() -> Lines:
    """The whole queue was read, and ends before the offset of an acknowledged message."""
    run = Run()
    for offset, name in enumerate(("a-0", "a-1", "a-2")):
        run.send("a", name, offset=offset)
    run.read(Q0, 0, "a-0", "a-1")
    return run.lines()


def unseen() -> Lines:
    lines = _forget(healthy(), "w-1")
    return [line for line in lines if line.get("f") != "read" or line["q"] != Q1]


def vanished() -> Lines:
    return _forget(healthy(), "b-2", polls=False)


def duplicate() -> Lines:
    return _at_end(healthy(), _poll(Q1, 1, "a-3", unordered=True))


def phantom() -> Lines:
    return _at_end(healthy(), _poll(Q1, 1, "x-1", unordered=True))


def corrupt() -> Lines:
    lines = healthy()
    lines[index_of(lines, at("read"))]["messages"][3][2] = "0123"
    return lines


def failed_read() -> Lines:
    lines = healthy()
    index = index_of(lines, at("send", "ok", p="b"))
    done = lines[index]
    lines[index] = {**{name: done[name] for name in ("t", "p", "op", "f")}, "type": "fail"}
    return lines


def order() -> Lines:
    run = Run()
    run.send("a", "a-0", offset=1)
    run.send("a", "a-1", offset=0)
    run.read(Q0, 0, "a-1", "a-0")
    return run.lines()


def skipped() -> Lines:
    return _at_end(healthy(), _poll(Q0, 0, "a-0"), _poll(Q0, 2, "a-1"))


def went_back() -> Lines:
    return _at_end(healthy(), _poll(Q0, 0, "a-0", "b-0", "a-1"), _poll(Q0, 1, "b-0"))


def diverging() -> Lines:
    return _at_end(healthy(), _poll(Q0, 4, "a-3", unordered=True))


def aborted_read() -> Lines:
    return _at_end(healthy(), _poll(Q1, 1, "t-2", unordered=True))


def half_read() -> Lines:
    lines = healthy()
    poll = {"t": lines[1]["t"], "p": "d", "type": "ok", **_poll(Q0, 10, "t-1", unordered=True)}
    return _before(lines, at("end", "invoke", id="t-1"), poll)


def committed_lost() -> Lines:
    run = Run()
    run.send("t", "t-1", HALF_Q, 0, tx=True)
    run.call("t", "end", id="t-1", outcome="commit")
    run.writer.note("end", "settled")
    return run.lines()


def undecided() -> Lines:
    lines = healthy()
    ended = lines[index_of(lines, at("end", "invoke", id="t-2"))]["op"]
    return [line for line in lines if line.get("f") != "end" or line["op"] != ended]


def early() -> Lines:
    lines = healthy()
    lines[index_of(lines, at("send", "invoke", id="d-1"))]["delay_ms"] = 60 * SECOND
    return lines


def late() -> Lines:
    run = Run(late_ms=SECOND)
    run.send("a", "d-1", DELAYED_Q, 0, delay_ms=SECOND)
    run.now_ms += 3 * SECOND
    run.poll("c", Q0, 0, "d-1")
    return run.lines()


def recalled_read() -> Lines:
    run = Run()
    run.send("a", "w-1", TIMER_Q, 0, due=run.now_ms + SECOND)
    run.call("a", "recall", id="w-1")
    run.now_ms += SECOND
    run.poll("c", Q0, 0, "w-1")
    return run.lines()


def offset_back() -> Lines:
    lines = healthy()
    second = [index for index, line in enumerate(lines) if at("offset")(line)][1]
    lines[second]["offset"] = 4
    return lines


def pop_overlap() -> Lines:
    run = Run()
    run.send("a", "a-0", offset=0)
    run.pop(Q0, 0, "a-0")
    run.pop(Q0, 0, "a-0")
    return run.lines()


def pop_overlap_by_a_retry_topic() -> Lines:
    """A message that may have been stored twice, and was not, comes back from the retry topic too early."""
    return _popped_from_retry_topic(Q0, 0)


def two_copies_popped() -> Lines:
    """No fault: the second pop may be of the other copy."""
    return _popped_from_retry_topic(Q1, 7)


def _popped_from_retry_topic(q: str, offset: int) -> Lines:
    run = Run()
    run.send("a", "a-0", offset=0, sends=2)
    run.pop(Q0, 0, "a-0")
    run.pop("%RETRY%gp/a/0", -1, "a-0")
    run.writer.note("end", "read", q=q, messages=messages(offset, ["a-0"]), **{"from": offset, "next": offset + 1})
    return run.lines()


def pop_again() -> Lines:
    run = Run()
    run.send("a", "a-0", offset=0)
    run.pop(Q0, 0, "a-0")
    run.call("pop", "ack", group="gp", q=Q0, offset=0)
    run.now_ms += 60 * SECOND
    run.pop(Q0, 0, "a-0")
    return run.lines()


def pop_lost() -> Lines:
    return [line for line in healthy() if line.get("f") != "ack" or line.get("offset", 1) != 1]


def shared() -> Lines:
    """The second consumer takes a queue that the first one lets go too late."""
    return _held(1_500.0)


def shared_at_the_end() -> Lines:
    """Neither of two consumers lets a queue go."""
    run = Run(shared_ms=SECOND)
    for process in "ab":
        run.hold(process, Q0)
    run.now_ms += 2 * SECOND
    run.writer.note("end", "settled")
    return run.lines()


def _held(both_ms: float) -> Lines:
    run = Run(shared_ms=SECOND)
    run.hold("a", Q0, Q1)
    run.now_ms += 5 * SECOND
    run.hold("b", Q1)
    run.now_ms += both_ms
    run.hold("a", Q0)
    run.hold("b", Q1)
    return run.lines()


def briefly_shared() -> Lines:
    """No fault: the first consumer lets the queue go within the promised time."""
    return _held(900.0)


def not_redelivered() -> Lines:
    return [line for line in healthy() if not line.get("q", "").startswith("%RETRY%")]


def cycle_of_sends() -> Lines:
    """By queue 0 the last send of b is before the first of a; by queue 1 the last of a before the first of b."""
    run = Run()
    run.send("a", "a-0", Q0, 1)
    run.send("a", "a-1", Q1, 0)
    run.send("b", "b-0", Q1, 1)
    run.send("b", "b-1", Q0, 0)
    return run.lines()


def cycle_with_a_read() -> Lines:
    """Process b reads a message of a, and then its own message is before one that a had sent earlier."""
    run = Run()
    run.send("a", "a-0", Q0, 1)
    run.send("a", "a-1", Q1, 0)
    run.poll("b", Q1, 0, "a-1")
    run.send("b", "b-0", Q0, 0)
    return run.lines()


PLANTED: dict[str, list[Callable[[], Lines]]] = {
    "lost": [lost, lost_at_the_end],
    "unseen": [unseen],
    "vanished": [vanished],
    "duplicate": [duplicate],
    "phantom": [phantom],
    "corrupt": [corrupt],
    "failed-read": [failed_read],
    "order": [order],
    "skipped": [skipped],
    "went-back": [went_back],
    "diverging": [diverging],
    "aborted-read": [aborted_read],
    "half-read": [half_read],
    "committed-lost": [committed_lost],
    "undecided": [undecided],
    "early": [early],
    "late": [late],
    "recalled-read": [recalled_read],
    "offset-back": [offset_back],
    "pop-overlap": [pop_overlap, pop_overlap_by_a_retry_topic],
    "pop-again": [pop_again],
    "pop-lost": [pop_lost],
    "shared": [shared, shared_at_the_end],
    "not-redelivered": [not_redelivered],
    "G0": [cycle_of_sends],
    "G1c": [cycle_with_a_read],
}
"""Rule to the histories in which it, and no other rule, finds something."""
