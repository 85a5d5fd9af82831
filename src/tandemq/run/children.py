"""A cluster of child processes on this machine: what `tandemq up` keeps running and `tandemq demo` kills.

    ChildCluster ─┬─ Child "namesrv"       tandemq namesrv --json …      directory/namesrv.log
                  ├─ Child "broker-a-0"    tandemq broker -c FILE        directory/broker-a-0.{conf,log}, broker-a-0/
                  ├─ Child "broker-a-1"    …
                  └─ Child "broker-b-0"    …

Brokers and name server share directory/replication.secret, which is made once.
Each child is the program a user would start by hand, with a configuration file to look at. A child stops when its
standard input closes, so that none outlives a parent that was killed. Ports: given, or any free ones, which the child
tells in its first line and gets again when it is restarted. In the modes `slave-consume` and `elect` the name server
hosts the registry, and the groups are configured there before the brokers start.
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
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tandemq.codec.remoting.fastjson import loads
from tandemq.coordination.member.orders import MemberStage
from tandemq.coordination.registry.records import Mode
from tandemq.errors import ConfigError, LocalError, NetworkError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.run.groups import configure, has_registry
from tandemq.run.request import try_request
from tandemq.run.secret import SECRET_FILE_NAME, make_secret_file

Setting = str | int | float | bool
LOOPBACK = "127.0.0.1"
START_SECONDS = 30.0
STOP_SECONDS = 20.0
EXIT_USAGE = 2
_LOOK_SECONDS = 0.02


def group_name(number: int) -> str:
    """Name of a broker group: broker-a, broker-b, …, broker-z, broker-26, …"""
    return f"broker-{chr(ord('a') + number)}" if number < 26 else f"broker-{number}"


class Child:
    """One process: started, stopped, killed, started again."""

    program: tuple[str, ...] = ("-m", "tandemq")
    """What Python runs; tests put a program around it that makes system calls fail."""

    def __init__(self, name: str, directory: Path, arguments: Callable[[Mapping[str, Any]], list[str]]) -> None:
        """Nothing runs yet. `arguments`: those of `tandemq`, given what the child told when it ran before."""
        self.name = name
        self.log_path = directory / f"{name}.log"
        self.told: dict[str, Any] = {}
        """What it said of itself when it was ready: addresses, process id."""
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._is_told_to_stop = False

    @property
    def address(self) -> str:
        """Where clients reach it, "ip:port"; the same after a restart."""
        return str(self.told.get("address", ""))

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def ending(self) -> str:
        """How a process ended that nobody has taken in yet: "exit code 1", "killed by SIGKILL"; "" if none did."""
        code = self._process.poll() if self._process is not None else None
        if code is None:
            return ""
        return f"exit code {code}" if code >= 0 else f"killed by {_signal_name(-code)}"

    @property
    def pid(self) -> int:
        """Its process id, 0 if it does not run."""
        return self._process.pid if self._process is not None and self.is_running else 0

    def start(self) -> None:
        """Start it and wait until it listens.

        Raises:
            ConfigError: it says that its configuration cannot be.
            LocalError: it ended, or said nothing in time.
        """
        self.spawn()
        self.wait_ready()

    def spawn(self) -> None:
        """Start it, and do not wait."""
        assert not self.is_running, f"{self.name} runs already"
        self.end()
        command = [sys.executable, *self.program, *self._arguments(self.told), "--json", "--while-stdin"]
        with self.log_path.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal is for the parent, which stops its children in order.
            process = subprocess.Popen(  # noqa: S603  # our own program
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self._process = process
        self._is_ready = False
        self._is_told_to_stop = False

    def wait_ready(self) -> None:
        """Wait until it listens. Raises as `start`."""
        process = self._process
        assert process is not None and process.stdout is not None, "spawn first"
        first = _line_within(process.stdout, START_SECONDS)
        if not first:
            raise self._did_not_start(process)
        self.told = json.loads(first)
        self._is_ready = True

    def _did_not_start(self, process: subprocess.Popen[bytes]) -> LocalError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
        code = process.poll()
        self.kill()
        lines = [line for line in self.last_lines() if line]
        text = f"{self.name} did not start: {lines[-1] if lines else 'it said nothing'}"
        kind = ConfigError if code == EXIT_USAGE else LocalError
        return kind(text, hint=f"its log is {self.log_path}")

    def last_lines(self, count: int = 20) -> list[str]:
        """The end of its log."""
        try:
            return self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]
        except OSError:
            return []

    def signal_stop(self) -> None:
        """Ask it to stop, once, and do not wait."""
        if self._process is not None and self.is_running and not self._is_told_to_stop:
            self._is_told_to_stop = True
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> bool:
        """Stop it cleanly; kill it if it takes longer than STOP_SECONDS. Harmless if it does not run.

        Returns whether it ended as it should.
        """
        self.signal_stop()
        if self._process is not None:
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        code = self.end()
        # Before it listens nothing was begun that could end uncleanly, and a signal may come before it heeds any.
        return code == 0 or (not self._is_ready and code == -signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
        self.end()

    def end(self) -> int:
        """Take in a process that has ended or is about to; returns its exit code, negative for a signal."""
        process, self._process = self._process, None
        code = 0
        if process is not None:
            code = process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        return code


class BrokerChild(Child):
    """A broker."""

    def __init__(self, broker_name: str, broker_id: int, directory: Path, settings: Mapping[str, Setting]) -> None:
        """Nothing runs yet; its configuration file is written when it starts."""
        super().__init__(f"{broker_name}-{broker_id}", directory, self._command)
        self.broker_name = broker_name
        self.broker_id = broker_id
        self.store = directory / self.name
        self.conf_path = directory / f"{self.name}.conf"
        self._settings = {
            **settings,
            "brokerName": broker_name,
            "brokerId": broker_id,
            "storePathRootDir": str(self.store),
        }

    def _command(self, told: Mapping[str, Any]) -> list[str]:
        settings = dict(self._settings)
        if told:
            settings["listenPort"] = int(told["address"].rpartition(":")[2])
            settings["haListenPort"] = int(told["haAddress"].rpartition(":")[2])
        lines = [f"{key} = {_text(value)}\n" for key, value in settings.items()]
        self.conf_path.write_text("".join(lines), encoding="utf-8")
        return ["broker", "-c", str(self.conf_path)]

    def log_end(self) -> int:
        """The end of its commit log, -1 if it does not answer."""
        answer = try_request(self.address, Command(RequestCode.TANDEM_PEER_INFO))
        return int(answer.fields["logEnd"]) if answer is not None and answer.code == ResponseCode.SUCCESS else -1

    def standing(self) -> dict[str, Any]:
        """What it says of itself as a member of its group (docs/reference/requests.md); empty if it does not answer."""
        answer = try_request(self.address, Command(RequestCode.TANDEM_FAILOVER_STATUS)) if self.is_running else None
        return loads(answer.body) if answer is not None and answer.code == ResponseCode.SUCCESS else {}


class ChildCluster:
    """A name server and `groups` groups of one master and `slaves` slaves each; use it with `with`.

    Args:
        directory: stores, configuration files and logs.
        port: of the name server; 0 for any free one.
        broker_ports: listen and replication port of a broker by (group number, id), (0, 0) for any free ones.
        mode: what happens when a master dies (docs/guides/failover.md); None: the groups keep theirs, new ones `elect`.
        settings: broker settings under RocketMQ's names, for all brokers.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        groups: int = 2,
        slaves: int = 1,
        port: int = 0,
        broker_ports: Callable[[int, int], tuple[int, int]] = lambda _group, _id: (0, 0),
        mode: Mode | None = Mode.STATIC,
        settings: Mapping[str, Setting] | None = None,
    ) -> None:
        """Nothing runs yet."""
        self.directory = Path(directory)
        self._shape = (groups, slaves)
        self._ports = broker_ports
        self._mode = mode
        self._settings = dict(settings or {})
        self.name_server = Child("namesrv", self.directory, lambda told: self._name_server_command(told, port))
        self.brokers: list[BrokerChild] = []
        """Masters first, then slaves, each by group."""
        self.unclean: list[str] = []
        """Children that did not end with exit code 0 when they were told to stop."""

    def _name_server_command(self, told: Mapping[str, Any], port: int) -> list[str]:
        if told:
            port = int(told["address"].rpartition(":")[2])
        data, secret = f"kvConfigPath={self.directory / 'namesrv'}", f"haSecretFile={self.secret_file}"
        words = ["namesrv", "--port", str(port), "--set", f"bindAddress={LOOPBACK}", "--set", data, "--set", secret]
        return [*words, "--set", "registryEnable=true"] if self._hosts_registry() else words

    def _hosts_registry(self) -> bool:
        return self._mode is not Mode.STATIC or has_registry(self.directory / "namesrv")

    @property
    def mode(self) -> Mode:
        """What happens when a master dies. Known once it runs."""
        assert self._mode is not None, "start first"
        return self._mode

    @property
    def registry(self) -> str:
        """Where the registry is, "namesrv://ip:port"; "" in mode static."""
        return "" if self._mode is Mode.STATIC else f"namesrv://{self.name_servers}"

    @property
    def secret_file(self) -> str:
        """What the brokers and the name server prove to each other, and tools to the registry."""
        return str(self._settings.get("haSecretFile", self.directory / SECRET_FILE_NAME))

    @property
    def name_servers(self) -> str:
        """What clients want, "ip:port"."""
        return self.name_server.address

    def broker(self, broker_name: str, broker_id: int = 0) -> BrokerChild:
        """One of its brokers."""
        return next(b for b in self.brokers if (b.broker_name, b.broker_id) == (broker_name, broker_id))

    def start(self) -> None:
        """Start everything; return when all brokers are registered and all slaves in sync.

        Raises:
            ConfigError, LocalError: a child did not start; nothing runs then.
            NetworkError: they did not find each other in time.
        """
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        make_secret_file(self.directory / SECRET_FILE_NAME)
        self.name_server.start()
        groups, slaves = self._shape
        if self._hosts_registry():
            names = map(group_name, range(groups))
            self._mode = configure(
                f"namesrv://{self.name_servers}", names, self._mode, slaves + 1, secret_file=self.secret_file
            )
        for broker_id in range(slaves + 1):
            for number in range(groups):
                broker = self._make(number, broker_id)
                self.brokers.append(broker)
                broker.spawn()
            if self._mode is Mode.STATIC:  # a slave learns from its first registration where its master is
                self._wait_registered()
        self._wait_registered()
        self.wait_until(self.in_sync)

    def _wait_registered(self) -> None:
        for broker in self.brokers:
            if not broker.told:
                broker.wait_ready()
        self.wait_until(self.all_registered)

    def _make(self, number: int, broker_id: int) -> BrokerChild:
        _, slaves = self._shape
        listen, replication = self._ports(number, broker_id)
        settings: dict[str, Setting] = {
            "bindAddress": LOOPBACK,
            "brokerIP1": LOOPBACK,
            "brokerIP2": LOOPBACK,
            "namesrvAddr": self.name_servers,
            "listenPort": listen,
            "haListenPort": replication,
            "haSecretFile": self.secret_file,
            "brokerRole": "SLAVE" if broker_id else "SYNC_MASTER" if slaves else "ASYNC_MASTER",
        }
        if self.registry:
            settings["registryAddr"] = self.registry
        return BrokerChild(group_name(number), broker_id, self.directory, {**settings, **self._settings})

    def all_registered(self) -> bool:
        """Whether the name server knows every running broker by its present address: by its own id with fixed roles,
        else a master under 0 and the others under any."""
        answer = try_request(self.name_servers, Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return False
        table = loads(answer.body).get("brokerAddrTable", {})
        for broker in self.brokers:
            known = table.get(broker.broker_name, {}).get("brokerAddrs", {})
            ids = [number for number, address in known.items() if address == broker.address]
            if broker.is_running and not (ids if self._mode is Mode.ELECT else str(broker.broker_id) in ids):
                return False
        return True

    def master_of(self, broker_name: str) -> BrokerChild | None:
        """The running broker that serves the group as its master now."""
        members = [broker for broker in self.brokers if broker.broker_name == broker_name and broker.is_running]
        if self._mode is Mode.STATIC:
            return next((broker for broker in members if broker.broker_id == 0), None)
        return next((broker for broker in members if _is_serving_master(broker.standing())), None)

    def in_sync(self) -> bool:
        """Whether every running slave is connected to its running master and holds what that holds.

        With a registry, the group's record must say so; with elected masters, every group must have one."""
        groups: dict[str, list[BrokerChild]] = {}
        for broker in self.brokers:
            if broker.is_running:
                groups.setdefault(broker.broker_name, []).append(broker)
        return all(map(self._is_group_in_sync, groups.values()))

    def _is_group_in_sync(self, running: list[BrokerChild]) -> bool:
        master = self.master_of(running[0].broker_name)
        if master is None:  # fixed roles: the slaves of a master that is away have nothing to catch up with
            return self._mode is not Mode.ELECT and all(broker.broker_id for broker in running)
        if self._mode is not Mode.STATIC and len(master.standing().get("inSync", ())) < len(running):
            return False
        return copies_of(master.address) >= len(running) - 1

    def wait_until(self, condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Wait for a state of the cluster.

        Raises:
            NetworkError: it did not come in time.
            LocalError: the name server died.
        """
        until = time.monotonic() + seconds
        while not condition():
            if not self.name_server.is_running:
                raise LocalError("the name server died", hint=f"its log is {self.name_server.log_path}")
            if time.monotonic() > until:
                raise NetworkError(
                    f"the cluster did not get ready within {seconds:g} s", hint=f"its logs are in {self.directory}"
                )
            time.sleep(_LOOK_SECONDS)

    def dead(self) -> list[Child]:
        """Children that ended by themselves."""
        return [child for child in [self.name_server, *self.brokers] if not child.is_running]

    def close(self) -> None:
        """Stop everything cleanly: masters, then what copies from them, then the name server. The files stay."""
        masters = self.masters()
        for members in (masters, [broker for broker in self.brokers if broker not in masters]):
            for broker in members:
                broker.signal_stop()
            self.unclean += [broker.name for broker in members if not broker.stop()]
        if not self.name_server.stop():
            self.unclean.append(self.name_server.name)

    def masters(self) -> list[BrokerChild]:
        """The running masters, by group."""
        names = {broker.broker_name for broker in self.brokers}
        return [master for name in sorted(names) if (master := self.master_of(name)) is not None]

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.close()


def _is_serving_master(standing: Mapping[str, Any]) -> bool:
    return bool(standing.get("isMaster")) and standing.get("stage") == MemberStage.SERVING.value


def copies_of(address: str) -> int:
    """How many slaves are connected to a master and have all it holds."""
    answer = try_request(address, Command(RequestCode.GET_BROKER_HA_STATUS))
    if answer is None or answer.code != ResponseCode.SUCCESS:
        return 0
    return sum(1 for slave in loads(answer.body).get("haConnectionInfo", []) if slave.get("diff") == 0)


def _line_within(pipe: IO[bytes], seconds: float) -> bytes:
    """The first line of a pipe, b"" if it closed or nothing came in time."""
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
