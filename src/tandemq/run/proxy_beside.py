"""A proxy beside a broker: `tandemq broker --proxy-port`.

    broker ─► child process `tandemq proxy`, with the broker's settings of TLS, users, name servers and interface
                 └► has ended by itself ─► started again on the same port
    broker stops ─► the proxy first, while the broker still answers what is in progress
    broker is killed ─► the standard input of the proxy closes, and it stops

The settings pass in a file that only the user of the broker can read, since they may contain passwords; it is removed
when the proxy has read it.
"""

import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from pathlib import Path
from tempfile import mkstemp
from typing import IO

from tandemq.config.files import as_text
from tandemq.config.settings import BrokerConfig, ProxyConfig, TlsConfig, key_of
from tandemq.errors import ConfigError, LocalError
from tandemq.run.children import STOP_SECONDS, Child

log = logging.getLogger(__name__)
PAUSE_S = 1.0
"""Pause before a proxy that ended soon after its start is started again, doubled each time; others are at once."""
PAUSE_S_MAX = 30.0
SOON_S = 10.0
SHARED = ("bind_address", "name_servers", "inner_credentials", "ha_secret_file", "log_format")
"""Settings besides those of TLS that a proxy has from its broker."""


def proxy_settings(config: BrokerConfig, port: int) -> dict[str, str]:
    """Return the settings of a proxy beside a broker, by their keys; `port`: for gRPC clients.

    Raises:
        ConfigError: the broker has no name servers.
    """
    if not config.name_servers:
        raise ConfigError("a proxy finds brokers by name servers, of which none is given", hint="add --namesrv")
    names = [*SHARED, *(item.name for item in fields(TlsConfig))]
    found = {key_of(ProxyConfig, name): as_text(getattr(config, name)) for name in names}
    return found | {
        "grpcServerPort": str(port),
        "authenticationEnabled": as_text(config.checks_users),
        "authorizationEnabled": as_text(config.checks_rights),
    }


class _ProxyChild(Child):
    """The process; it writes its log where the broker does."""

    def __init__(self, arguments: Callable[[], list[str]]) -> None:
        super().__init__("proxy", Path(), arguments)

    def open_log(self) -> AbstractContextManager[IO[bytes] | None]:
        """Have it inherit the standard error stream."""
        return nullcontext(None)

    def did_not_start(self, process: subprocess.Popen[bytes]) -> LocalError:
        """Return the error if it has not become ready."""
        self.kill()
        return ConfigError(f"the proxy did not start (exit code {process.returncode}); its log says why")


class ProxyBeside:
    """The proxy of a broker: `spawn`, `wait_ready`, `stop`, in any case."""

    def __init__(self, config: BrokerConfig, port: int) -> None:
        """Start nothing yet. Raises as `proxy_settings`."""
        self._settings = proxy_settings(config, port)
        self._file = Path()
        self._child = _ProxyChild(lambda: ["proxy", "-c", str(self._file)])
        self._is_stopping = threading.Event()
        self._lock = threading.Lock()
        """Held while the process is started, so that `stop` misses none."""
        self._watcher = threading.Thread(target=self._watch, name="proxy", daemon=True)

    @property
    def address(self) -> str:
        """Address for gRPC clients on this machine, "ip:port"."""
        return self._child.address

    def spawn(self) -> None:
        """Start the process without waiting, unless `stop` was called."""
        with self._lock:
            if not self._is_stopping.is_set():
                handle, name = mkstemp(prefix="tandemq-proxy-", suffix=".conf")
                self._file = Path(name)
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write("".join(f"{key} = {value}\n" for key, value in self._settings.items()))
                self._child.spawn()

    def wait_ready(self) -> None:
        """Wait until the process is ready; it is watched from then on.

        Raises:
            ConfigError: it cannot start; it has logged why.
        """
        self._wait_ready()
        # A port that was any free one stays the same.
        self._settings["grpcServerPort"] = self.address.rpartition(":")[2]
        self._watcher.start()

    def _wait_ready(self) -> None:
        try:
            self._child.wait_ready()
        finally:
            self._file.unlink(missing_ok=True)

    def _watch(self) -> None:
        pause_s = 0.0
        while True:
            began_s = time.monotonic()
            self._child.wait()
            is_early = time.monotonic() - began_s < SOON_S
            pause_s = min(max(PAUSE_S, pause_s * 2), PAUSE_S_MAX) if is_early else 0.0
            if not self._is_stopping.is_set():
                log.error("the proxy ended (%s); it is started again in %g s", self._child.ending, pause_s)
            if self._is_stopping.wait(pause_s):
                break
            self.spawn()
            if self._is_stopping.is_set():
                break
            try:
                self._wait_ready()
            except LocalError as error:
                log.error("%s", error)
            else:
                log.info("the proxy runs again at %s", self.address)
        self._child.stop()

    def stop(self) -> None:
        """Stop the process: its clients go elsewhere, and calls in progress are answered. Return when it has ended."""
        with self._lock:
            self._is_stopping.set()
            self._child.signal_stop()
        if self._watcher.is_alive():
            self._watcher.join(2 * STOP_SECONDS)
        else:
            self._child.stop()
            if self._file.name:
                self._file.unlink(missing_ok=True)
