"""A cluster inside this process: a name server and broker groups, each node with an event loop in its own thread.

    LocalCluster ─┬─ NameServerProcess                       thread
                  ├─ LocalBroker broker-a 0 (the master)     thread, store directory
                  ├─ LocalBroker broker-a 1 (its slave)      thread, store directory
                  └─ LocalBroker broker-b 0 …

For tests of TandemQ and of users (`pytest_plugin`): all nodes listen on free ports of 127.0.0.1, files are small,
brokers register at once and slaves copy metadata several times a second. `start` returns when every broker is
registered and every slave is in sync. In the modes `slave-consume` and `elect` the name server hosts the registry, and
the groups are configured there before brokers start. All threads share one interpreter; for the full speed of a cluster
or a real kill, `run.children` starts the same nodes as processes.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tandemq.broker.node import Broker
from tandemq.config.files import load_broker_config, load_name_server_config
from tandemq.config.samples import ON_ANY_DISK
from tandemq.config.settings import BrokerConfig
from tandemq.config.tls import ClientTls
from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.registry.records import Mode
from tandemq.errors import ConfigError, LocalError, NetworkError
from tandemq.run.broker import BrokerProcess
from tandemq.run.children import group_name
from tandemq.run.groups import configure, has_registry
from tandemq.run.local_tls import DIRECTORY_NAME, ClusterCertificates, make_certificates
from tandemq.run.nameserver import NameServerProcess
from tandemq.run.ports import FAST_PORT_DISTANCE, LOOPBACK, ReservedPorts, Setting
from tandemq.run.secret import SECRET_FILE_NAME, make_secret_file

START_SECONDS = 60.0
_POLL_SECONDS = 0.001
_SMALL: dict[str, Setting] = {
    "bindAddress": LOOPBACK,
    "brokerIP1": LOOPBACK,
    "brokerIP2": LOOPBACK,
    "listenPort": 0,
    "haListenPort": 0,
    "registerNameServerPeriodMin": 1,
    "registerNameServerPeriod": 1_000,
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 20 * 3_000,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 20_000,
    "flushConsumerOffsetInterval": 500,
    "haReconnectInterval": 100,
    "metadataSyncInterval": 200,
    **ON_ANY_DISK,
}


class LocalBroker:
    """One broker of a local cluster. It can be stopped, killed and restarted on the same ports and store."""

    def __init__(self, config: BrokerConfig) -> None:
        """Create the broker without starting it."""
        self._config = config
        self._reserved = ReservedPorts()
        self._process: BrokerProcess | None = None
        self._thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        """Name of its group."""
        return self._config.broker_name

    @property
    def broker_id(self) -> int:
        """Its id within the group. 0: the master, except in mode elect."""
        return self._config.broker_id

    @property
    def store(self) -> Path:
        """Its store directory."""
        return Path(self._config.store_path)

    @property
    def is_running(self) -> bool:
        """Whether its event loop is running."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def address(self) -> str:
        """Address for clients, "ip:port"; only while it runs."""
        return self._running().address

    @property
    def ha_address(self) -> str:
        """Address for slaves, "ip:port"; only while it runs."""
        return self._running().ha_address

    @property
    def node(self) -> Broker:
        """The broker object. Its thread owns it: read it, but do not modify it."""
        return self._running().node

    def _running(self) -> BrokerProcess:
        if self._process is None:
            raise LocalError(f"broker {self.name}/{self.broker_id} is not running", hint="start it first")
        return self._process

    def start(self) -> None:
        """Open the store, bind the ports and run the event loop; returns before the broker is registered.

        Raises:
            StoreError, ConfigError: see `BrokerProcess.open`.
            LocalError: it is running already.
        """
        if self._process is not None:
            raise LocalError(f"broker {self.name}/{self.broker_id} is running already")
        if not self._config.listen_port:
            listen = self._reserved.reserve(-FAST_PORT_DISTANCE)
            self._config = replace(
                self._config, listen_port=listen, ha_port=self._config.ha_port or self._reserved.reserve()
            )
        process = BrokerProcess(self._config)
        process.open()
        self._process = process
        self._thread = _run(process.run, f"{self.name}-{self.broker_id}")

    def stop(self) -> None:
        """Stop it as SIGTERM does: it unregisters and closes its store. Does nothing if it is not running."""
        self._end(clean=True)

    def kill(self) -> None:
        """Stop it as SIGKILL does: connections are cut, nothing is saved. Does nothing if it is not running."""
        self._end(clean=False)

    def close(self) -> None:
        """Stop it and release its ports."""
        self.stop()
        self._reserved.close()

    def _end(self, *, clean: bool) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.stop()
            assert self._thread is not None, "a process runs in a thread"
            self._thread.join()
            process.close(clean=clean)

    def is_registered(self) -> bool:
        """Return whether all its name servers have accepted its registration; False while it has no permissions."""
        registration = self.node.registration
        return registration.broker_id is not None and registration.registered == set(self._config.name_servers)

    def is_master(self) -> bool:
        """Return whether it is running as the active master, by its settings or by its group's record."""
        if not self.is_running:
            return False
        node = self.node
        return node.is_master and (node.failover is None or node.failover.member.stage is MemberStage.SERVING)

    def members_in_sync(self) -> int:
        """Return the size of the in-sync set in the group's record, as this broker knows it."""
        failover = self.node.failover
        state = None if failover is None else failover.member.view.state
        return 0 if state is None else len(state.in_sync)

    def slaves_in_sync(self) -> int:
        """Return the number of slaves that have all data of this broker's log."""
        node = self.node
        return sum(offset >= node.store.log.written_end for offset in list(node.replication.masters.acked_offsets()))

    def __repr__(self) -> str:
        """Show name, id and address."""
        return f"<LocalBroker {self.name}/{self.broker_id} {self.address if self._process else 'stopped'}>"


