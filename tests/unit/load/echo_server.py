"""A server that answers every send with SUCCESS and stores nothing: the cheapest peer for a load generator.

Run as a process; prints its port. The frames of one generator all have one length, so the frames and opaques of a read
lie at a constant distance, and all responses are joined in one call.
"""

from __future__ import annotations

import select
import socket
import struct
import sys

_length_at = struct.Struct(">I").unpack_from
_HEAD = (
    b'{"code":%d,"extFields":{"queueId":"0","TRACE_ON":"true","MSG_REGION":"DefaultRegion",'
    b'"msgId":"7F00000100002A9F0000000000000000","queueOffset":"1234567"},"flag":1,"language":"JAVA","opaque":'
)
_TAIL = b',"serializeTypeCurrentRPC":"JSON","version":479}'


def responses(opaques: list[bytes], code: int = 0) -> bytes:
    """Return one response per opaque, in order."""
    head = _HEAD % code
    size = len(head) + 9 + len(_TAIL)
    before = struct.pack(">II", 4 + size, size) + head
    return before + (_TAIL + before).join(opaques) + _TAIL if opaques else b""


def take_opaques(data: bytes) -> tuple[list[bytes], int]:
    """Return the opaques of the whole frames in `data`, which must have one length, and where they end."""
    if len(data) < 4 or len(data) < (size := 4 + _length_at(data)[0]):
        return [], 0
    end = len(data) // size * size
    first = data.index(b'"opaque":') + 9
    return [data[at : at + 9] for at in range(first, end, size)], end


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
                data = connections[fd].recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                connections.pop(fd).close()
                continue
            data = rests[fd] + data
            opaques, end = take_opaques(data)
            rests[fd] = data[end:]
            connections[fd].sendall(responses(opaques, code))


def listen() -> socket.socket:
    """Return a listening socket on a free port of the loopback."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(512)
    return listener


if __name__ == "__main__":
    the_listener = listen()
    print(the_listener.getsockname()[1], flush=True)
    serve(the_listener, int(sys.argv[1]) if len(sys.argv) > 1 else 0)
