"""Hosts that have to be looked up before they can be connected to, on a thread of its own.

    Loop ── look_up(connect) ──► thread ── wake ──► Loop ── take() ──► [(connect, ip or "", port or what went wrong)]

A name service may take many seconds, and workers have files to sync. The thread begins with the first host.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable

from tandemq.boundary import Connect
from tandemq.real.network.addresses import look_up


class Resolver:
    """Looks up one host after the other."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called on the thread when there is something to take."""
        self._wake = wake
        self._asked: queue.SimpleQueue[Connect | None] = queue.SimpleQueue()
        self._found: deque[tuple[Connect, str, str]] = deque()
        self._links: set[int] = set()
        """Links whose host is being looked up."""
        self._thread: threading.Thread | None = None

    @property
    def has_found(self) -> bool:
        """Whether there is something to take."""
        return bool(self._found)

    def look_up(self, connect: Connect) -> None:
        """Begin."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="resolver", daemon=True)
            self._thread.start()
        self._links.add(connect.link)
        self._asked.put(connect)

    def forget(self, link: int) -> bool:
        """The link is not wanted any more. Whether its host was being looked up."""
        if link not in self._links:
            return False
        self._links.discard(link)
        return True

    def take(self) -> list[tuple[Connect, str, str]]:
        """What was found for links that are still wanted: address and port, or "" and what went wrong."""
        found = []
        while self._found:
            result = self._found.popleft()
            if self.forget(result[0].link):
                found.append(result)
        return found

    def _run(self) -> None:
        while (connect := self._asked.get()) is not None:
            host, _, port = connect.address.rpartition(":")
            try:
                found = look_up(host)
            except (OSError, UnicodeError) as error:
                self._found.append((connect, "", f"cannot connect to {connect.address}: {error}"))
            else:
                self._found.append((connect, found, port))
            self._wake()

    def close(self) -> None:
        """End the thread; it may be in the middle of a look-up, and is not waited for."""
        self._asked.put(None)
