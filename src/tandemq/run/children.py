"""A cluster of child processes on this machine, for `tandemq up` and `tandemq demo`.

    ChildCluster ─┬─ Child "namesrv"       tandemq namesrv --json …      directory/namesrv.log
                  ├─ Child "broker-a-0"    tandemq broker -c FILE        directory/broker-a-0.{conf,log}, broker-a-0/
                  ├─ Child "broker-a-1"    …
                  ├─ Child "broker-b-0"    …
                  └─ Child "console"       tandemq console --json …      directory/console.log; `console_child`

Brokers and name server share directory/replication.secret, which is created at the first start. Each child is the
program that a user would start by hand, with its own configuration file. A child stops when its standard input is
closed, so that it does not outlive a killed parent. Ports are given, or free ones that stay reserved, so that a child
has the same ports when it is restarted; it reports them in the first line of its output. In the modes `slave-consume`
and `elect` the name server hosts the registry, and the groups are configured there before the brokers start, and on
request in the database directory/groups.db, which the console uses too.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tandemq.client.connection import try_request
from tandemq.codec.remoting.fastjson import loads
from tandemq.config.tls import ClientTls
from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.registry.records import Mode
from tandemq.errors import ConfigError, LocalError, NetworkError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.run.adopted_process import AdoptedProcess
from tandemq.run.groups import configure, has_registry
from tandemq.run.local_tls import DIRECTORY_NAME, ClusterCertificates, make_certificates
from tandemq.run.ports import LOOPBACK, ReservedPorts, Setting
from tandemq.run.secret import SECRET_FILE_NAME, make_secret_file

START_SECONDS = 60.0
METRICS_PORT_DISTANCE = 2
STOP_SECONDS = 20.0
EXIT_USAGE = 2
_POLL_SECONDS = 0.02


def group_name(number: int) -> str:
    """Return the name of a broker group: broker-a, broker-b, …, broker-z, broker-26, …"""
    return f"broker-{chr(ord('a') + number)}" if number < 26 else f"broker-{number}"


class Child:
    """A child process that can be started, stopped, killed and restarted."""

    interpreter = sys.executable
    """The Python that runs it; tests replace it by one that has another version."""
    program: tuple[str, ...] = ("-m", "tandemq")
    """Python's arguments; tests replace them by a wrapper that makes system calls fail."""
    start_seconds = START_SECONDS
    stop_seconds = STOP_SECONDS
    outlives_parent = False
    """Whether it goes on when this process is killed."""

    def __init__(self, name: str, directory: Path, arguments: Callable[[], list[str]]) -> None:
        """Create the child without starting it. `arguments` returns the arguments of `tandemq`, at each start."""
        self.name = name
        self.log_path = directory / f"{name}.log"
        self.startup: dict[str, Any] = {}
        """Startup report, printed when the child is ready: addresses, process id."""
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | AdoptedProcess | None = None
        self._is_ready = False
        self._is_stopping = False

    @property
    def address(self) -> str:
        """Address for clients, "ip:port"; the same after a restart."""
        return str(self.startup.get("address", ""))

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def ending(self) -> str:
        """How the process exited: "exit code 1", "killed by SIGKILL"; "" if it runs or was stopped by us."""
        code = self._process.poll() if self._process is not None else None
        if code is None:
            return ""
        if isinstance(self._process, AdoptedProcess):
            return "unknown exit code"
        return f"exit code {code}" if code >= 0 else f"killed by {_signal_name(-code)}"

    @property
    def pid(self) -> int:
        """Process id of the child; 0 if it is not running."""
        return self._process.pid if self._process is not None and self.is_running else 0

    def start(self) -> None:
        """Start the child and wait until it is ready.

        Raises:
            ConfigError: the child reports an invalid configuration.
            LocalError: the child exited, or was not ready in time.
        """
        self.spawn()
        self.wait_ready()

    def spawn(self) -> None:
        """Start the child without waiting."""
        assert not self.is_running, f"{self.name} is running already"
        self.end()
        command = [self.interpreter, *self.program, *self._arguments(), "--json"]
        if not self.outlives_parent:
            command.append("--while-stdin")
        with self.open_log() as log:
            # A new session, so that Ctrl-C reaches only the parent, which stops its children in order.
            process = subprocess.Popen(  # noqa: S603  # our own program
                command,
                stdin=subprocess.DEVNULL if self.outlives_parent else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**_environment(), **self.variables(), "PYTHONUNBUFFERED": "1"},
            )
        self._process = process
        self._is_ready = False
        self._is_stopping = False

    def adopt(self, process: AdoptedProcess, startup: Mapping[str, Any]) -> None:
        """Take over a process that another parent has started, and that was ready."""
        assert not self.is_running, f"{self.name} is running already"
        self._process, self.startup = process, dict(startup)
        self._is_ready, self._is_stopping = True, False

    def wait_ready(self) -> None:
        """Wait until the child is ready. Raises as `start`."""
        process = self._process
        assert isinstance(process, subprocess.Popen) and process.stdout is not None, "spawn first"
        first = _line_within(process.stdout, self.start_seconds)
        if not first:
            raise self.did_not_start(process)
        self.startup = json.loads(first)
        self._is_ready = True

    def variables(self) -> Mapping[str, str]:
        """Return variables of its environment besides those of this process."""
        return {}

    def open_log(self) -> contextlib.AbstractContextManager[IO[bytes] | None]:
        """Open the file of its standard error stream; None: that of this process."""
        return self.log_path.open("ab")

    def wait(self) -> None:
        """Wait until the process has exited, if it was started."""
        if self._process is not None:
            self._process.wait()

    def did_not_start(self, process: subprocess.Popen[bytes]) -> LocalError:
        """Return the error if it has not become ready in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
        code = process.poll()
        self.kill()
        lines = [line for line in self.last_lines() if line]
        text = f"{self.name} did not start: {lines[-1] if lines else 'its log is empty'}"
        kind = ConfigError if code == EXIT_USAGE else LocalError
        return kind(text, hint=f"its log is {self.log_path}")

    def last_lines(self, count: int = 20) -> list[str]:
        """Return the last lines of its log."""
        try:
            return self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]
        except OSError:
            return []

    def signal_stop(self) -> None:
        """Send SIGTERM, at most once, without waiting."""
        if self._process is not None and self.is_running and not self._is_stopping:
            self._is_stopping = True
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> bool:
        """Stop the child cleanly; kill it after `stop_seconds`. Does nothing if it is not running.

        Returns whether it exited cleanly.
        """
        self.signal_stop()
        if self._process is not None:
            try:
                self._process.wait(self.stop_seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
        code = self.end()
        # Before it is ready there is nothing to close cleanly, and its signal handlers may not be installed yet.
        return code == 0 or (not self._is_ready and code == -signal.SIGTERM)

    def signal_kill(self) -> None:
        """Send SIGKILL, without waiting."""
        if self._process is not None:
            self._process.kill()

    def kill(self) -> None:
        """Kill the child with SIGKILL."""
        if self._process is not None:
            self._process.kill()
        self.end()

    def end(self) -> int:
        """Wait for a process that has exited or is about to; returns its exit code, negative for a signal."""
        process, self._process = self._process, None
        code = 0
        if process is not None:
            code = process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        return code


class BrokerChild(Child):
    """A broker process."""

    def __init__(self, broker_name: str, broker_id: int, directory: Path, settings: Mapping[str, Setting]) -> None:
        """Create the child without starting it; its configuration file is written at the start."""
        super().__init__(f"{broker_name}-{broker_id}", directory, self._command)
        self.broker_name = broker_name
        self.broker_id = broker_id
        self.store = directory / self.name
        self.tls: ClientTls | None = None
        """TLS of its clients' port."""
        self.conf_path = directory / f"{self.name}.conf"
        self._settings = {
            **settings,
            "brokerName": broker_name,
            "brokerId": broker_id,
            "storePathRootDir": str(self.store),
        }

    def _command(self) -> list[str]:
        lines = [f"{key} = {_text(value)}\n" for key, value in self._settings.items()]
        self.conf_path.write_text("".join(lines), encoding="utf-8")
        return ["broker", "-c", str(self.conf_path)]

    @property
    def metrics_address(self) -> str:
        """Address of its metrics, "ip:port"; "" if it serves none."""
        return str(self.startup.get("metrics", ""))

    def log_end(self) -> int:
        """Return the end offset of its commit log, -1 if it does not answer."""
        answer = try_request(self.address, Command(RequestCode.TANDEM_PEER_INFO), self.tls)
        return int(answer.fields["logEnd"]) if answer is not None and answer.code == ResponseCode.SUCCESS else -1

    def failover_status(self) -> dict[str, Any]:
        """Return its response to TANDEM_FAILOVER_STATUS (docs/reference/requests.md); empty if it does not answer."""
        status = Command(RequestCode.TANDEM_FAILOVER_STATUS)
        answer = try_request(self.address, status, self.tls) if self.is_running else None
        return loads(answer.body) if answer is not None and answer.code == ResponseCode.SUCCESS else {}


