"""RocketMQ's C++ remoting client as a child process: `librocketmq.so` of the package `rocketmq`, by its Python binding.

    with CppDriver(directory, namesrv=address) as client:
        consumer = client.begin("push", topic="T", group="G")
        producer = client.begin("produce", topic="T", group="P", prefix="a", interval_ms=5)

The program is cpp_driver/driver.py, which describes its orders. The library is for Linux on x86-64.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.interop.driver import LineDriver
from tests.interop.grpc_clients import installed
from tests.interop.java import HERE, REPOSITORY

_DRIVER = HERE / "cpp_driver" / "driver.py"


def cpp_environment() -> Path:
    """Return the virtual environment of the client; made if its lock file is new.

    Raises:
        PeerError: pip failed; its output is in the message.
    """
    lock = REPOSITORY / "requirements-cpp-client.lock"
    install = ["{}/bin/python", "-m", "pip", "install", "--quiet", "--no-compile", "--require-hashes", "-r", str(lock)]
    return installed("cpp-client", [lock], [sys.executable, "-m", "venv", "{}"], install)


class CppDriver(LineDriver):
    """A process with the client.

    Args:
        directory: home and logs.
        defaults: values given to every order, for example namesrv.
    """

    def __init__(self, directory: Path, **defaults: str | int) -> None:
        super().__init__("cpp", directory, **defaults)

    def command(self) -> list[str]:
        """Return the command line."""
        return [str(cpp_environment() / "bin" / "python"), str(_DRIVER)]

    def environment(self) -> dict[str, str]:
        """Return the environment: the client writes its logs below its home."""
        return {**super().environment(), "HOME": str(self.directory), "PYTHONPATH": str(REPOSITORY)}
