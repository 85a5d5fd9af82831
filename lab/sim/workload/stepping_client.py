"""Client that works through steps one by one: requests to masters, and pauses."""

from collections.abc import Callable, Generator
from functools import partial
from random import Random
from typing import Any, NamedTuple

from lab.sim.workload.raw_client import RawClient
from tandemq.model.command import Command

TIMEOUT_MS = 3_000


class Ask(NamedTuple):
    """A request to the master of a broker group."""

    group: str
    command: Command


Steps = Generator["Ask | int", Command | None, Any]
"""Yields requests, which get their responses, and pauses in ms."""


class SteppingClient(RawClient):
    """A client whose work a subclass yields; `is_stopped` asks it to end."""

    def __init__(self, name: str, random: Random, master_of: Callable[[str], str]) -> None:
        """`master_of`: returns the address of a group's master at this moment."""
        super().__init__(name, random, ())
        self._master_of = master_of
        self._work = self.work()
        self.is_stopped = False
        self.is_idle = False
        """Whether nothing is in progress."""
        self.link = 0
        """Connection of the last request."""

    def work(self) -> Steps:
        """Yield the steps."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin to work."""
        self._go_on(None)

    def _go_on(self, answer: Command | None) -> None:
        try:
            wanted = self._work.send(answer)
        except StopIteration:
            self.is_idle = True
            return
        if isinstance(wanted, int):
            self.after(wanted, partial(self._go_on, None))
        else:
            self.link = self.ask(self._master_of(wanted.group), wanted.command, TIMEOUT_MS, self._go_on)