class LocalCluster:
    """A name server and broker groups of one master and its slaves; a context manager.

    Args:
        directory: directory of the stores; those of an earlier run are opened again.
        groups: number of broker groups.
        slaves: number of slaves per group.
        mode: failover mode: "static", "slave-consume" or "elect" (docs/guides/failover.md).
        settings: broker settings by RocketMQ's keys, for all brokers; they override those of this module.
        tls: encrypt all connections, with certificates made for the cluster; those without TLS are closed.
    Raises:
        ConfigError: a setting is unknown or malformed.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        groups: int = 1,
        slaves: int = 0,
        mode: str = "static",
        settings: Mapping[str, Setting] | None = None,
        tls: bool = False,
    ) -> None:
        """Create the cluster without starting it."""
        self.directory = Path(directory)
        self._certificates = ClusterCertificates.kept_in(self.directory / DIRECTORY_NAME) if tls else None
        self.mode = mode_of(mode)
        self._shape = (groups, slaves)
        self._settings = dict(settings or {})
        self._name_server: NameServerProcess | None = None
        self._name_server_thread: threading.Thread | None = None
        self.brokers: list[LocalBroker] = []
        """Masters first, then slaves, each sorted by group."""
        # Invalid settings are reported before anything starts.
        self._config_of(group_name(0), 0)

    @property
    def name_servers(self) -> str:
        """Name server address for clients, "ip:port"."""
        if self._name_server is None:
            raise LocalError("the cluster is not running", hint="start it, or use it in a `with` statement")
        return self._name_server.address

    @property
    def tls(self) -> ClientTls | None:
        """TLS that clients need (their argument `tls`); None if the cluster has none."""
        return self._certificates.client_tls() if self._certificates is not None else None

    def broker(self, name: str = "broker-a", broker_id: int = 0) -> LocalBroker:
        """Return one of its brokers; by default broker 0 of the first group."""
        for found in self.brokers:
            if (found.name, found.broker_id) == (name, broker_id):
                return found
        raise LocalError(f"broker {name}/{broker_id} does not exist", hint=f"brokers: {self.brokers}")

    def master(self, name: str = "broker-a") -> LocalBroker:
        """Wait for the active master of a group, and return it.

        Raises:
            NetworkError: there was none in time.
        """
        self.wait_until(lambda: any(broker.name == name and broker.is_master() for broker in self.brokers))
        return next(broker for broker in self.brokers if broker.name == name and broker.is_master())

    @property
    def address(self) -> str:
        """Address of the first group's master, "ip:port"."""
        return self.master().address

    @property
    def registry(self) -> str:
        """Address of the registry, "namesrv://ip:port"; "" in mode static."""
        return "" if self.mode is Mode.STATIC else f"namesrv://{self.name_servers}"

    @property
    def secret_file(self) -> str:
        """Secret file for authentication between brokers and name server, and of tools at the registry."""
        return str(self._settings.get("haSecretFile", self.directory / SECRET_FILE_NAME))

    def start(self) -> None:
        """Start all nodes, and return when all brokers are registered and all slaves are in sync.

        Raises:
            NetworkError: the cluster was not ready within START_SECONDS.
            StoreError, ConfigError: a broker cannot be started; all others are stopped.
        """
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        groups, slaves = self._shape
        self.directory.mkdir(parents=True, exist_ok=True)
        make_secret_file(self.directory / SECRET_FILE_NAME)
        secret = self.secret_file
        data = self.directory / "namesrv"
        is_hosted = self.mode is not Mode.STATIC or has_registry(data)
        encrypted: dict[str, str] = {}
        if self._certificates is not None:
            make_certificates(self.directory / DIRECTORY_NAME)
            encrypted = self._certificates.node_settings()
        config = replace(
            load_name_server_config("", path="settings", warn=_ignore, overrides=encrypted),
            bind_address=LOOPBACK,
            listen_port=0,
            data_path=str(data),
            registry_enable=is_hosted,
            ha_secret_file=secret,
        )
        server = NameServerProcess(config)
        server.open()
        self._name_server, self._name_server_thread = server, _run(server.run, "name-server")
        names = [group_name(number) for number in range(groups)]
        if is_hosted:
            configure(f"namesrv://{server.address}", names, self.mode, slaves + 1, secret_file=secret, tls=self.tls)
        for broker_id in range(slaves + 1):
            members = [LocalBroker(self._config_of(name, broker_id)) for name in names]
            self.brokers += members
            for member in members:
                member.start()
            if self.mode is Mode.STATIC:  # a slave gets its master's address from its first registration
                self._wait_registered()
        self._wait_registered()
        self.wait_in_sync()

    def _wait_registered(self) -> None:
        self.wait_until(lambda: all(broker.is_registered() for broker in self.brokers))

    def _config_of(self, name: str, broker_id: int) -> BrokerConfig:
        _, slaves = self._shape
        settings: dict[str, Setting] = {**_SMALL, "brokerRole": "SYNC_MASTER" if slaves else "ASYNC_MASTER"}
        settings["haSecretFile"] = self.secret_file
        if self._certificates is not None and self._name_server is not None:
            settings |= self._certificates.node_settings() | self._certificates.replication_settings()
        settings |= self._settings
        settings |= {
            "brokerName": name,
            "brokerId": broker_id,
            "storePathRootDir": str(self.directory / f"{name}-{broker_id}"),
            "namesrvAddr": self._name_server.address if self._name_server is not None else "",
        }
        if self._name_server is not None:
            settings["registryAddr"] = self.registry
        if broker_id:
            settings["brokerRole"] = "SLAVE"
        texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in settings.items()}
        return load_broker_config("", path="settings", warn=_ignore, overrides=texts)

    def wait_in_sync(self, seconds: float = START_SECONDS) -> None:
        """Wait until all running slaves have all data and metadata (topics, groups, offsets) of their masters.

        With a registry, the group's record must list them as in sync; in mode elect every group must have a master.

        Raises:
            NetworkError: they were not in sync in time.
        """
        self.wait_until(self._is_in_sync, seconds)

    def _is_in_sync(self) -> bool:
        groups: dict[str, list[LocalBroker]] = {}
        for broker in self.brokers:
            if broker.is_running:
                groups.setdefault(broker.name, []).append(broker)
        return all(map(self._is_group_in_sync, groups.values()))

    def _is_group_in_sync(self, running: list[LocalBroker]) -> bool:
        master = next((broker for broker in running if broker.is_master()), None)
        if master is None:  # without a master that will return, slaves have nothing to copy
            if self.mode is Mode.STATIC:
                return all(broker.broker_id for broker in running)
            return self.mode is Mode.SLAVE_CONSUME and all(map(_is_named_slave, running))
        if self.mode is not Mode.STATIC and master.members_in_sync() < len(running):
            return False
        slaves = [broker for broker in running if broker is not master]
        return master.slaves_in_sync() >= len(slaves) and all(map(_has_tables, slaves))

    def wait_until(self, condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Wait until a condition is true.

        Raises:
            NetworkError: it was not in time.
        """
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise NetworkError(f"the condition was not met within {seconds:g} s: {self.brokers}")
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Stop all nodes cleanly, slaves first; files are kept. Calling it again does nothing."""
        for broker in reversed(self.brokers):
            broker.close()
        self.brokers.clear()
        server, self._name_server = self._name_server, None
        if server is not None:
            server.stop()
            if self._name_server_thread is not None:
                self._name_server_thread.join()
            server.close()

    def __enter__(self) -> Self:
        """Start the cluster."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the cluster."""
        self.close()


def mode_of(name: str) -> Mode:
    """Return the mode with this name.

    Raises:
        ConfigError: there is none.
    """
    try:
        return Mode(name)
    except ValueError:
        raise ConfigError(f"{name!r} is not a mode", hint=f"use one of {', '.join(m.value for m in Mode)}") from None


def _is_named_slave(broker: LocalBroker) -> bool:
    """Return whether the group's record, as a broker has read it, names another one as the master."""
    failover = broker.node.failover
    state = None if failover is None else failover.member.view.state
    return state is not None and state.master != broker.broker_id


def _has_tables(slave: LocalBroker) -> bool:
    side = slave.node.replication.slave
    return side is not None and side.has_tables


def _run(target: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=f"tandemq-{name}", daemon=True)
    thread.start()
    return thread


def _ignore(_text: str) -> None:
    """Ignore warnings, which concern configuration files."""
