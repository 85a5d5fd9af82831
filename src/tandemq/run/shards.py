"""Several brokers of one machine, each a process, and the process that starts them: `tandemq broker --shards`.

    ShardGroup ─┬─ Shard broker-a      child process `tandemq broker`, with the settings of `config.shards`
                ├─ Shard broker-a-1    …
                ├─ ProxyBeside         one for all of them
                ├─ RoleMover           moves their roles together, if the settings say so
                └─ ShardMonitoring     /metrics, /healthz and /readyz of all of them
    a shard ends by itself ─► started again alone, after a pause
    SIGTERM ─► the proxy, then all shards at once
    SIGKILL ─► the shards go on; the next such process adopts them (`run.shard_record`)

Each shard reports to this process as a broker reports to a service manager (`real.service_manager`): whether its loop
turns, and whether it serves. This process reports to the real one: that it serves once all shards do, and that it
lives. A shard that hangs for longer than the service manager would wait for a broker is killed, and started again.
"""

import logging
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Collection
from pathlib import Path

from tandemq.config.settings import BrokerConfig
from tandemq.config.shards import DIRECTORY, settings_of, shard_configs
from tandemq.errors import ConfigError, LocalError
from tandemq.real.service_manager import ServiceManager
from tandemq.run.adopted_process import AdoptedProcess
from tandemq.run.proxy_beside import ProxyBeside
from tandemq.run.restarted_child import RestartedChild
from tandemq.run.shard_metrics import ShardMonitoring
from tandemq.run.shard_record import LeftShard, ShardRecord, bind_reports
from tandemq.run.shard_roles import RoleMover

log = logging.getLogger(__name__)
START_S = 1e7
"""No limit: after a crash a large store is recovered first."""
STOP_S = 60.0
"""With the time of the proxy it is below `TimeoutStopSec` of the unit."""
REPORT_US = 3_000_000
"""Timeout that shards know: they report three times as often."""
TICK_S = 0.2
_NOT_READY = "not ready: "


def check_other_stores(config: BrokerConfig) -> None:
    """Check that no message is left in the store of a shard that these settings do not start.

    Raises:
        ConfigError: there are such messages.
    """
    directory = Path(config.store_path).expanduser() / DIRECTORY
    names = [path.name for path in directory.iterdir()] if directory.is_dir() and not config.shard_of else []
    left = sorted(int(name) for name in names if name.isdecimal() and int(name) >= config.shards)
    for number in left:
        if any(file.stat().st_blocks for file in directory.glob(f"{number}/commitlog/*")):
            raise ConfigError(
                f"{directory / str(number)} is the store of a shard and has messages, and with shards = "
                f"{config.shards} no broker would deliver them",
                hint=f"start at least {left[-1] + 1} shards; or have all consumed, and move the directory elsewhere",
            )