@dataclass(frozen=True, slots=True)
class ClusterPorts:
    """Ports of the nodes of a cluster; 0 stands for a free one, which stays reserved.

    Args:
        name_server: port of the name server.
        brokers: returns listen and replication port of a broker by (group number, id).
        has_metrics: serve metrics, unless the settings say otherwise: a broker at its listen port + 2, the name server
            at its port + 1; at free ports if those are free ones.
    """

    name_server: int = 0
    brokers: Callable[[int, int], tuple[int, int]] = lambda _group, _id: (0, 0)
    has_metrics: bool = False

    def of_name_server(self) -> dict[str, Setting]:
        """Return the name server's settings."""
        port = self.name_server
        metrics: dict[str, Setting] = {"metricsPort": port + 1 if port else 0} if self.has_metrics else {}
        return {"listenPort": port, **metrics}

    def of_broker(self, group: int, broker_id: int) -> dict[str, Setting]:
        """Return a broker's settings."""
        listen, replication = self.brokers(group, broker_id)
        port = listen + METRICS_PORT_DISTANCE if listen else 0
        metrics: dict[str, Setting] = {"metricsPort": port} if self.has_metrics else {}
        return {"listenPort": listen, "haListenPort": replication, **metrics}


class ChildCluster:
    """A name server and broker groups of one master and its slaves; a context manager.

    Args:
        directory: directory of stores, configuration files and logs.
        groups: number of broker groups.
        slaves: number of slaves per group.
        ports: ports of all nodes.
        mode: failover mode (docs/guides/failover.md); None: existing groups keep theirs, new ones use `elect`.
        settings: broker settings by RocketMQ's keys, for all brokers; `registryAddr` names a registry that runs
            already, in which the groups are configured.
        keeps_groups: store the groups in `database` too; this needs SQLAlchemy.
        tls: encrypt all connections, with certificates made for the cluster, or with these; connections without TLS are
            closed.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        groups: int = 2,
        slaves: int = 1,
        ports: ClusterPorts = ClusterPorts(),
        mode: Mode | None = Mode.STATIC,
        settings: Mapping[str, Setting] | None = None,
        keeps_groups: bool = False,
        tls: bool | ClusterCertificates = False,
    ) -> None:
        """Create the cluster without starting it."""
        self._makes_certificates = tls is True
        self._certificates: ClusterCertificates | None = None
        if isinstance(tls, ClusterCertificates):
            self._certificates = tls
        elif tls:
            self._certificates = ClusterCertificates.kept_in(Path(directory).absolute() / DIRECTORY_NAME)
        self._ports = ports
        self._name_server_settings = ports.of_name_server()
        self._reserved = ReservedPorts()
        self.directory = Path(directory)
        self._shape = (groups, slaves)
        self._mode = mode
        self._keeps_groups = keeps_groups
        self._settings = dict(settings or {})
        if self._certificates is not None:
            encrypted = self._certificates.node_settings()
            self._name_server_settings |= encrypted
            self._settings = {**encrypted, **self._certificates.replication_settings(), **self._settings}
        self.name_server = Child("namesrv", self.directory, self._name_server_command)
        self.brokers: list[BrokerChild] = []
        """Masters first, then slaves, each sorted by group."""
        self.unclean: list[str] = []
        """Children that did not exit with code 0 when they were stopped."""

    def _name_server_command(self) -> list[str]:
        data, secret = f"kvConfigPath={self.directory / 'namesrv'}", f"haSecretFile={self.secret_file}"
        words = ["namesrv", "--set", f"bindAddress={LOOPBACK}", "--set", data, "--set", secret]
        words += [
            word for key, value in self._name_server_settings.items() for word in ("--set", f"{key}={_text(value)}")
        ]
        return [*words, "--set", "registryEnable=true"] if self._hosts_registry() else words

    def _hosts_registry(self) -> bool:
        if self.uses_other_registry:
            return False
        return self._mode is not Mode.STATIC or has_registry(self.directory / "namesrv")

    @property
    def uses_other_registry(self) -> bool:
        """Whether the registry is none of its name server."""
        return "registryAddr" in self._settings

    @property
    def mode(self) -> Mode:
        """Failover mode; only after `start`."""
        assert self._mode is not None, "start first"
        return self._mode

    @property
    def registry(self) -> str:
        """Address of the registry, such as "namesrv://ip:port"; "" in mode static without another registry."""
        if self.uses_other_registry:
            return str(self._settings["registryAddr"])
        return "" if self._mode is Mode.STATIC else f"namesrv://{self.name_servers}"

    @property
    def secret_file(self) -> str:
        """Secret file for authentication between brokers and name server, and of tools at the registry."""
        return str(self._settings.get("haSecretFile", self.directory / SECRET_FILE_NAME))

    @property
    def database(self) -> str:
        """URL of the database of group configurations."""
        return f"sqlite:///{self.directory.absolute() / 'groups.db'}"

    @property
    def name_servers(self) -> str:
        """Name server address for clients, "ip:port"."""
        return self.name_server.address

    def broker(self, broker_name: str, broker_id: int = 0) -> BrokerChild:
        """Return one of its brokers."""
        return next(b for b in self.brokers if (b.broker_name, b.broker_id) == (broker_name, broker_id))

    def start(self) -> None:
        """Start all processes, and return when all brokers are registered and all slaves are in sync.

        Raises:
            ConfigError, LocalError: a child did not start; all others are stopped.
            NetworkError: the cluster was not ready in time.
        """
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def tls(self) -> ClientTls | None:
        """TLS that clients need; None if the cluster has none."""
        return self._certificates.client_tls() if self._certificates is not None else None

    def client_settings(self) -> Mapping[str, Setting]:
        """Return the settings by which another server of this machine takes part in the TLS of the cluster."""
        return self._certificates.node_settings() if self._certificates is not None else {}

    def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._makes_certificates:
            make_certificates(self.directory.absolute() / DIRECTORY_NAME)
        make_secret_file(self.directory / SECRET_FILE_NAME)
        self._name_server_settings = self._reserved.instead_of_any(self._name_server_settings)
        self.name_server.start()
        groups, slaves = self._shape
        if self.uses_other_registry or self._hosts_registry():
            self._configure()
        for broker_id in range(slaves + 1):
            for number in range(groups):
                broker = self._make(number, broker_id)
                self.brokers.append(broker)
                broker.spawn()
            if self._mode is Mode.STATIC:  # a slave gets its master's address from its first registration
                self._wait_registered()
        self._wait_registered()
        self.wait_until(self.in_sync)

    def _configure(self) -> None:
        groups, slaves = self._shape
        with contextlib.ExitStack() as stack:
            database = None
            if self._keeps_groups:
                from tandemq.groupdb.database import GroupDatabase  # noqa: PLC0415  # an extra

                database = stack.enter_context(GroupDatabase(self.database))
            self._mode = configure(
                self.registry if self.uses_other_registry else f"namesrv://{self.name_servers}",
                map(group_name, range(groups)),
                self._mode,
                slaves + 1,
                secret_file=self.secret_file,
                database=database,
                tls=self.tls,
            )

    def _wait_registered(self) -> None:
        for broker in self.brokers:
            if not broker.startup:
                broker.wait_ready()
        self.wait_until(self.all_registered)

    def _make(self, number: int, broker_id: int) -> BrokerChild:
        _, slaves = self._shape
        settings: dict[str, Setting] = {
            "bindAddress": LOOPBACK,
            "brokerIP1": LOOPBACK,
            "brokerIP2": LOOPBACK,
            "namesrvAddr": self.name_servers,
            **self._ports.of_broker(number, broker_id),
            "haSecretFile": self.secret_file,
            "brokerRole": "SLAVE" if broker_id else "SYNC_MASTER" if slaves else "ASYNC_MASTER",
        }
        if self.registry:
            settings["registryAddr"] = self.registry
        settings = self._reserved.instead_of_any({**settings, **self._settings})
        child = BrokerChild(group_name(number), broker_id, self.directory, settings)
        child.tls = self.tls
        return child

    def free_port(self) -> int:
        """Return a free port that stays reserved until `close`."""
        return self._reserved.reserve()

    def all_registered(self) -> bool:
        """Return whether the name server has every running broker's address, under any id in mode elect, else under its
        own id."""
        table = self._registered()
        if table is None:
            return False
        for broker in self.brokers:
            known = table.get(broker.broker_name, {})
            ids = [number for number, address in known.items() if address == broker.address]
            if broker.is_running and not (str(broker.broker_id) in ids if self._mode is Mode.STATIC else ids):
                return False
        return True

    def _registered(self) -> dict[str, dict[str, str]] | None:
        """Return the addresses that the name server lists, by group and broker id; None if it does not respond."""
        answer = try_request(self.name_servers, Command(RequestCode.GET_BROKER_CLUSTER_INFO), self.tls)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return None
        table: dict[str, dict[str, Any]] = loads(answer.body).get("brokerAddrTable", {})
        return {name: group.get("brokerAddrs", {}) for name, group in table.items()}

    def members_left(self, broker_name: str) -> list[str] | None:
        """Return the running members of a group, by name; if none of this cluster's processes is left, the addresses of
        those that the name server lists, which others have started. None if the name server does not respond."""
        members = [broker for broker in self.brokers if broker.broker_name == broker_name]
        running = [broker.name for broker in members if broker.is_running]
        if running:
            return running
        table = self._registered()
        return None if table is None else list(table.get(broker_name, {}).values())

    def master_of(self, broker_name: str) -> BrokerChild | None:
        """Return the active master of a group, None if there is none."""
        members = [broker for broker in self.brokers if broker.broker_name == broker_name and broker.is_running]
        if self._mode is Mode.STATIC:
            return next((broker for broker in members if broker.broker_id == 0), None)
        return next((broker for broker in members if _is_serving_master(broker.failover_status())), None)

    def in_sync(self) -> bool:
        """Return whether every running slave has all data of its running master.

        With a registry, the group's record must list it as in sync; in mode elect every group must have a master.
        """
        groups: dict[str, list[BrokerChild]] = {}
        for broker in self.brokers:
            if broker.is_running:
                groups.setdefault(broker.broker_name, []).append(broker)
        return all(map(self._is_group_in_sync, groups.values()))

    def _is_group_in_sync(self, running: list[BrokerChild]) -> bool:
        master = self.master_of(running[0].broker_name)
        if master is None:  # without a master that will return, slaves have nothing to copy
            if self._mode is Mode.STATIC:
                return all(broker.broker_id for broker in running)
            return self._mode is Mode.SLAVE_CONSUME and all(map(_is_named_slave, running))
        if self._mode is not Mode.STATIC and len(master.failover_status().get("inSync", ())) < len(running):
            return False
        return synced_slaves(master.address, self.tls) >= len(running) - 1

    def wait_until(self, condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Wait until a condition is true.

        Raises:
            NetworkError: it was not in time.
            LocalError: the name server exited.
        """
        until = time.monotonic() + seconds
        while not condition():
            if not self.name_server.is_running:
                raise LocalError("the name server exited", hint=f"its log is {self.name_server.log_path}")
            if time.monotonic() > until:
                raise NetworkError(
                    f"the cluster was not ready within {seconds:g} s", hint=f"its logs are in {self.directory}"
                )
            time.sleep(_POLL_SECONDS)

    def dead(self) -> list[Child]:
        """Return the children that are not running."""
        return [child for child in [self.name_server, *self.brokers] if not child.is_running]

    def close(self) -> None:
        """Stop all processes cleanly: masters, then slaves, then the name server. Files are kept."""
        masters = self.masters()
        for members in (masters, [broker for broker in self.brokers if broker not in masters]):
            for broker in members:
                broker.signal_stop()
            self.unclean += [broker.name for broker in members if not broker.stop()]
        if not self.name_server.stop():
            self.unclean.append(self.name_server.name)
        self._reserved.close()

    def masters(self) -> list[BrokerChild]:
        """Return the active masters, sorted by group."""
        names = {broker.broker_name for broker in self.brokers}
        return [master for name in sorted(names) if (master := self.master_of(name)) is not None]

    def __enter__(self) -> Self:
        """Start the cluster."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the cluster."""
        self.close()


