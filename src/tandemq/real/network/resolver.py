"""Name resolution for outgoing connections, on a thread of its own.

    Loop ── look_up(connect) ──► thread ── wake ──► Loop ── take() ──► [Resolved]

Resolving may take many seconds, too long for the worker threads, which sync files. The thread starts with the first
host.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tandemq.boundary import Connect
from tandemq.real.network.addresses import look_up


class Resolved(NamedTuple):
    """Result for one outgoing connection."""

    connect: Connect
    host: str
    """IP address, "" if the name could not be resolved."""
    port: str
    error: str = ""


class Resolver:
    """Resolves the hosts of outgoing connections, one after the other."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """Create no thread yet. `wake` is called on the thread when there is a result."""
        self._wake = wake
        self._requests: queue.SimpleQueue[Connect | None] = queue.SimpleQueue()
        self._found: deque[Resolved] = deque()
        self._links: set[int] = set()
        """Connections whose host is being resolved."""
        self._thread: threading.Thread | None = None

    @property
    def has_found(self) -> bool:
        """Whether there are results to take."""
        return bool(self._found)

    def look_up(self, connect: Connect) -> None:
        """Begin to resolve the host of a connection."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="resolver", daemon=True)
            self._thread.start()
        self._links.add(connect.link)
        self._requests.put(connect)

    def forget(self, link: int) -> bool:
        """Cancel the request for a connection; return whether there was one."""
        if link not in self._links:
            return False
        self._links.discard(link)
        return True

    def take(self) -> list[Resolved]:
        """Return the results for connections that were not cancelled."""
        found = []
        while self._found:
            result = self._found.popleft()
            if self.forget(result.connect.link):
                found.append(result)
        return found

    def _run(self) -> None:
        while (connect := self._requests.get()) is not None:
            host, _, port = connect.address.rpartition(":")
            try:
                found = look_up(host)
            except (OSError, UnicodeError) as error:
                self._found.append(Resolved(connect, "", port, f"cannot connect to {connect.address}: {error}"))
            else:
                self._found.append(Resolved(connect, found, port))
            self._wake()

    def close(self) -> None:
        """Stop the thread without waiting for it: it may be resolving a name."""
        self._requests.put(None)