class Shard(RestartedChild):
    """One shard: its process, and its reports."""

    def __init__(self, config: BrokerConfig, number: int, record: ShardRecord, words: list[str]) -> None:
        """Start nothing yet.

        Args:
            config: its settings.
            number: the shard's.
            record: the files of all shards.
            words: further options of `tandemq broker`.
        """
        token = {"metricsCredentialsFile": str(record.token)} if config.metrics_port != -1 else {}
        settings = settings_of(config) | token
        title = f"shard {config.broker_name}"
        super().__init__(title, ["broker", *words], settings, start_s=START_S, stop_s=STOP_S)
        self.outlive_parent()
        self.directory = record.directory
        self.name = config.broker_name
        self._record = record
        self._digest = record.digest(words, settings)
        self.alive_ns = 0
        """When it last reported that its loop turns, monotonic; 0: not since its start."""
        self._status = ""
        address = record.sockets / str(number)
        self.inbox = bind_reports(address)
        self.set_variables({"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": str(REPORT_US)})

    def spawn(self) -> None:
        """Start the process without waiting, unless `stop` was called."""
        self.alive_ns, self._status = 0, f"{_NOT_READY}is starting"
        super().spawn()

    def was_spawned(self) -> None:
        """See `RestartedChild`."""
        self._record.note(self.name, self.pid, self._digest, {})

    def adopts(self, left: LeftShard) -> bool:
        """Adopt a process that another one has left, if it was ready and has these settings; return whether."""
        if not left.startup or left.settings != self._digest or left.process.poll() is not None:
            return False
        self.adopt(left.process, left.startup)
        log.info("%s runs already, process %d; it is adopted", self.title, left.process.pid)
        return True

    def became_ready(self) -> None:
        """Keep ports that were any free ones for the next start."""
        self._record.note(self.name, self.pid, self._digest, self.startup)
        self.alive_ns = time.monotonic_ns()
        for setting, key in (("listenPort", "address"), ("haListenPort", "haAddress")):
            if self.settings[setting] == "0" and self.settings["listenPort"] in ("0", self._port("address")):
                self.settings[setting] = self._port(key)

    def _port(self, key: str) -> str:
        return str(self.startup[key]).rpartition(":")[2]

    @property
    def metrics_address(self) -> str:
        """Address of its metrics, "ip:port"; "" if it does not run."""
        return "" if self.problem else str(self.startup.get("metrics", ""))

    @property
    def serving_address(self) -> str:
        """Address for clients, "ip:port"; "" if it does not run."""
        return "" if self.problem else self.address

    @property
    def reason(self) -> str:
        """Why it does not serve; "" if it does."""
        return self.problem or (self._status.removeprefix(_NOT_READY) if self._status.startswith(_NOT_READY) else "")

    def take_reports(self) -> None:
        """Read the reports that have arrived."""
        while True:
            try:
                lines = self.inbox.recv(4096).decode(errors="replace").splitlines()
            except BlockingIOError:
                return
            for line in lines:
                key, _, value = line.partition("=")
                if key == "STATUS":
                    self._status = value
                elif key == "WATCHDOG":
                    self.alive_ns = time.monotonic_ns()

    def kill_if_silent(self, timeout_ns: int) -> None:
        """Kill the process if its loop has not turned for so long; 0: never."""
        pid, alive_ns = self.pid, self.alive_ns
        if timeout_ns and pid and alive_ns and not self.problem and time.monotonic_ns() - alive_ns > timeout_ns:
            log.error("%s has been silent for %g s; it is killed", self.title, timeout_ns / 1e9)
            self.alive_ns = 0
            os.kill(pid, signal.SIGKILL)


class _Proxy(ProxyBeside):
    """The proxy of all shards."""

    def __init__(self, config: BrokerConfig, port: int, record: ShardRecord) -> None:
        super().__init__(config, port)
        self._record = record

    def was_spawned(self) -> None:
        """See `RestartedChild`."""
        self._record.note_other(self.pid)


