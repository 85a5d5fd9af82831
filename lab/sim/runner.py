"""Runs of many seeds, in one process or several, with a summary and a digest over all of them.

An exception that is no violation is a failure of the simulation, or of a node outside its turns. It is reported like a
violation, under the rule "died".
"""

import signal
import traceback
from collections import Counter
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from ctypes import c_bool
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from multiprocessing import get_context
from multiprocessing.sharedctypes import RawValue
from typing import IO, ClassVar

from lab.sim.result import Result
from lab.sim.simulation import quiet, run_seed
from lab.sim.world.process import CRASHES

SEEDS_PER_TASK = 8


@dataclass(slots=True)
class RunSummary:
    """Totals over many seeds."""

    seeds: int = 0
    sends: int = 0
    given: int = 0
    turns: int = 0
    duplicates: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0
    """Set by the caller; not part of any digest."""
    faults: Counter[str] = field(default_factory=Counter)
    requests: Counter[int] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    levels: Counter[str] = field(default_factory=Counter)
    failed: list[Result] = field(default_factory=list)
    digests: dict[int, str] = field(default_factory=dict)

    def add(self, result: Result) -> None:
        """Add the result of one seed."""
        self.seeds += 1
        self.sends += result.sends
        self.given += result.given
        self.turns += result.turns
        self.duplicates += result.duplicates
        self.virtual_s += result.virtual_s
        self.faults.update(result.faults)
        self.requests.update(result.requests)
        self.statuses.update(result.statuses)
        self.levels.update(result.levels)
        self.digests[result.seed] = result.digest
        if result.rule:
            self.failed.append(result)

    @property
    def digest(self) -> str:
        """Return a digest over the digests of all seeds, in the order of the seeds."""
        text = "".join(self.digests[seed] for seed in sorted(self.digests))
        return blake2b(text.encode(), digest_size=8).hexdigest()


def run_one(seed: int, history: IO[str] | None = None) -> Result:
    """Run one seed; an exception that is no violation is reported under the rule "died". `history`: see `run_seed`."""
    try:
        return run_seed(seed, history)
    except CRASHES:
        return Result(seed, rule="died", text=traceback.format_exc(limit=-4))


class _Worker:
    """State of a worker process."""

    stop: ClassVar[c_bool]

    @classmethod
    def begin(cls, stop: c_bool) -> None:
        """Ignore interrupts: the parent process handles them and sets `stop`."""
        cls.stop = stop
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    @classmethod
    def run(cls, seeds: list[int]) -> list[Result]:
        """Return the results of the seeds, fewer once `stop` is set."""
        with quiet():
            return [run_one(seed) for seed in seeds if not cls.stop.value]


def run_many(seeds: Iterable[int], jobs: int = 1) -> Generator[Result, None, None]:
    """Yield results in the order of the seeds; `seeds` may be endless. Closing early waits for the seeds that run."""
    if jobs <= 1:
        for seed in seeds:
            with quiet():
                result = run_one(seed)
            yield result
        return
    context = get_context("spawn")
    stop = RawValue(c_bool)  # without a lock, which an interrupt could leave held
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_Worker.begin, initargs=(stop,)) as pool:
        source = iter(seeds)
        waiting: list[Future[list[Result]]] = []
        try:
            while True:
                while len(waiting) < jobs * 3:
                    chunk = list(islice(source, SEEDS_PER_TASK))
                    if not chunk:
                        break
                    waiting.append(pool.submit(_Worker.run, chunk))
                if not waiting:
                    return
                yield from waiting.pop(0).result()
        finally:
            stop.value = True
