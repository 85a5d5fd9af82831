"""Timed messages and their recalls in the log at the end.

    waiting message of rmq_sys_wheel_timer ──► exactly one delivery in its topic, whatever happened to the masters
    delete request (a recall) ───────────────► no delivery behind it

I12  as many deliveries of a message as it has waiting copies (a client that sends it again makes a second one); none
     behind a delete request that was stored after the copies. Early deliveries are noticed by `chaos.history`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from chaos.history import Stored
from tandemq.model.message import TIMER_DELETE, TIMER_OUT
from tandemq.run.ports import Setting

SETTINGS: dict[str, Setting] = {"recallMessageEnable": "true", "timerPrecisionMs": 100}
"""Settings of brokers that recall messages, and deliver them soon after their time."""
DELAY_SECONDS = (1.0, 2.0, 3.0)
_TIMED_EVERY, _RECALLED_EVERY = 23, 2
_SHOWN = 3


def delay_of(number: int) -> float:
    """Return the delay of a message, seconds; 0.0: it is no timed one."""
    turn, rest = divmod(number, _TIMED_EVERY)
    return 0.0 if rest else DELAY_SECONDS[turn % len(DELAY_SECONDS)]


def is_recalled(number: int) -> bool:
    """Return whether the producer takes a timed message back."""
    return number // _TIMED_EVERY % _RECALLED_EVERY == 0


def is_request(record: Stored) -> bool:
    """Return whether a record of the timer's topic is a delete request."""
    return TIMER_DELETE in record.properties


@dataclass(slots=True)
class TimerFigures:
    """Counts of one run."""

    recalls: int = 0
    """Recalls that a broker accepted."""
    recalls_failed: int = 0
    waiting: int = 0
    deliveries: int = 0
    requests: int = 0

    def report(self) -> dict[str, Any]:
        """Return the figures for the run's JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def check_log(
    name: str, messages: Iterable[Stored], timers: Iterable[Stored], figures: TimerFigures | None = None
) -> list[str]:
    """Return the violations of I12 in a member's log: its topic, and the topic of waiting messages."""
    copies: dict[str, list[Stored]] = {}
    requests: dict[str, int] = {}
    for record in timers:
        if is_request(record):
            key = record.properties[TIMER_DELETE].rpartition("+")[2]
            requests.setdefault(key, record.log_offset)
        else:
            copies.setdefault(record.body, []).append(record)
    delivered = [record for record in messages if TIMER_OUT in record.properties]
    counts = Counter(record.body for record in delivered)
    wrong = []
    for body in sorted(copies.keys() | counts.keys()):
        waiting = copies.get(body, [])
        is_asked = any(record.unique_key in requests for record in waiting)
        if counts[body] > len(waiting) or (counts[body] < len(waiting) and not is_asked):
            wrong.append((body, counts[body], len(waiting)))
    late = []
    for record in delivered:
        request = requests.get(record.unique_key)
        if request is not None and all(copy.log_offset < request for copy in copies.get(record.body, ())):
            late += [record.body] if record.log_offset > request else []
    if figures is not None:
        figures.waiting, figures.requests = sum(map(len, copies.values())), len(requests)
        figures.deliveries = len(delivered)
    found = []
    if wrong:
        found.append(f"I12: {len(wrong)} timed messages in the log of {name} with other deliveries than waiting copies")
        found[-1] += f", first (body, deliveries, copies) {wrong[:_SHOWN]}"
    if late:
        found.append(f"I12: {len(late)} delivered in the log of {name} behind their recall, first {late[:_SHOWN]}")
    return found
