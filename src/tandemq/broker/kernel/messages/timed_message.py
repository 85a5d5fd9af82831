"""Timed messages of RocketMQ 5: the time that a send asks for, and what is stored.

A timed message is an ordinary record of `rmq_sys_wheel_timer`, queue 0, whose properties name the topic and queue that
it is delivered to, and the time: TIMER_OUT_MS, the requested time rounded down to `timerPrecisionMs`, one unit earlier
if it divides exactly. The message is delivered once that unit of time is over, so never early.

Source: docs/reference/timers.md; RocketMQ HookUtils.
"""

import re

from tandemq.broker.kernel.messages.refused import SendRefused
from tandemq.config.settings import BrokerConfig
from tandemq.model.codes import ResponseCode
from tandemq.model.message import (
    REAL_QID,
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELETE,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUED,
    TIMER_ENQUEUED,
    TIMER_NAMES,
    TIMER_OUT,
    TIMER_ROLLS,
)

PRECISIONS_MS = (1000, 500, 200, 100)
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}\Z")
_INT64_MAX = (1 << 63) - 1


def rounded_down(time_ms: int, precision_ms: int) -> int:
    """Return the start of the unit of time that contains a time."""
    return time_ms - time_ms % precision_ms


def precision_ms(config: BrokerConfig) -> int:
    """Return the precision in force: the setting, or the next lower one that is possible."""
    return next((precision for precision in PRECISIONS_MS if precision <= config.timer_precision_ms), PRECISIONS_MS[-1])


def requested_time(properties: dict[str, str], config: BrokerConfig, wall_ms: int) -> int | None:
    """Return the delivery time, TIMER_OUT_MS, of a send; None for an ordinary one, or if that time has come.

    A delay level takes precedence: it removes the times from the properties.

    Raises:
        SendRefused: the time is no number, or too far away, or timed messages are switched off.
    """
    if TIMER_NAMES.isdisjoint(properties) or TIMER_OUT in properties:
        return None
    if not config.timer_enable:
        raise SendRefused(
            ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false on this broker"
        )
    time_ms = _time(properties, wall_ms)
    if time_ms <= wall_ms:
        if TIMER_DELETE in properties:
            raise _illegal(f"{TIMER_DELETE} asks for a time that has come")
        return None
    latest_ms = config.timer_delay_max_s * 1000
    if time_ms - wall_ms > latest_ms:
        raise _illegal(
            f"it is to be delivered in {time_ms - wall_ms} ms, timerMaxDelaySec allows {latest_ms} ms at most"
        )
    return rounded_down(time_ms - 1, precision_ms(config))


def _time(properties: dict[str, str], wall_ms: int) -> int:
    for name, factor, base in (
        (TIMER_DELAY_SEC, 1000, wall_ms),
        (TIMER_DELAY_MS, 1, wall_ms),
        (TIMER_DELIVER_MS, 1, 0),
    ):
        text = properties.get(name)
        if text is not None:
            if not _NUMBER.match(text) or abs(int(text)) > _INT64_MAX:
                raise _illegal(f"{name}={text[:64]!r} is no number")
            return int(text) * factor + base
    raise AssertionError("one of the properties is there")


def _illegal(reason: str) -> SendRefused:
    return SendRefused(ResponseCode.MESSAGE_ILLEGAL, f"timer message illegal, {reason}")


def add_timer_properties(properties: dict[str, str], out_ms: int, topic: str, queue_id: int) -> None:
    """Add the properties of a timed message, for a message to a topic and queue."""
    for name in (TIMER_ROLLS, TIMER_ENQUEUED, TIMER_DEQUEUED):  # of an earlier delivery, or made up by the producer
        properties.pop(name, None)
    properties[TIMER_OUT] = str(out_ms)
    properties[REAL_TOPIC] = topic
    properties[REAL_QID] = str(queue_id)
