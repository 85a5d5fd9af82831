"""What waits to leave on the links of a loop: what memory holds is counted, and who takes nothing goes first."""

import socket
from collections import deque
from collections.abc import Iterator
from time import monotonic_ns

import pytest

from tandemq.boundary import LinkKind
from tandemq.real.network.socket_connection import BUFFER_COST, STALLED_NS, SocketConnection, surplus


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.socket() as made:
        yield made


def a_link(sock: socket.socket, number: int = 1, size: int = 0, taken_ns: int = 0) -> SocketConnection:
    link = SocketConnection(number, sock, LinkKind.REMOTING, is_open=True, out=deque())
    if size:
        link.keep([bytes(size - BUFFER_COST)])
        link.taken_ns = taken_ns
    return link


def test_buffer_counts_whole_until_all_of_it_is_taken(sock: socket.socket) -> None:
    link = a_link(sock)
    assert link.keep([bytes(1_000), b"", bytes(50)]) == 1_050 + 2 * BUFFER_COST == link.held
    assert link.took(999) == 0
    assert link.out_bytes == 51
    assert link.took(1) == 1_000 + BUFFER_COST
    assert link.took(10) == 0
    assert link.took(40) == 50 + BUFFER_COST
    assert (link.held, link.out_bytes, len(link.out)) == (0, 0, 0)


def test_time_is_when_something_was_last_taken_or_began_to_wait(sock: socket.socket) -> None:
    link = a_link(sock)
    link.keep([bytes(10), bytes(10)])
    link.taken_ns = began = link.taken_ns - 1_000
    link.keep([bytes(10)])
    link.took(0)
    assert link.taken_ns == began
    link.took(1)
    assert link.taken_ns > began


def test_small_part_of_a_large_block_does_not_keep_the_block(sock: socket.socket) -> None:
    link, block = a_link(sock), bytes(1 << 20)
    link.keep([memoryview(block)[:400], memoryview(block)[: 1 << 19]])
    assert [view.obj is block for view in link.out] == [False, True]
    slave = a_link(sock)
    slave.kind = LinkKind.HA_MASTER
    slave.keep([memoryview(block)[:400]])
    assert slave.out[0].obj is block, "what follows on this link is of the same block"


def test_those_who_took_nothing_for_longest_go_until_there_is_room(sock: socket.socket) -> None:
    links = [a_link(sock, number, 1_000, taken_ns=100 - number) for number in range(20)]
    found = surplus(links, 20_000, 16_000)
    assert [link.number for link in found] == [19, 18, 17, 16, 15, 14], "an eighth of room besides"


def test_who_keeps_little_is_left_alone_however_long(sock: socket.socket) -> None:
    small = [a_link(sock, number, 300, taken_ns=1) for number in range(10)]
    large = [a_link(sock, number, 10_000, taken_ns=2) for number in range(10, 20)]
    found = surplus([*small, *large, a_link(sock, 99)], 103_000, 60_000)
    assert [link.number for link in found] == [10, 11, 12, 13, 14, 15]


def test_many_small_ones_go_when_they_are_what_it_is(sock: socket.socket) -> None:
    links = [a_link(sock, number, 300, taken_ns=number) for number in range(100)]
    assert len(surplus(links, 30_000, 8_000)) == 77


def test_readers_stay_before_who_has_stalled_or_is_new(sock: socket.socket) -> None:
    now_ns = monotonic_ns()
    links = [a_link(sock, number, 1_000) for number in range(9)]
    for number, link in enumerate(links):
        link.taken_ns = now_ns - 1_000_000 * (100 - number)
    for link in links[:6]:
        link.has_taken = True
    for link in links[3:6]:
        link.taken_ns -= STALLED_NS
    assert [link.number for link in surplus(links, 9_000, 2_000)] == [3, 4, 5, 6, 7, 8, 0, 1]
