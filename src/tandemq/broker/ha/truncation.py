"""Correction of progress on a master whose log ends earlier than before: nothing may point beyond the end of a queue.

A consumer offset, or the progress of a delay level, that is kept beyond the end of its queue skips every message stored
there later. So both are set to that end, and saved, before a message is acknowledged. Not while a slave may give the
tail back, and never on a slave, whose log may simply be behind its offsets.

Source: docs/internals/ha.md, "after a stop that may have lost bytes"; RocketMQ
ScheduleMessageService.correctDelayOffset.
"""

import logging

from tandemq.broker.kernel.progress_table import ProgressTable
from tandemq.broker.state.consumer_offsets import ConsumerOffsets
from tandemq.storage.store import Store

log = logging.getLogger(__name__)
LOGGED_MAX = 20


def correct_progress(store: Store, offsets: ConsumerOffsets, delay: ProgressTable) -> None:
    """Set consumer offsets and delay progress that lie beyond the end of their queue to that end."""
    ends = {key: queue.max_offset for key, queue in store.queues.items()}
    corrected, levels = offsets.correct(ends), delay.correct()
    for key, queue_id, before, now in corrected[:LOGGED_MAX]:
        log.warning("offsets: %s queue=%d was %d, behind the queue's end; now %d", key, queue_id, before, now)
    if len(corrected) > LOGGED_MAX:
        log.warning("offsets: %d more were behind their queue's end and are there now", len(corrected) - LOGGED_MAX)
    for level, before, now in levels:
        log.warning("delay: progress of level %d was %d, behind the queue's end; now %d", level, before, now)
    offsets.save(is_awaited=bool(corrected))
    delay.save(is_awaited=bool(levels))
