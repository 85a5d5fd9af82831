"""A client for planners and tasks: stories of requests, run from ordinary code and waited for with a deadline.

    asker_of(name servers) ─► Asker ─► tell(lambda routes: …, timeout) ─► the outcome, or the last error in time

One client per process and cluster is kept, because Spark uses its Python processes again and again: a micro-batch then
costs no new connections. Its loop turns in a thread of its own.

Source: docs/guides/pipeline.md; tandemq.client.core.operations for stories.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from tandemq.client.aio.transport import Shell, make_config
from tandemq.client.blocking import LoopThread
from tandemq.client.core.operations import Steps
from tandemq.client.core.routes import Routes
from tandemq.errors import NetworkError, OutcomeUnknown

T = TypeVar("T")
Story = Callable[[Routes], Steps[T]]
RETRY_PAUSE_S = 0.1
_askers: dict[tuple[int, str], "Asker"] = {}


def asker_of(name_servers: str) -> "Asker":
    """This process's client of a cluster, made at the first call."""
    key = os.getpid(), name_servers
    if key not in _askers:
        _askers[key] = Asker(name_servers)
    return _askers[key]


def close_askers() -> None:
    """Close all clients of this process."""
    while _askers:
        (pid, _), asker = _askers.popitem()
        if pid == os.getpid():
            asker.close()


class Asker:
    """One client and its loop."""

    def __init__(self, name_servers: str) -> None:
        """Connected when needed.

        Raises:
            ConfigError: an address is none.
        """
        self._name_servers = name_servers
        config = make_config(name_servers)
        self._thread = LoopThread()

        async def open_shell() -> Shell:
            return Shell(config)

        self._shell = self._thread.call(open_shell())

    def tell(self, story: Story[T], timeout_ms: int) -> T:
        """Run a story to its end; begin it anew while nobody answers, until the time is over.

        Raises:
            NetworkError: nobody answered in time.
            TandemError: what else the story raised.
        """
        until = time.monotonic() + timeout_ms / 1000
        while True:
            try:
                return self._wait(self.begin(story), until)
            except NetworkError as error:
                if time.monotonic() + RETRY_PAUSE_S >= until:
                    raise NetworkError(
                        f"no answer within {timeout_ms} ms: {error}",
                        hint=f"is the cluster of the name server {self._name_servers} up and reachable from here?",
                    ) from error
            time.sleep(RETRY_PAUSE_S)

    def _wait(self, begun: Future[T], until: float) -> T:
        try:
            return begun.result(max(0.001, until - time.monotonic()))
        except TimeoutError as error:
            begun.cancel()
            raise OutcomeUnknown("a request is still under way") from error

    def begin(self, story: Story[T]) -> Future[T]:
        """Start a story and do not wait."""

        async def run() -> T:
            shell = self._shell
            return await shell.done(shell.node.runner.start(story(shell.node.routes), shell.now))

        return self._thread.begin(run())

    def close(self) -> None:
        """Close all connections and end the thread."""
        self._thread.call(self._shell.close())
        self._thread.stop()
