"""A TCP proxy on the loopback address that remembers the frames that pass through it.

    client ---- Recorder.port ----> port of a name server or broker
           <--- replacements ------

Answers can be changed on their way to the client as long as they keep their length: that is how a client that asks the
name server is led to the proxy of the broker. What is remembered is what the server sent, not what was changed.
"""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass
from typing import Self

from tests.interop.java import LOOPBACK, free_port
from tests.interop.wire import Frame, split_frames


@dataclass(frozen=True, slots=True)
class Recorded:
    """A frame, where it went and on which connection."""

    connection: int
    to_server: bool
    frame: Frame


class Recorder:
    """Listens on `port`, passes everything on to `target`, both on the loopback address; a context manager."""

    def __init__(self, target: int, *neighbours: int) -> None:
        self.port = free_port(*neighbours)
        self.target = target
        self.replacements: list[tuple[bytes, bytes]] = []
        self._lock = threading.Lock()
        self._frames: list[Recorded] = []
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server((LOOPBACK, self.port))
        self._connections = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def frames(self) -> list[Recorded]:
        """What passed so far, in the order in which it came in."""
        with self._lock:
            return list(self._frames)

    def replace(self, old: str, new: str) -> None:
        """Replace a text in answers; both must be equally long."""
        assert len(old) == len(new), (old, new)
        self.replacements.append((old.encode(), new.encode()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            _shut(each)
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((LOOPBACK, self.target), 5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._connections += 1
                number = self._connections
                self._sockets += [client, server]
            for source, sink, to_server in ((client, server, True), (server, client, False)):
                arguments = (number, source, sink, to_server)
                threading.Thread(target=self._pass_on, args=arguments, daemon=True).start()

    def _pass_on(self, number: int, source: socket.socket, sink: socket.socket, to_server: bool) -> None:
        rest = b""
        try:
            while data := source.recv(65536):
                frames, rest = split_frames(rest + data)
                with self._lock:
                    self._frames += [Recorded(number, to_server, frame) for frame in frames]
                for frame in frames:
                    sink.sendall(frame.raw if to_server else self._changed(frame.raw))
        except OSError:
            # One side is gone; so is the connection.
            pass
        finally:
            _shut(sink)
            source.close()

    def _changed(self, raw: bytes) -> bytes:
        for old, new in self.replacements:
            raw = raw.replace(old, new)
        return raw


def _shut(each: socket.socket) -> None:
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:
        # Already closed by its peer.
        return