def console_child(cluster: ChildCluster, port: int) -> Child:
    """Return the console of a cluster that runs, to be started; it also publishes configurations of groups."""

    own = port or cluster.free_port()

    def command() -> list[str]:
        words = ["--tls-ca", cluster.tls.ca_file] if cluster.tls is not None else []
        words += ["console", "--port", str(own), "--namesrv", cluster.name_servers, "--database", cluster.database]
        if cluster.registry:
            words += ["--publish", "--registry", cluster.registry, "--secret-file", cluster.secret_file]
        return words

    return Child("console", cluster.directory, command)


def proxy_child(cluster: ChildCluster, port: int) -> Child:
    """Return a proxy for gRPC clients of a cluster that runs, to be started; `port` 0: any free one."""
    settings: dict[str, Setting] = {"bindAddress": LOOPBACK, "grpcServerPort": port or cluster.free_port()}
    settings |= {**cluster.client_settings(), "haSecretFile": cluster.secret_file}

    def command() -> list[str]:
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={_text(value)}")]
        return ["proxy", "--namesrv", cluster.name_servers, *words]

    return Child("proxy", cluster.directory, command)


def _environment() -> dict[str, str]:
    """Return the environment without the TLS of commands: children talk to each other as their settings say."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TANDEMQ_TLS")}


def _is_named_slave(broker: BrokerChild) -> bool:
    """Return whether the group's record, as a broker has read it, names another one as the master."""
    return bool(broker.failover_status().get("master", broker.broker_id) != broker.broker_id)


def _is_serving_master(status: Mapping[str, Any]) -> bool:
    return bool(status.get("isMaster")) and status.get("stage") == MemberStage.SERVING.value


def synced_slaves(address: str, tls: ClientTls | None = None) -> int:
    """Return the number of slaves that are connected to a master and have all its data."""
    answer = try_request(address, Command(RequestCode.GET_BROKER_HA_STATUS), tls)
    if answer is None or answer.code != ResponseCode.SUCCESS:
        return 0
    return sum(1 for slave in loads(answer.body).get("haConnectionInfo", []) if slave.get("diff") == 0)


def _line_within(pipe: IO[bytes], seconds: float) -> bytes:
    """Read the first line of a pipe; b"" if the pipe was closed or the line did not arrive in time."""
    until = time.monotonic() + seconds
    data = b""
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
        piece = os.read(pipe.fileno(), 65536) if ready else b""
        if not piece:
            return b""
        data += piece
    return data


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def _text(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
