"""What a master does when its log ends earlier than it did: nothing may point behind the end of a queue.

A consumer offset, or the progress of a delay level, that is kept beyond the end of its queue skips every message stored
there later. So both are set to that end, and saved, before a message is acknowledged. Not while a slave may give the
tail back, and never on a slave, whose log may simply be behind its offsets.

Source: docs/internals/ha.md, "after a stop that may have lost bytes"; RocketMQ
ScheduleMessageService.correctDelayOffset.
"""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandemq.broker.node import Broker

log = logging.getLogger(__name__)
LOGGED_MAX = 20


def correct_progress(broker: "Broker") -> None:
    """Set consumer offsets and delay progress that lie beyond the end of their queue to that end."""
    ends = {key: queue.max_offset for key, queue in broker.store.queues.items()}
    offsets, levels = broker.offsets.correct(ends), broker.delay.correct()
    for key, queue_id, before, now in offsets[:LOGGED_MAX]:
        log.warning("offsets: %s queue=%d was %d, behind the queue's end; now %d", key, queue_id, before, now)
    if len(offsets) > LOGGED_MAX:
        log.warning("offsets: %d more were behind their queue's end and are there now", len(offsets) - LOGGED_MAX)
    for level, before, now in levels:
        log.warning("delay: progress of level %d was %d, behind the queue's end; now %d", level, before, now)
    broker.offsets.save(is_awaited=bool(offsets))
    broker.delay.save(is_awaited=bool(levels))
