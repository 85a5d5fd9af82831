"""`tandemq console` as a process, and peers that send partial, ambiguous or invalid requests."""

import contextlib
import resource
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tandemq.run.children import Child

DESCRIPTORS = 256
PARTIAL_REQUESTS = 400
PARTIAL_REQUEST = b"GET /login HTTP/1.1\r\nHost: localhost\r\n"


@contextmanager
def few_descriptors() -> Iterator[None]:
    """Limit processes that the body starts to `DESCRIPTORS` open files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def running_console(directory: Path) -> Iterator[tuple[str, int]]:
    """Run a console without a cluster; yield its address."""
    url = f"sqlite:///{directory / 'console.db'}"
    arguments = ["console", "--port", "0", "--namesrv", "127.0.0.1:1", "--database", url]
    child = Child("console", directory, lambda: arguments)
    with few_descriptors():
        child.start()
    host, _, port = child.address.rpartition(":")
    try:
        yield host, int(port)
    finally:
        assert child.stop(), child.last_lines()


def is_healthy(address: tuple[str, int]) -> bool:
    with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/healthz", timeout=60) as response:
        return bool(response.read() == b"ok\n")


def read_to_end(link: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while data := link.recv(65_536):
            found += data
    return found


def test_partial_requests_keep_no_other_client_out_and_write_no_log(tmp_path: Path) -> None:
    with running_console(tmp_path) as address, ExitStack() as stack:
        links = [stack.enter_context(socket.create_connection(address, 60)) for _ in range(PARTIAL_REQUESTS)]
        for link in links:
            with contextlib.suppress(OSError):  # closed already
                link.sendall(PARTIAL_REQUEST)
        assert is_healthy(address)
    assert sum(path.stat().st_size for path in tmp_path.glob("*.log")) < 20_000


def test_requests_with_length_and_chunks_are_refused_and_the_connection_is_closed(tmp_path: Path) -> None:
    with running_console(tmp_path) as address, socket.create_connection(address, 60) as link:
        head = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        link.sendall(head + b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = read_to_end(link)
        assert answer.startswith(b"HTTP/1.1 400 ") and b"connection: close" in answer.lower()
        assert answer.count(b"HTTP/1.1") == 1


def test_invalid_and_abandoned_requests_write_few_lines(tmp_path: Path) -> None:
    partial_body = (
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\nContent-Length: 9\r\n\r\nname"
    )
    chunked = b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with running_console(tmp_path) as address:
        for _ in range(100):
            for request in (b"nonsense\r\n\r\n", partial_body, PARTIAL_REQUEST):
                with socket.create_connection(address, 60) as link:
                    link.sendall(request)
            with socket.create_connection(address, 60) as link:
                link.sendall(chunked)
                assert link.recv(100).startswith(b"HTTP/1.1 403 ")
                link.sendall(b"zz\r\n")
                assert b"400" not in read_to_end(link)
        assert is_healthy(address)
    text = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert len(text.splitlines()) < 60 and "Traceback" not in text
