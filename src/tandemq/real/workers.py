"""Threads that run jobs, so that the loop does not wait for them."""

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from tandemq.boundary import Job, JobDone

WORKERS = 3
"""As many as a broker has kinds of jobs: syncing the log, syncing queues and index, saving tables."""
JOIN_S = 10


class Workers:
    """At most `WORKERS` threads, begun when there is work."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """No thread yet. `wake` is called, on its thread, when a job is done."""
        self._wake = wake
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.done: deque[JobDone] = deque()
        """What ended; the owner takes it from here."""

    def start(self, job: Job) -> None:
        """Run a job as soon as a thread is free."""
        if len(self._threads) < WORKERS:
            thread = threading.Thread(target=self._work, name=f"worker-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                done = JobDone(job, job.run())
            except Exception as error:  # noqa: BLE001  # a worker's outermost loop: the owner decides
                done = JobDone(job, error=error)
            self.done.append(done)
            self._wake()

    def end(self) -> None:
        """No more jobs."""
        for _ in self._threads:
            self._jobs.put(None)

    def join(self) -> None:
        """Wait for those that run."""
        for thread in self._threads:
            thread.join(timeout=JOIN_S)
