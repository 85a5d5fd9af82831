"""A server that answers every send with SUCCESS and stores nothing: the cheapest peer for a load generator.

Run as a process; prints its port. It looks at the lengths of frames and at the first opaque of each read only, so the
other responses of a read carry the wrong opaque.
"""

from __future__ import annotations

import re
import select
import socket
import struct
import sys

_length_at = struct.Struct(">I").unpack_from
_OPAQUE = re.compile(rb'"opaque":(\d+)')
_RECEIVE_BYTES = 1 << 18


def responses(count: int, opaque: bytes = b"1", code: int = 0) -> bytes:
    """Return that many equal responses."""
    header = (
        b'{"code":%d,"extFields":{"queueId":"0","TRACE_ON":"true","MSG_REGION":"DefaultRegion",'
        b'"msgId":"7F00000100002A9F0000000000000000","queueOffset":"1234567"},"flag":1,"language":"JAVA","opaque":%b,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}' % (code, opaque)
    )
    return (struct.pack(">II", 4 + len(header), len(header)) + header) * count


def whole_frames(data: bytes) -> tuple[int, int]:
    """Return the number of whole frames in `data`, and where they end."""
    count = at = 0
    end = len(data)
    while at + 4 <= end and (stop := at + 4 + _length_at(data, at)[0]) <= end:
        at = stop
        count += 1
    return count, at


def serve(listener: socket.socket, code: int = 0) -> None:
    """Answer until the process ends."""
    epoll = select.epoll()
    epoll.register(listener.fileno(), select.EPOLLIN)
    connections: dict[int, socket.socket] = {}
    rests: dict[int, bytes] = {}
    while True:
        for fd, _ in epoll.poll():
            if fd == listener.fileno():
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[connection.fileno()] = connection
                rests[connection.fileno()] = b""
                epoll.register(connection.fileno(), select.EPOLLIN)
                continue
            try:
                data = connections[fd].recv(_RECEIVE_BYTES)
            except ConnectionResetError:
                data = b""
            if not data:
                connections.pop(fd).close()
                continue
            data = rests[fd] + data
            count, end = whole_frames(data)
            rests[fd] = data[end:]
            found = _OPAQUE.search(data)
            connections[fd].sendall(responses(count, found[1] if found else b"1", code))


def listen() -> socket.socket:
    """Return a listening socket on a free port of the loopback."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    return listener


if __name__ == "__main__":
    the_listener = listen()
    print(the_listener.getsockname()[1], flush=True)
    serve(the_listener, int(sys.argv[1]) if len(sys.argv) > 1 else 0)