class ShardGroup:
    """All shards: `open`, then `run` until `stop`; `close` in any case."""

    def __init__(self, config: BrokerConfig, *, accept_loss: bool = False, proxy_port: int | None = None) -> None:
        """Start nothing yet.

        Args:
            config: settings with `shards` above 1.
            accept_loss: as for a broker, for each of them.
            proxy_port: port for gRPC clients; None: no proxy.

        Raises:
            ConfigError: the settings of a shard, or of the proxy, cannot be used.
            LocalError: another process starts the shards of this store.
        """
        self.config = config
        configs = shard_configs(config)
        self._is_stopping = threading.Event()
        self._is_open = False
        self._record = ShardRecord(config.store_path)
        self.beside = None if proxy_port is None else _Proxy(config, proxy_port, self._record)
        words = ["--accept-loss"] if accept_loss else []
        self.shards = [Shard(shard, number, self._record, words) for number, shard in enumerate(configs)]
        self._roles: RoleMover | None = None
        self._monitoring: ShardMonitoring | None = None
        self._seen_ns = 0
        """When the loop of `run` last turned, monotonic; 0: not yet."""

    @property
    def metrics_address(self) -> str:
        """Address of `/metrics`, "ip:port"; "" if it is off."""
        return "" if self._monitoring is None else self._monitoring.address

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._is_stopping.is_set()

    def open(self) -> None:
        """Start all processes that do not run already, and return when they are ready; after `stop`, at once.

        Raises:
            ConfigError, LocalError: one of them cannot start, or the port of the metrics cannot be used.
        """
        if self.config.scrape_port != -1:
            self._monitoring = ShardMonitoring(self.config, self.shards, self._record.token, lambda: self.alive_ns)
        if self.config.shard_roles_together:
            names = [shard.name for shard in self.shards]
            self._roles = RoleMover(self.config, names, lambda: [shard.serving_address for shard in self.shards])
        started = self._not_adopted()
        children = [*started, *([self.beside] if self.beside is not None else [])]
        try:
            for child in children:
                child.spawn()
            for child in children:
                if not self._is_stopping.is_set():
                    child.wait_ready()
        except LocalError:
            if not self._is_stopping.is_set():
                raise
        self._is_open = True
        if self._roles is not None:
            self._roles.start()

    def _not_adopted(self) -> list[Shard]:
        """Adopt shards that another process has left, and stop the others. Return what is to be started."""
        left = self._record.left
        adopted = {shard.name for shard in self.shards if shard.name in left and shard.adopts(left[shard.name])}
        stale = {name: found.process for name, found in left.items() if name not in adopted}
        for name, process in stale.items():
            what = "runs with other settings" if left[name].startup else "was being started"
            log.warning("shard %s, process %d, %s; it is stopped", name, process.pid, what)
            process.send_signal(signal.SIGTERM)
        _wait_ended([*stale.values(), *self._record.others])  # a proxy ends by itself
        return [shard for shard in self.shards if shard.name not in adopted]

    @property
    def alive_ns(self) -> int:
        """When the loop that was silent for longest last turned, monotonic: this one, or that of a shard."""
        if not self._seen_ns:
            return time.monotonic_ns()  # a store may be recovered for long
        return min([self._seen_ns, *(shard.alive_ns for shard in self.shards if shard.alive_ns and not shard.problem)])

    def run(self, manager: ServiceManager) -> None:
        """Watch the shards until `stop`, and return when all have ended.

        Raises:
            LocalError: one of them did not stop cleanly.
        """
        report_due_ns, status = 0, ""
        with selectors.DefaultSelector() as selector:
            for shard in self.shards:
                selector.register(shard.inbox, selectors.EVENT_READ, shard)
            while not self._is_stopping.is_set():
                for key, _ in selector.select(TICK_S):
                    key.data.take_reports()
                self._seen_ns = time.monotonic_ns()
                for shard in self.shards:
                    shard.kill_if_silent(manager.timeout_ns)
                status, reported = self._status(), status
                if self._seen_ns >= report_due_ns or status != reported:
                    report_due_ns = self._seen_ns + manager.report_ns
                    manager.alive(status)
        self.close()
        unclean = [shard.name for shard in self.shards if not shard.is_clean]
        if unclean:
            raise LocalError(f"these shards did not stop cleanly: {', '.join(unclean)}", hint="their log says why")

    def _status(self) -> str:
        reasons = [f"{shard.name}: {shard.reason}" for shard in self.shards if shard.reason]
        return f"{_NOT_READY}{'; '.join(reasons)}" if reasons else f"serving with {len(self.shards)} shards"

    def stop(self) -> None:
        """Stop the proxy, then all shards at once. May take as long as a proxy; callable many times."""
        self._is_stopping.set()
        if self._roles is not None:
            self._roles.stop()
        if self.beside is not None and self._is_open:
            self.beside.stop()
        elif self.beside is not None:  # `open` waits for it
            self.beside.begin_stop()
        for shard in self.shards:
            shard.begin_stop()

    def close(self) -> None:
        """Stop what runs, wait for it, and remove what this process has made."""
        self.stop()
        if self.beside is not None:
            self.beside.stop()
        for shard in self.shards:
            shard.stop()
            shard.inbox.close()
        if self._monitoring is not None:
            self._monitoring.close()
        self._record.close()


def _wait_ended(processes: Collection[AdoptedProcess]) -> None:
    """Wait until processes have ended; after STOP_S, kill them."""
    until = time.monotonic() + STOP_S
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            log.error("process %d does not end; it is killed", process.pid)
            process.kill()
            process.wait()
