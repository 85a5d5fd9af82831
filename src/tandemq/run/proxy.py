"""Processes of a proxy: one that serves, or several that share a port.

    ProxyProcess: port, event loop, node
    ProxyGroup: forks such processes, and starts those again that end by themselves

A stopping process tells its clients to go elsewhere, ends long polls, and answers what is in progress.
"""

import logging
import mmap
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random, SystemRandom
from socket import gethostname

from tandemq.boundary import LinkKind, Turn
from tandemq.client.core.settings import ClientConfig
from tandemq.codec.remoting.signature import member_credentials
from tandemq.config.access import inner_user
from tandemq.config.settings import ProxyConfig
from tandemq.errors import ConfigError
from tandemq.model.access import Credentials
from tandemq.proxy.node import ProxyNode
from tandemq.real.clock import read_clock
from tandemq.real.loop import Loop
from tandemq.real.network.addresses import own_ip, text_of
from tandemq.real.network.listening import ALL_INTERFACES
from tandemq.real.service_manager import REPORT_NS, REPORTS_PER_TIMEOUT, Supervisor
from tandemq.run.monitoring import Monitoring
from tandemq.run.secret import SecretFile
from tandemq.run.service_reports import report_to
from tandemq.run.tls import CertificateWatch, protect

log = logging.getLogger(__name__)
RESTART_S = 1.0
"""Pause before a process that has ended within `SOON_S` of its start is started again; others are at once."""
SOON_S = 10.0
STOP_S = 10.0
"""After this time processes that do not stop are killed."""
SILENT_REPORTS = REPORTS_PER_TIMEOUT


class ProxyProcess:
    """One process of a proxy: `open`, then `run` until `stop`, then `close`."""

    def __init__(self, config: ProxyConfig, *, is_shared: bool = False) -> None:
        """Create the process without opening anything. `is_shared`: whether others listen on the port too."""
        self.config = config
        self._is_shared = is_shared
        self._loop: Loop | None = None
        self._node: ProxyNode | None = None
        self._monitoring: Monitoring | None = None
        self._watch: CertificateWatch | None = None
        self.port = 0

    @property
    def address(self) -> str:
        """Address for clients on this machine, "ip:port"."""
        host = self.config.bind_address
        return text_of(("127.0.0.1" if host in ALL_INTERFACES else host, self.port))

    @property
    def metrics_address(self) -> str:
        """Address of `/metrics`, "ip:port"; "" if it is off."""
        return "" if self._monitoring is None else self._monitoring.address

    def open(self) -> None:
        """Bind the port.

        Raises:
            ConfigError: the port, or a file of TLS, cannot be used.
        """
        config = self.config
        loop = self._loop = Loop(
            connections_max=lambda: config.connections_max, untaken_max=lambda: config.untaken_bytes_max
        )
        try:
            watch = self._watch = CertificateWatch(protect(loop, config, (LinkKind.GRPC,)))
            self.port = loop.listen(
                config.bind_address, config.listen_port, LinkKind.GRPC, "grpcServerPort", is_shared=self._is_shared
            )
            random = Random(SystemRandom().getrandbits(64))
            node = self._node = ProxyNode(config, client_config(config), random, read_clock(), loop)
            if config.is_monitored:
                identity = f"{gethostname()}:{self.port}/{os.getpid()}"
                self._monitoring = Monitoring(config, "tandemq-proxy", node, loop, identity, expiries=watch.expiries)
            loop.accept()
            watch.start()
        except BaseException:
            self.close()
            raise

    def run(self, supervisor: Supervisor | None = None) -> None:
        """Serve until `stop` is called. `supervisor`: receives reports that the loop turns."""
        assert self._loop is not None and self._node is not None, "open first"
        report_to(supervisor, self._loop, self._node, self.address)
        self._loop.run(self._node if self._monitoring is None else self._monitoring.metered)

    def stop(self) -> None:
        """Make `run` return. Callable from any thread or signal handler."""
        if self._loop is not None:
            self._loop.stop()

    def close(self) -> None:
        """Send clients away, close the sockets."""
        if self._watch is not None:
            self._watch.close()
        loop, node = self._loop, self._node
        if loop is not None and node is not None:
            node.leave(read_clock())
            loop.finish(Turn(), node, lambda: node.is_left)
            loop.finish(node.close(read_clock()), node, lambda: True)
        if self._monitoring is not None:
            self._monitoring.close()
        if loop is not None:
            loop.close()
        self._loop = self._node = self._monitoring = None


def client_config(config: ProxyConfig) -> ClientConfig:
    """Return the settings of the client by which a proxy speaks to brokers."""
    ip = own_ip(config.name_servers[0])
    name = f"{ip}@{os.getpid()}#proxy{time.time_ns():x}"
    return ClientConfig(
        name_servers=config.name_servers, client_id=name, ip=ip, pid=os.getpid(), credentials=own_credentials(config)
    )


