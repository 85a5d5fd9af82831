"""Responses that take long to build: in slices, one per turn, so that other requests do not wait for them.

    request ─► slice ─► slice ─► … ─► response        jobs take turns; between two slices the broker does its other work

A job is a generator: it yields after each slice and returns the body. Small responses are sent at once.
"""

from collections import deque
from collections.abc import Container, Generator
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.context import CurrentTurn
from tandemq.broker.state.schedule import Schedule
from tandemq.codec.remoting.frame import encode_command
from tandemq.errors import StoreError
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

JOBS_MAX = 8
"""Maximum number of responses being built; further requests that need more than one slice are refused."""
PAUSE_MS = 1
"""Minimum time between two slices."""
Slices = Generator[None, None, bytes]
"""Yields between slices and returns the body of the response."""


class _Job(NamedTuple):
    link: int
    command: Command
    slices: Slices


class SlicedResponses:
    """The responses being built."""

    def __init__(self, schedule: Schedule, links: Container[int], turn: CurrentTurn) -> None:
        """`links`: the numbers of open connections."""
        self._schedule = schedule
        self._links = links
        self._turn = turn
        self._jobs: deque[_Job] = deque()

    def begin(self, link: Link, command: Command, slices: Slices, now: Now) -> Command | None:
        """Do the first slice; return the response if it is complete, else None: it is sent later."""
        job = _Job(link.number, command, slices)
        answer = _advance(job)
        if answer is not None:
            return answer
        if len(self._jobs) >= JOBS_MAX:
            slices.close()
            remark = f"{JOBS_MAX} requests of this kind are being answered; try again later"
            return command.answer(ResponseCode.SYSTEM_BUSY, remark=remark)
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._schedule.at(now.mono_ms + PAUSE_MS, self._step)
        return None

    def _step(self, now: Now) -> None:
        job = self._jobs.popleft()
        if job.link not in self._links:
            job.slices.close()
        elif (answer := _advance(job)) is None:
            self._jobs.append(job)
        else:
            self._turn.out.send(job.link, encode_command(answer))
        if self._jobs:
            self._schedule.at(now.mono_ms + PAUSE_MS, self._step)


def _advance(job: _Job) -> Command | None:
    """Do the next slice; return the response once it is complete."""
    try:
        next(job.slices)
    except StopIteration as end:
        return job.command.answer(ResponseCode.SUCCESS, body=end.value)
    except StoreError as error:
        return job.command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
    return None
