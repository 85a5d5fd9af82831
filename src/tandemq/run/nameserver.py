"""A name server process: its data directory, its port, its event loop."""

import logging
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from socket import gethostname

from tandemq.boundary import LinkKind, Turn
from tandemq.config.settings import NameServerConfig
from tandemq.nameserver.node import NameServer
from tandemq.real.disk import RealDisk
from tandemq.real.loop import Loop
from tandemq.real.network.addresses import text_of
from tandemq.real.network.listening import ALL_INTERFACES
from tandemq.real.service_manager import Supervisor
from tandemq.run.account_files import AccountDirectory
from tandemq.run.monitoring import Monitoring
from tandemq.run.secret import open_keyring
from tandemq.run.service_reports import report_to
from tandemq.run.tls import CertificateWatch, protect

log = logging.getLogger(__name__)


class NameServerProcess:
    """One name server: `open`, then `run` until `stop`, then `close`."""

    def __init__(self, config: NameServerConfig) -> None:
        """Create the process without opening anything."""
        self.config = config
        self._loop: Loop | None = None
        self._node: NameServer | None = None
        self._disk: RealDisk | None = None
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
        """Lock the data directory and bind the port.

        Raises:
            ConfigError: the port, the secret file or a file of accounts cannot be used.
            DiskFailed: the data directory cannot be used.
            StoreLocked: another process uses the directory.
            StoreDamaged: a file in it cannot be read.
        """
        disk = RealDisk(Path(self.config.data_path).expanduser(), setting="kvConfigPath")
        disk.lock()
        self._disk = disk
        self._loop = Loop(
            connections_max=lambda: self._present.connections_max,
            is_member=lambda host: self._node is not None and host in self._node.broker_hosts(),
            untaken_max=lambda: self._present.untaken_bytes_max,
        )
        try:
            self._watch = CertificateWatch(protect(self._loop, self.config))
            self.port = self._loop.listen(self.config.bind_address, self.config.listen_port, LinkKind.REMOTING)
            keyring = open_keyring(self.config.ha_secret_file)
            with disk.named():
                accounts = AccountDirectory(self.config.acl_path) if self.config.acl_path else None
                config = replace(self.config, listen_port=self.port)
                self._node = NameServer(config, disk, self._loop, keyring, accounts)
            if self.config.is_monitored:
                identity = f"{gethostname()}:{self.port}"
                self._monitoring = Monitoring(
                    self.config, "tandemq-namesrv", self._node, self._loop, identity, expiries=self._watch.expiries
                )
            self._loop.accept()
            self._watch.start()
        except BaseException:
            self.close()
            raise
        log_open_access(self.config, self.port)

    @property
    def _present(self) -> NameServerConfig:
        """The present settings, which may change while the name server runs."""
        return self.config if self._node is None else self._node.config

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
        """Send clients away, close the sockets and files."""
        if self._watch is not None:
            self._watch.close()
        node = self._node
        if self._loop is not None and node is not None:
            node.stop()
            self._loop.finish(Turn(), node, lambda: node.is_left)
        if self._monitoring is not None:
            self._monitoring.close()
        if self._loop is not None:
            self._loop.close()
        if self._node is not None:
            self._node.close()
        if self._disk is not None:
            self._disk.unlock()
        self._loop = self._node = self._disk = self._monitoring = None


def log_open_access(config: NameServerConfig, port: int) -> None:
    """Log what unauthenticated peers can write: a warning, unless only this machine reaches the name server."""
    level = logging.INFO if ip_address(config.bind_address).is_loopback else logging.WARNING
    if not config.authentication_enable:
        log.log(
            level,
            "access: authenticationEnabled is off: any client that reaches port %d can register brokers, to which "
            "producers then send messages",
            port,
        )
    if config.registry_enable and not config.ha_secret_file:
        log.log(
            level,
            "registry: no haSecretFile: any peer that reaches port %d can write to the registry and stop brokers",
            port,
        )
