"""Brokers and name servers that run in a thread of the test's own process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from tandemq.run.broker import BrokerProcess
from tandemq.run.nameserver import NameServerProcess

Server = TypeVar("Server", BrokerProcess, NameServerProcess)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Open a broker or a name server, and run it until the block ends."""
    server.open()
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()
        server.close()
