"""A watch stream of etcd on one range of keys, in a thread of its own.

    start ─► connect ─► watch from a revision ─► on_batch, for each message ─► on_end(reason), once

Events arrive in the order of revisions. Values are part of them; they are not used.
Owner: a session, which ends it by `close`; after that its calls may still come, and are to be ignored.
"""

import threading
from collections.abc import Callable

from tandemq.errors import NetworkError, RemoteError
from tandemq.real.etcd.gateway import Gateway
from tandemq.real.etcd.messages import WatchBatch, WatchLine, decoded


class WatchStream:
    """One stream."""

    def __init__(
        self,
        gateway: Gateway,
        keys: tuple[bytes, bytes],
        revision: int,
        on_batch: "Callable[[WatchStream, WatchBatch], None]",
        on_end: "Callable[[WatchStream, str], None]",
    ) -> None:
        """Prepare a stream; `start` begins it.

        Args:
            gateway: not connected yet.
            keys: half-open range of keys.
            revision: the first one whose changes are wanted.
            on_batch: takes each message.
            on_end: takes why the stream ended.
        """
        self.was_created = False
        """Whether etcd has begun to watch."""
        self._gateway = gateway
        self._request = {
            "create_request": {
                "key": keys[0],
                "range_end": keys[1],
                "start_revision": str(revision),
                "fragment": True,
            }
        }
        self._on_batch = on_batch
        self._on_end = on_end
        self._thread = threading.Thread(target=self._run, name="registry-watch", daemon=True)

    def start(self) -> None:
        """Begin to connect; does not block."""
        self._thread.start()

    def close(self) -> None:
        """End the stream; does not block."""
        self._gateway.interrupt()

    def _run(self) -> None:
        reason = "it ended"
        try:
            self._gateway.connect()
            for line in self._gateway.lines("watch", self._request):
                message = decoded(line, WatchLine)
                if message.result is None:
                    reason = message.error.message if message.error is not None else reason
                    break
                self.was_created = self.was_created or message.result.created
                self._on_batch(self, message.result)
        except (NetworkError, RemoteError) as error:
            reason = str(error)
        self._gateway.close()
        self._on_end(self, reason)
