"""TandemQ's name server and broker as child processes, with the interface of the Java ones in `java`.

They are started as a user starts them: `python -m tandemq namesrv --port N`, `python -m tandemq broker -c FILE`, with
the same broker.conf that a Java broker would get.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tests.interop.java import LOOPBACK, Process, Value, broker_conf, free_port, write_properties

_JAVA_ONLY = {"bindAddress"}
"""Keys of the base configuration that only keep a JVM on the loopback address."""


class OurNameServer(Process):
    """TandemQ's name server.

    Args:
        directory: working directory and log.
        port: 0 takes a free one.
        settings: of its own, under RocketMQ's names.
    """

    version = "ours"

    def __init__(self, directory: Path, port: int = 0, *, settings: Mapping[str, str] | None = None) -> None:
        self.port = port or free_port()
        command = [sys.executable, "-m", "tandemq", "namesrv", "--port", str(self.port)]
        command += [word for key, value in (settings or {}).items() for word in ("--set", f"{key}={value}")]
        super().__init__("namesrv-ours", directory, command=lambda: command, ready=self.port)

    @property
    def address(self) -> str:
        """host:port for clients and brokers."""
        return f"{LOOPBACK}:{self.port}"


class OurBroker(Process):
    """TandemQ's broker; the arguments are those of `java.JavaBroker`, less the JVM's."""

    version = "ours"

    def __init__(
        self,
        directory: Path,
        *,
        namesrv: str,
        port: int = 0,
        store: Path | None = None,
        name: str = "",
        settings: Mapping[str, Value] | None = None,
        **conf: Value,
    ) -> None:
        self.port = port or free_port(-2, 1)
        super().__init__(name or "broker-ours", directory, command=self._command_line, ready=self.port)
        self.store = (store or self.directory / "store").resolve()
        values = broker_conf(self.port, namesrv, self.store, {**(settings or {}), **conf})
        self.conf: dict[str, Value] = {key: value for key, value in values.items() if key not in _JAVA_ONLY}

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def ha_port(self) -> int:
        """Where a master listens for slaves."""
        return int(self.conf["haListenPort"])

    def _command_line(self) -> list[str]:
        conf_path = self.directory / f"{self.name}.conf"
        write_properties(conf_path, self.conf)
        return [sys.executable, "-m", "tandemq", "broker", "-c", str(conf_path)]
