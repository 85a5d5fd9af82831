"""The master's answer to a slave that introduces itself: refused, or the log offset from which it copies.

A slave's log is compared with the master's: the history of generations, then the last bytes that both hold. Where they
differ, the slave truncates to the common end, returns the tail that its master lost, or is refused with advice.
Source: docs/internals/ha.md; docs/internals/failover.md.
"""

import logging

from isal.isal_zlib import crc32

from tandemq.broker.ha.lost_tail import LostTail
from tandemq.broker.kernel.kernel import Kernel
from tandemq.codec.ha import TAIL_CHECK_BYTES, TAIL_PAGE_BYTES, MasterHello, SlaveHello, page_crcs
from tandemq.errors import StoreError
from tandemq.storage.log.epochs import common_end
from tandemq.storage.log.scan import LogFault, faults_within

log = logging.getLogger(__name__)
STORE_LOST = "this master lost its store; start it on a copy of the slave's store"


class SlaveAdmission:
    """Decides where slaves go on."""

    def __init__(self, kernel: Kernel, lost_tail: LostTail) -> None:
        """Begin."""
        self._store = kernel.store
        self._generations = kernel.generations
        self._lost_tail = lost_tail
        self._own = kernel.own
        self._current = kernel.current
        self._turn = kernel.turn

    def decide(self, hello: SlaveHello) -> MasterHello:
        """Return the answer to a slave's introduction; the slave is known from then on."""
        config, store_log, lost_tail = self._current.config, self._store.log, self._lost_tail
        mine = MasterHello(
            config.broker_id,
            log_start=store_log.start,
            log_end=store_log.written_end,
            generations=list(self._generations.pairs),
            epoch=self._turn.serving.epoch,
            address=self._own.address,
        )
        mine.refused = self._refusal(hello)
        if mine.refused is None:
            mine.refused = lost_tail.remember(hello.broker_id)
        if mine.refused is not None:
            return mine
        if hello.log_end > store_log.written_end and hello.broker_id in lost_tail.awaited:
            return self._take_tail(hello, mine)
        lost_tail.answered(hello.broker_id)
        mine.generations = list(self._generations.pairs)
        if hello.log_end == 0:
            newest_file = store_log.written_end - store_log.written_end % config.segment_bytes
            mine.start = max(store_log.start, newest_file) if config.sync_from_last_file else store_log.start
            return mine
        return self._continue(hello, mine)

    def _take_tail(self, hello: SlaveHello, mine: MasterHello) -> MasterHello:
        """Ask an awaited slave for the tail that was lost here."""
        mine.start = self._store.log.written_end
        mine.send_tail = hello.log_start <= mine.start
        if not mine.send_tail:
            mine.refused = (
                f"we lost what we had from {mine.start} on, and its log begins at {hello.log_start}: "
                "what lies between is gone unless another slave has it; if none has, start this master with "
                "--accept-loss"
            )
        return mine

    def _continue(self, hello: SlaveHello, mine: MasterHello) -> MasterHello:
        """Find where a slave with bytes of its own goes on."""
        store_log, generations = self._store.log, self._generations.pairs
        same = hello.log_end
        if hello.generations[-1:] == generations[-1:] and hello.log_end > store_log.written_end:
            mine.refused = f"its log ends at {hello.log_end}, ours at {store_log.written_end}: {STORE_LOST}"
            return mine
        if hello.generations:
            found = common_end(generations, store_log.written_end, hello.generations, hello.log_end)
            if found is None:
                mine.refused = f"its history {hello.generations} has nothing in common with ours; empty its store"
                return mine
            same = found
        if same > store_log.written_end:
            mine.refused = (
                f"its log ends at {hello.log_end}, ours at {store_log.written_end}, and no loss was accepted here; "
                "one of the two stores is not of this group"
            )
        elif same < store_log.start:
            mine.refused = f"it needs bytes from {same}, we hold them from {store_log.start}; empty its store"
        elif same == hello.log_end and (differs := self._tail_difference(hello)) is not None:
            mine.refused = differs
        else:
            mine.start = same
            mine.truncate_to = same if same < hello.log_end else None
        return mine

    def _refusal(self, hello: SlaveHello) -> str | None:
        config, serving = self._current.config, self._turn.serving
        if not serving.is_master:
            return "this broker is a slave itself"
        if (hello.cluster, hello.broker_name) != (config.cluster, config.broker_name):
            return f"it belongs to {hello.cluster}/{hello.broker_name}, not to {config.cluster}/{config.broker_name}"
        if hello.broker_id < 0 or hello.broker_id == config.broker_id:
            return f"a slave's brokerId must be another one than its master's, its is {hello.broker_id}"
        if hello.epoch != serving.epoch:
            return f"it acts by epoch {hello.epoch} of the group, we by {serving.epoch}"
        if hello.segment_bytes != config.segment_bytes:
            return f"its mappedFileSizeCommitLog is {hello.segment_bytes}, ours is {config.segment_bytes}"
        return None

    def _tail_difference(self, hello: SlaveHello) -> str | None:
        """Return why a slave's last bytes are not ours, None if they are, as far as both hold them in one file."""
        store_log = self._store.log
        start, end = hello.tail_start, hello.log_end
        if start < store_log.start or end > store_log.written_end:
            return None
        if end - start > TAIL_CHECK_BYTES:
            return f"it sent the checksum of {end - start} bytes; {TAIL_CHECK_BYTES} at most are compared"
        try:
            tail = store_log.read(start, end - start)
            if crc32(tail) == hello.tail_crc:
                return None
            faults = faults_within(store_log.read, start, end, store_log.segment_bytes)
        except StoreError as error:
            return f"our own bytes before log offset {end} cannot be read: {error}"
        if not faults:
            return (
                f"its bytes before log offset {end} differ from ours, and our records there are whole: "
                "its copy is damaged or has another history; empty its store"
            )
        where = f"our own log is damaged at {faults[0].offset} ({faults[0].reason})"
        if not _pages_agree(hello, tail, faults):
            return (
                f"{where}, and its bytes before {end} cannot be taken for the same; if they are good ones, start this "
                "master on a copy of its store"
            )
        log.critical(
            "master: %s, this master's copy and not that of slave %d, which goes on; tandemq ha verify shows "
            "what differs",
            where,
            hello.broker_id,
        )
        return None


def _pages_agree(hello: SlaveHello, tail: bytes, faults: list[LogFault]) -> bool:
    """Whether a slave's last bytes are ours in every page our damage does not touch, and there are such pages."""
    damaged = {
        page
        for fault in faults
        for page in range(
            max(0, fault.offset - hello.tail_start) // TAIL_PAGE_BYTES,
            ((fault.resumes or hello.log_end) - hello.tail_start - 1) // TAIL_PAGE_BYTES + 1,
        )
    }
    ours = page_crcs(tail)
    whole = [page for page in range(len(ours)) if page not in damaged]
    return len(ours) == len(hello.tail_pages) and bool(whole) and all(ours[p] == hello.tail_pages[p] for p in whole)
