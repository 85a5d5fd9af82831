"""A broker process: its store directory, its ports, its event loop."""

import logging
import os
import time
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from random import Random

from tandemq.boundary import LinkKind
from tandemq.broker.kernel.context import Machine
from tandemq.broker.node import Broker
from tandemq.config.settings import BrokerConfig, parse_delay_levels
from tandemq.errors import ConfigError
from tandemq.real.clock import read_clock
from tandemq.real.disk import RealDisk
from tandemq.real.loop import Loop
from tandemq.real.network.addresses import own_ip, text_of
from tandemq.real.network.listening import has_ipv6
from tandemq.real.network.tls import between_brokers
from tandemq.real.service_manager import Supervisor
from tandemq.registry import NAME_SERVER, parse_address
from tandemq.run.account_files import open_account_files
from tandemq.run.monitoring import Monitoring
from tandemq.run.ports import FAST_PORT_DISTANCE
from tandemq.run.registry_session import ClosableSession, open_session
from tandemq.run.secret import check_private, open_keyring
from tandemq.run.service_reports import report_to
from tandemq.run.store_identity import claim
from tandemq.run.tls import CertificateWatch, protect
from tandemq.telemetry.buckets import DurationBuckets

log = logging.getLogger(__name__)
FAST_PORT = f"fast port, listenPort - {FAST_PORT_DISTANCE}"
FREE_PORT_TRIES = 20


class BrokerProcess:
    """One broker: `open`, then `run` until `stop`, then `close`."""

    def __init__(self, config: BrokerConfig, *, accept_loss: bool = False) -> None:
        """Create the process without opening anything.

        `accept_loss`: do not wait for slaves that may have data that a crash lost here.
        """
        self.config = config
        self._accept_loss = accept_loss
        self._disk: RealDisk | None = None
        self._loop: Loop | None = None
        self._registry: ClosableSession | None = None
        self._node: Broker | None = None
        self._monitoring: Monitoring | None = None
        self._watch: CertificateWatch | None = None
        self.port = self.fast_port = self.ha_port = 0

    @property
    def node(self) -> Broker:
        """The broker; only after `open`."""
        assert self._node is not None, "open first"
        return self._node

    @property
    def address(self) -> str:
        """Address for clients, "ip:port"."""
        return text_of((self._advertised(), self.port))

    @property
    def ha_address(self) -> str:
        """Address for slaves, "ip:port"."""
        return text_of((self.config.ha_advertised_ip.strip("[]") or self._advertised(), self.ha_port))

    @property
    def metrics_address(self) -> str:
        """Address of `/metrics`, "ip:port"; "" if it is off."""
        return "" if self._monitoring is None else self._monitoring.address

    def open(self) -> None:
        """Lock and open the store, bind the ports, start to register.

        Raises:
            StoreLocked, StoreDamaged, DiskFull, DiskFailed: the store directory cannot be used.
            ConfigError: a port cannot be used, or the store belongs to another broker.
        """
        disk = RealDisk(Path(self.config.store_path).expanduser())
        disk.lock()
        self._disk = disk
        if self.config.is_monitored:
            disk.writes = DurationBuckets()
        loop = Loop(
            connections_max=lambda: self._present.connections_max,
            is_member=lambda host: self._node is not None and host in member_hosts(self._node),
            untaken_max=lambda: self._present.untaken_bytes_max,
            busy_poll_us=self.config.busy_poll_us,
        )
        self._loop = loop
        try:
            claim(disk, self.config)
            keyring = open_keyring(self.config.ha_secret_file)
            self._protect(loop)
            self._listen(loop)
            self._open_registry(loop)
            config = replace(self.config, listen_port=self.port, ha_port=self.ha_port)
            now = read_clock()
            delays = parse_delay_levels(config.delay_levels)
            with disk.named():
                self._node = Broker(
                    config,
                    disk,
                    loop,
                    Random(),
                    read_machine(),
                    now,
                    delays,
                    accept_loss=self._accept_loss,
                    keyring=keyring,
                    account_files=open_account_files(config),
                )
            if self.config.is_monitored:
                identity = f"{config.broker_name}/{config.broker_id}"
                expiries = self._watch.expiries if self._watch is not None else dict
                self._monitoring = Monitoring(
                    config, "tandemq-broker", self._node, loop, identity, disk.writes, expiries
                )
            loop.accept()
        except BaseException:
            self.close(clean=False)
            raise
        log_open_access(config)
        log_unreachable((self.address, self.ha_address))
        if self._watch is not None:
            self._watch.start()
        self._node.listening(self.address, self.ha_address, now)

    def _open_registry(self, loop: Loop) -> None:
        """Open the session at ZooKeeper or etcd. The broker itself has the protocol of a name server's registry."""
        text = self.config.registry_address
        if not text or parse_address(text).kind == NAME_SERVER:
            return
        session = open_session(parse_address(text), self.config.registry_session_ms, loop.wake)
        self._registry = loop.registry = session

    def _protect(self, loop: Loop) -> None:
        config = self.config
        watched = protect(loop, config)
        if config.ha_tls_cert_file:
            check_private("haTlsKeyFile", config.ha_tls_key_file)
            tls = between_brokers(
                config.ha_tls_cert_file, config.ha_tls_key_file, config.ha_tls_ca_file, config.ha_tls_server_name
            )
            loop.protect(LinkKind.HA_MASTER, tls)
            loop.protect(LinkKind.HA_SLAVE, tls)
            watched.append(tls)
        self._watch = CertificateWatch(watched)

    @property
    def _present(self) -> BrokerConfig:
        """The present settings, which may change while the broker runs."""
        return self.config if self._node is None else self._node.config

    def _listen(self, loop: Loop) -> None:
        bind = self.config.bind_address
        self.port, self.fast_port = self._listen_to_clients(loop, bind, self.config.listen_port)
        replication = self.config.replication_port
        setting = "haListenPort" if self.config.ha_port else "listenPort + 1, as haListenPort is not set"
        self.ha_port = loop.listen(bind, replication, LinkKind.HA_MASTER, f"replication port, {setting}")

    def _listen_to_clients(self, loop: Loop, bind: str, port: int) -> tuple[int, int]:
        """Bind the listen port and the fast port; if `port` is 0, find a free port whose fast port is free too."""
        for _ in range(0 if port else FREE_PORT_TRIES):
            found = loop.listen(bind, 0, LinkKind.REMOTING)
            try:
                return found, loop.listen(bind, found - FAST_PORT_DISTANCE, LinkKind.FAST, FAST_PORT, is_new=True)
            except ConfigError:  # that fast port is in use
                loop.unlisten(found)
        found = loop.listen(bind, port, LinkKind.REMOTING)
        return found, loop.listen(bind, found - FAST_PORT_DISTANCE, LinkKind.FAST, FAST_PORT)

    def _advertised(self) -> str:
        servers = self.config.name_servers
        return self.config.advertised_ip.strip("[]") or (own_ip(servers[0]) if servers else "127.0.0.1")

    def run(self, supervisor: Supervisor | None = None) -> None:
        """Serve until `stop` is called. `supervisor`: receives reports that the loop turns."""
        assert self._loop is not None, "open first"
        report_to(supervisor, self._loop, self.node, self.address)
        self._loop.run(self.node if self._monitoring is None else self._monitoring.metered)

    def stop(self) -> None:
        """Make `run` return. Callable from any thread or signal handler."""
        if self._loop is not None:
            self._loop.stop()

    def close(self, *, clean: bool = True) -> None:
        """Unregister, save and close. With `clean` False nothing is saved, as after a crash."""
        is_clean_stop = self._node is not None and clean
        if self._watch is not None:
            self._watch.close()
        if self._node is not None and self._loop is not None and clean:
            node = self._node
            self._loop.finish(node.stop(read_clock()), node, lambda: node.is_left)
        if self._monitoring is not None:
            self._monitoring.close()
        if self._registry is not None:
            self._registry.close()
        if self._loop is not None:
            self._loop.close()
        if self._node is not None and clean:
            self._node.close()
        if self._disk is not None:
            self._disk.unlock()
        if is_clean_stop:
            log.info("broker: stopped cleanly")
        self._loop = self._node = self._disk = self._registry = self._monitoring = None


