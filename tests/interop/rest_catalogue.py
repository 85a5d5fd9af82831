"""Iceberg's own REST catalogue server as a child process: `RESTCatalogServer`, on a database in a file of SQLite.

It is the server with which Iceberg tests its clients. A table is where it was after the server was killed and started
again. It has no authorization, but issues tokens for any credentials.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen

from tests.interop.java import LOOPBACK, JavaJars, Process, free_port, java_executable, wait_until

VERSION = "1.11.0"
_MAIN = "org.apache.iceberg.rest.RESTCatalogServer"
_JVM = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class RestCatalogue:
    """The server; usable as a context manager."""

    def __init__(self, directory: Path) -> None:
        """A server that is not started yet. `directory`: for its database and its tables."""
        self.directory = directory.resolve()
        self.port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        self._process = Process("catalogue", directory, command=self._command, ready=self.port)

    def _command(self) -> list[str]:
        settings = {
            "CATALOG_WAREHOUSE": f"file://{self.directory}/warehouse",
            "CATALOG_URI": f"jdbc:sqlite:{self.directory}/catalogue.db",
            "CATALOG_REST_PORT": str(self.port),
        }
        words = [f"{name}={value}" for name, value in settings.items()]
        return ["env", *words, java_executable(), *_JVM, "-cp", JavaJars.class_path("iceberg", VERSION), _MAIN]

    def start(self) -> Self:
        """Start the server, and wait until it serves."""
        self._process.start()
        wait_until(self.serves, what="the catalogue serves", within_s=30)
        return self

    def kill(self) -> None:
        """Kill the server."""
        self._process.kill()

    def sigstop(self) -> None:
        """Freeze the server: it accepts connections and answers nothing."""
        self._process.sigstop()

    def sigcont(self) -> None:
        """Let the server go on."""
        self._process.sigcont()

    def serves(self) -> bool:
        """Whether it answers."""
        try:
            with urlopen(f"{self.url}/v1/config", timeout=30) as answer:
                return int(answer.status) == 200
        except (URLError, OSError):
            return False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
