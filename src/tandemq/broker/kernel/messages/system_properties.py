"""Properties of a send that ask the broker for something: what they may contain.

    DELAY                            a delay level, an int; 0 and below: none
    TRAN_MSG                         true or false, in upper or lower case
    CHECK_IMMUNITY_TIME_IN_SECONDS   of a half message: a number of seconds
    INNER_NUM                        none: messages within a message need batch consume queues

Another value is refused, since the message would be stored without what it asks for: delivered at once instead of
later, or before its transaction ends. Times of delivery: `timed_message`.

Source: docs/reference/compatibility.md; RocketMQ HookUtils, which answers some of them with 1 and stores others.
"""

import re
from collections.abc import Mapping

from tandemq.model.java_types import INT32_MAX
from tandemq.model.message import DELAY, IMMUNITY, INNER_NUM, TIMER_NAMES, TIMER_OUT, TIMER_ROLLS, TRAN_MSG, SysFlag
from tandemq.model.property_rules import ALONE_IN_BATCH, TIMER_PREFIX

_INTEGER = re.compile(r"[+-]?[0-9]{1,12}\Z")
_IN_PARTS = re.compile("|".join((TIMER_PREFIX, *sorted(ALONE_IN_BATCH))).encode())
"""Part of every name that the message of a batch may not have without a look at it."""


def delay_level(properties: Mapping[str, str]) -> int:
    """Return the delay level that a message asks for; 0 if none, or if the value is no int."""
    text = properties.get(DELAY, "")
    level = int(text) if _INTEGER.match(text) else 0
    return level if 0 < level <= INT32_MAX else 0


def property_problem(properties: Mapping[str, str], sys_flag: int) -> str | None:
    """Return which property or flag of a message the broker cannot follow; None if there is none."""
    level = properties.get(DELAY)
    if level is not None and not (_INTEGER.match(level) and abs(int(level)) <= INT32_MAX):
        return f"{DELAY}={level[:64]!r} is no delay level; write a number, 0 for none"
    prepared = properties.get(TRAN_MSG)
    if prepared is not None and prepared.lower() not in ("true", "false"):
        return f"{TRAN_MSG}={prepared[:64]!r} is neither true nor false"
    if INNER_NUM in properties or sys_flag & SysFlag.INNER_BATCH:
        return (
            f"messages within a message ({INNER_NUM}, sysFlag {int(SysFlag.INNER_BATCH)}) need a topic of "
            "queue.type=BatchCQ, which is not supported; send them one by one, or as a batch"
        )
    return None


def immunity_problem(properties: Mapping[str, str]) -> str | None:
    """Return what is wrong with the time before the first check that a half message asks for; None if nothing."""
    seconds = properties.get(IMMUNITY)
    if seconds is None or _INTEGER.match(seconds):
        return None
    return f"{IMMUNITY}={seconds[:64]!r} is no number of seconds"


def may_ask(raw: bytes) -> bool:
    """Whether the encoded properties of a message within a batch may contain one that `part_problem` refuses."""
    return _IN_PARTS.search(raw) is not None


def part_problem(properties: Mapping[str, str], *, is_timed: bool) -> str | None:
    """Return why a message cannot be part of a batch, which is stored and delivered as a whole; None if it can.

    `is_timed`: the batch has a time of delivery, which counts for all its messages.
    """
    problem = property_problem(properties, 0)
    if problem is not None:
        return f"a message of the batch: {problem}"
    if delay_level(properties):
        return f"a message within a batch may not be delayed ({DELAY}); send it alone"
    if properties.get(TRAN_MSG, "").lower() == "true":
        return f"a message within a batch may not be part of a transaction ({TRAN_MSG}); send it alone"
    if is_timed and TIMER_ROLLS in properties:
        return f"{TIMER_ROLLS} is set by brokers only; leave it out"
    if not is_timed and TIMER_OUT not in properties and not TIMER_NAMES.isdisjoint(properties):
        return (
            f"a message within a batch may not have a time of its own ({', '.join(sorted(TIMER_NAMES))}); "
            "send it alone, or give the time to the batch"
        )
    return None
