"""Worker threads for blocking jobs of the event loop."""

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from tandemq.boundary import Job, JobDone

WORKERS = 3
"""One for each kind of job of a broker: syncing the log, syncing queues and index, saving tables."""
JOIN_S = 10


class Workers:
    """A limited number of threads, started on demand."""

    def __init__(self, wake: Callable[[], None], name: str = "worker", threads_max: int = WORKERS) -> None:
        """Create no thread yet. `wake` is called on a worker thread when a job is done."""
        self._wake = wake
        self._name = name
        self._threads_max = threads_max
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.done: deque[JobDone] = deque()
        """Jobs that ended; the owner removes them."""

    def start(self, job: Job) -> None:
        """Run a job on the next free thread."""
        if len(self._threads) < self._threads_max:
            thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
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
        """Stop the threads once all started jobs have run."""
        for _ in self._threads:
            self._jobs.put(None)

    def join(self) -> None:
        """Wait for the threads to stop, at most JOIN_S seconds each."""
        for thread in self._threads:
            thread.join(timeout=JOIN_S)
