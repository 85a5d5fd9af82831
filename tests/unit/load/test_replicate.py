"""Replicate runs: frames in any split, order checked, every byte counted and acknowledged."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from tandemq.load import LoadError, ReplicateOptions, replicate


def transfer(offset: int, size: int) -> bytes:
    return struct.pack(">qI", offset, size) + bytes(size)


@contextlib.contextmanager
def master(stream: bytes, pieces: int) -> Iterator[tuple[str, list[int]]]:
    """Accepts one slave, waits for its report, sends the stream in pieces, and collects the reports."""
    reports: list[int] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            reports.append(struct.unpack(">q", connection.recv(8, socket.MSG_WAITALL))[0])
            for start in range(0, len(stream), pieces):
                connection.sendall(stream[start : start + pieces])
            connection.shutdown(socket.SHUT_WR)
            while len(data := connection.recv(8, socket.MSG_WAITALL)) == 8:
                reports.append(struct.unpack(">q", data)[0])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", reports
        thread.join(60)


@pytest.mark.parametrize("pieces", [1, 5, 12, 13, 700, 100_000])
def test_stream_in_any_split_is_followed_to_its_end(pieces: int) -> None:
    frames = [(5000, 0), (5000, 300), (5300, 1), (5301, 0), (5301, 40)]
    stream = b"".join(transfer(*frame) for frame in frames)
    with master(stream, pieces) as (address, reports):
        result = replicate(ReplicateOptions(address, start_offset=5000, end_offset=5341))
    assert (result.bytes, result.transfers, result.start_offset, result.end_offset) == (341, 3, 5000, 5341)
    assert reports[0] == 5000
    assert reports[-1] == 5341
    assert reports == sorted(reports)


def test_hole_in_the_stream_is_an_error() -> None:
    stream = transfer(0, 10) + transfer(11, 10)
    with master(stream, 1000) as (address, _), pytest.raises(LoadError, match="sent offset 11 where 10"):
        replicate(ReplicateOptions(address))


def test_master_that_closes_is_an_error() -> None:
    with master(transfer(0, 10), 1000) as (address, _), pytest.raises(LoadError, match="closed"):
        replicate(ReplicateOptions(address, end_offset=100))