def member_hosts(node: Broker) -> set[str]:
    """Return the hosts of the brokers that replicate with this one: connected, configured or registered ones."""
    addresses = [*node.replication.masters.peers.values(), node.config.ha_master_address]
    if node.failover is not None:
        live = (node.failover.member.view.live or {}).values()
        addresses += [broker.address for broker in live if broker is not None]
    return {address.rpartition(":")[0].strip("[]") for address in addresses if address}


def log_open_access(config: BrokerConfig) -> None:
    """Log each way in which clients and replication are accepted without authentication.

    These are warnings, unless only this machine reaches the broker.
    """
    is_local = ip_address(config.bind_address).is_loopback
    level = logging.INFO if is_local else logging.WARNING
    copying = logging.INFO if is_local and _is_local(config.ha_master_address) else logging.WARNING
    if not config.checks_users:
        log.log(
            level,
            "access: authenticationEnabled is off: any client that reaches port %d may do everything",
            config.listen_port,
        )
    if config.ha_classic_peers:
        log.log(
            level,
            "replication: haClassicPeers %s may use the classic protocol, which has no authentication",
            ";".join(config.ha_classic_peers),
        )
    if config.static_role == "SLAVE" and config.ha_protocol == "classic":
        log.log(copying, "replication: haProtocol = classic: the master is not authenticated")
    is_unproven = not (config.ha_secret_file or config.registry_address)
    if config.static_role == "SLAVE" and config.ha_protocol == "auto" and is_unproven:
        log.log(
            copying,
            "replication: haProtocol = auto without haSecretFile: this slave copies from an unauthenticated master, "
            "TandemQ or Java; set haSecretFile on both if the master is TandemQ",
        )
    if not config.ha_secret_file:
        log.log(level, "replication: no haSecretFile: any peer that reaches port %d can copy the log", config.ha_port)


def _is_local(master_address: str) -> bool:
    """Return whether a master is on this machine, as far as settings say."""
    host = master_address.rpartition(":")[0].strip("[]")
    try:
        return not host or ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def log_unreachable(addresses: tuple[str, ...]) -> None:
    """Log a warning for each advertised address of a family that this machine does not have."""
    for address in dict.fromkeys(addresses):
        if address.startswith("[") and not has_ipv6():
            log.warning(
                "broker: %s is advertised, and this machine has no IPv6: peers reach it only if another host forwards "
                "the port; set brokerIP1 and brokerIP2 to IPv4 addresses",
                address,
            )


def read_machine() -> Machine:
    """Return boot id, memory and time zone of this machine; the boot id is "" where the system has none."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot_id = ""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(boot_id, memory_bytes, -(time.altzone if time.localtime().tm_isdst > 0 else time.timezone))
