"""The blocking connection of tools: pipelined requests, deadlines, and errors that name address and request."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from tandemq.client.connection import BlockingConnection, try_request
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command
from tandemq.errors import NotConnected, OutcomeUnknown, TandemError, WrongProtocol
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


@contextmanager
def served(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve one connection in a thread; gives the address."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def accept() -> None:
            with closing(listener.accept()[0]) as link:
                serve(link)

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(60)


def requests(link: socket.socket, count: int) -> list[Command]:
    decoder, found = FrameDecoder(), list[Command]()
    while len(found) < count:
        found += map(decode_command, decoder.feed(link.recv(1 << 16)))
    return found


def test_responses_of_several_requests_come_in_the_order_of_the_server() -> None:
    def serve(link: socket.socket) -> None:
        for command in reversed(requests(link, 3)):
            link.sendall(encode_command(command.answer(0, body=command.body)))

    with served(serve) as address, BlockingConnection(address, seconds=60) as opened:
        opaques = [opened.begin(Command(ROUTE, body=bytes([number]))) for number in range(3)]
        answers = [opened.receive() for _ in opaques]
    assert [answer.opaque for answer in answers] == opaques[::-1]
    assert [answer.body for answer in answers] == [b"\2", b"\1", b"\0"]


def test_request_gets_its_own_response_among_others_and_requests_of_the_server() -> None:
    def serve(link: socket.socket) -> None:
        first, second = requests(link, 2)
        link.sendall(encode_command(first.answer(0, body=b"HTTP/ is not at the start")))
        link.sendall(encode_command(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, second.opaque)))
        link.sendall(encode_command(second.answer(17)))

    with served(serve) as address, BlockingConnection(address, seconds=60) as opened:
        opened.begin(Command(ROUTE))
        assert opened.request(Command(ROUTE)).code == 17


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (b"", OutcomeUnknown, "no answer to GET_ROUTEINFO_BY_TOPIC from {address}: the connection was closed instead"),
        (b"HTTP/1.1 400 Bad Request\r\n", WrongProtocol, "{address}: the server at this port answers HTTP"),
        (b"\x15\x03\x03\0\2\2\x28", WrongProtocol, "{address}: the server at this port requires TLS"),
        (b"\xff" * 9, OutcomeUnknown, "no answer to GET_ROUTEINFO_BY_TOPIC from {address}: frame of"),
    ],
)
def test_server_that_does_not_answer_is_named_with_the_request(
    data: bytes, kind: type[TandemError], reason: str
) -> None:
    def serve(link: socket.socket) -> None:
        requests(link, 1)
        link.sendall(data)

    with served(serve) as address:
        with BlockingConnection(address, seconds=60) as opened, pytest.raises(kind) as raised:
            opened.request(Command(ROUTE))
        assert reason.format(address=address) in str(raised.value)


def test_response_that_drips_in_is_not_awaited_longer_than_the_limit() -> None:
    over = threading.Event()

    def serve(link: socket.socket) -> None:
        frame = encode_command(requests(link, 1)[0].answer(0, body=bytes(10_000)))
        for at in range(10_000):
            if over.wait(0.02):
                return
            link.sendall(frame[at : at + 1])

    with served(serve) as address, BlockingConnection(address, seconds=0.3) as opened:
        try:
            with pytest.raises(OutcomeUnknown, match="timed out"):
                opened.request(Command(ROUTE))
        finally:
            over.set()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:", "127.0.0.1:99999", "nowhere"])
def test_address_without_a_server_is_not_connected(address: str) -> None:
    with pytest.raises(NotConnected, match="no process answers at"):
        BlockingConnection(address)
    assert try_request(address, Command(ROUTE)) is None