def own_credentials(config: ProxyConfig) -> Credentials | None:
    """Return the user as which a proxy signs its requests to brokers; None: it signs none.

    Raises:
        ConfigError: the secret file cannot be used.
    """
    inner = inner_user(config)
    if inner is not None:
        return Credentials(*inner)
    return member_credentials(SecretFile(config.ha_secret_file).secrets()[0]) if config.ha_secret_file else None


class Heartbeats:
    """Times at which processes reported that their loops turn, in memory that they share."""

    def __init__(self, processes: int) -> None:
        """Reserve the memory; the processes have to be forked afterwards."""
        self._times = memoryview(mmap.mmap(-1, 8 * processes)).cast("q")

    def beat(self, number: int) -> None:
        """Note that process `number` is alive now."""
        self._times[number] = time.monotonic_ns()

    def oldest_ns(self) -> int:
        """Return how long ago the process that has been silent for longest reported."""
        return time.monotonic_ns() - min(self._times)


class _Heartbeat:
    """Reports of one process of a group to the one that watches them, without which it stops."""

    def __init__(
        self, heartbeats: Heartbeats, number: int, report_ns: int, watcher: int, stop: Callable[[], None]
    ) -> None:
        self.report_ns = report_ns
        self._heartbeats = heartbeats
        self._number = number
        self._watcher = watcher
        self._stop = stop

    def alive(self, status: str) -> None:  # noqa: ARG002  # a `Supervisor`
        self._heartbeats.beat(self._number)
        if os.getppid() != self._watcher:
            log.error("process %d stops: the process that watched it has ended", self._number)
            self._stop()


class ProxyGroup:
    """Processes that share a port: `open`, then `run` until `stop`."""

    def __init__(self, config: ProxyConfig) -> None:
        """Create the group without starting anything."""
        self.config = config
        self._running: dict[int, int] = {}
        """Number of each process, by process id."""
        self._started_s: dict[int, float] = {}
        """When each was started, by its number."""
        self._is_stopping = False
        self._heartbeats = Heartbeats(config.processes)
        self._report_ns = REPORT_NS

    def open(self, report_ns: int = REPORT_NS) -> None:
        """Start the processes. `report_ns`: time between the reports of each that its loop turns.

        Raises:
            ConfigError: one of them could not start; it has logged why.
        """
        self._report_ns = report_ns
        for number in range(self.config.processes):
            read, write = os.pipe()
            self._start(number, partial(os.write, write, b"ready"))
            os.close(write)
            is_ready = bool(os.read(read, 8))
            os.close(read)
            if not is_ready:
                self.stop()
                self.run()
                raise ConfigError(f"process {number} of the proxy did not start")

    def _start(self, number: int, ready: Callable[[], object]) -> None:
        self._started_s[number] = time.monotonic()
        self._heartbeats.beat(number)
        watcher = os.getpid()  # before the fork: it may be killed at any time after it
        process = os.fork()
        if process:
            self._running[process] = number
            return
        code = 1
        try:
            code = self._serve(number, watcher, ready)
        except ConfigError as error:
            log.error("process %d: %s", number, error)
        except BaseException:
            log.exception("process %d of the proxy failed", number)
        finally:
            os._exit(code)

    def _serve(self, number: int, watcher: int, ready: Callable[[], object]) -> int:
        """Serve in a process of its own, until a signal."""
        config = self.config
        if config.scrape_port > 0:
            config = replace(config, metrics_exporter="DISABLE", metrics_port=config.scrape_port + number)
        served = ProxyProcess(config, is_shared=True)
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, lambda *_: served.stop())
        served.open()
        ready()
        served.run(_Heartbeat(self._heartbeats, number, self._report_ns, watcher, served.stop))
        served.close()
        return 0

    def run(self, supervisor: Supervisor | None = None) -> None:
        """Watch the processes until `stop` was called and all have ended.

        `supervisor`: receives reports that their loops turn, for as long as none is silent for SILENT_REPORTS times
        the time between two of its reports.
        """
        killed_s = 0.0
        report_due_ns = 0
        while self._running:
            if supervisor is not None and time.monotonic_ns() >= report_due_ns:
                report_due_ns = time.monotonic_ns() + self._report_ns
                if self._heartbeats.oldest_ns() < SILENT_REPORTS * self._report_ns:
                    supervisor.alive(f"serving with {self.config.processes} processes")
            if self._is_stopping:
                killed_s = killed_s or time.monotonic() + STOP_S
                if time.monotonic() > killed_s:
                    self._signal(signal.SIGKILL)
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                time.sleep(0.05)
                continue
            number = self._running.pop(process)
            if not self._is_stopping:
                code = os.waitstatus_to_exitcode(status)
                log.error("process %d of the proxy ended with %d; it is started again", number, code)
                if time.monotonic() - self._started_s[number] < SOON_S:
                    time.sleep(RESTART_S)
                self._start(number, lambda: None)

    def stop(self) -> None:
        """Stop the processes; `run` returns when they have ended. Callable from a signal handler."""
        self._is_stopping = True
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        for process in list(self._running):
            os.kill(process, number)
