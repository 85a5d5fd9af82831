"""Syncs of the commit log: one at a time; what is written meanwhile shares the next (group commit)."""

import logging
from functools import partial

from tandemq.boundary import Job, JobDone, Now, Turn
from tandemq.broker.kernel.acknowledgements import Acknowledgements
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.role import LogDoubted
from tandemq.config.settings import BrokerConfig
from tandemq.storage.store import FlushJob

log = logging.getLogger(__name__)


class LogFlush(Feature):
    """Begins syncs, and handles their failure."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin to sync every `flushIntervalCommitLog`."""
        self._store = kernel.store
        self._puts = kernel.puts
        self._acknowledgements = kernel.features.find(Acknowledgements)
        self._turn = kernel.turn
        self._is_syncing = False
        self.adopt_config(kernel.current.config)
        kernel.every(lambda: kernel.current.config.flush_interval_ms, self.begin)

    def adopt_config(self, config: BrokerConfig) -> None:
        """Apply the flush type, at the start and when it changes."""
        self.is_sync = config.flush_type == "SYNC_FLUSH"
        self._store.log.keep_zeroed_ahead(is_wanted=self.is_sync)

    def begin(self, _now: Now) -> None:
        """Start a sync unless one is in progress."""
        if not self._is_syncing:
            work = self._store.begin_flush()
            if work is not None:
                self._is_syncing = True
                self._turn.out.jobs.append(Job("flush", work.run, partial(self._synced, work), work.files))

    def _synced(self, work: FlushJob, event: JobDone, turn: Turn, now: Now) -> None:
        self._is_syncing = False
        if event.error is not None:
            self.disk_failed(event.error, turn, now)
        else:
            self._store.end_flush(work)

    def disk_failed(self, error: Exception, turn: Turn, now: Now) -> None:
        """Stop writing after a failed sync or overwrite: the kernel may have dropped dirty pages."""
        log.critical("store: a sync failed; nothing more is written or acknowledged until a restart: %s", error)
        self._store.flush_failed(error)
        self._puts.refuse("disk failed", f"the disk failed: {error}")
        self._acknowledgements.drop(error, turn)
        self._turn.report(LogDoubted(f"the disk failed: {error}", is_final=True), now)
