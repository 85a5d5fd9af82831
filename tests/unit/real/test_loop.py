"""The event loop's ports."""

import socket

import pytest

from tandemq.boundary import LinkKind
from tandemq.errors import ConfigError
from tandemq.real.loop import Loop


def test_port_that_must_be_new_is_not_taken_from_a_process_that_has_reserved_it() -> None:
    loop = Loop()
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port = reserved.getsockname()[1]
        with pytest.raises(ConfigError, match="Address already in use"):
            loop.listen("127.0.0.1", port, LinkKind.FAST, is_new=True)
        assert loop.listen("127.0.0.1", port, LinkKind.REMOTING) == port
    loop.close()
