"""Unmodified Java RocketMQ as child processes: jars, name server, broker.

    JavaJars.resolve("server", "5.3.3")     Maven Central -> build/java/server-5.3.3/*.jar, once
    JavaNameServer("5.3.3")                 start / stop (SIGTERM) / kill (SIGKILL) / sigstop / sigcont
    JavaBroker("4.9.7", directory, …)       the same verbs; keyword arguments are broker.conf keys

Every process gets a home of its own (`-Duser.home`, `-Drocketmq.home.dir`), so nothing is written outside its
directory. Standard output and error of a process go to `<directory>/<name>.log`; warnings of the broker too.
Maven Central has no broker or name server 4.9.8, only client and tools. All listen on the loopback address.
Environment: TANDEMQ_JAVA_CACHE (where jars are kept; default `build/java` of the repository), JAVA_HOME, MAVEN.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Literal, Self, TypeVar

from tools.file_lock import file_lock

Kind = Literal[
    "client",
    "server",
    "example",
    "zookeeper",
    "kafka",
    "spark-kafka",
    "hadoop",
    "delta",
    "iceberg",
    "iceberg-spark",
    "spark-tables",
    "proxy",
    "registry",
    "yarn",
    "grpc-client",
]
T = TypeVar("T")
Value = str | int | bool
"""Of a key in a configuration file."""

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
LOOPBACK = "127.0.0.1"
_LOGGING = HERE / "conf" / "logback.xml"
PATIENCE = 4
"""Factor of every limit of a wait: they are written for an idle machine, and others may be busy or slow."""

CLIENT_VERSIONS = ("4.9.8", "5.3.3")
SERVER_VERSIONS = ("4.9.7", "5.3.3")

SMALL_JVM = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dtls.server.mode=disabled")
"""Quick to start, sparing with memory; for functional tests, not for measuring. With TLS a server computes a key first,
which is most of the start of a 5.3.3 broker."""

_JAVA_17_MODULES = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.nio", "sun.nio.ch", "java.lang", "java.util", "jdk.internal.misc", "jdk.internal.ref")
    ),
)

_DISK_IS_NEVER_FULL = (
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.98",
)

_BOOTED = "boot success"

_QUIET: Mapping[str, Value] = {
    "transactionMetricFlushInterval": 500,
    "timerFlushIntervalMs": 10_000,
    "reviveQueueNum": 1,
}
"""An idle broker of 5.x uses a third of a core otherwise: it polls the clock without a pause until the first interval
has passed, compares the whole timer wheel each second, and when it stops waits a second for each revive queue."""

_BROKER_BASE: Mapping[str, Value] = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerId": 0,
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    "brokerIP1": LOOPBACK,
    "brokerIP2": LOOPBACK,
    "bindAddress": LOOPBACK,
    # A cold JVM drops early sends after 200 ms in its queue; that says nothing about the protocol.
    "waitTimeMillsInSendQueue": 3000,
    "diskMaxUsedSpaceRatio": 95,
    "diskSpaceWarningLevelRatio": 99,
    "diskSpaceCleanForciblyRatio": 98,
}


class PeerError(Exception):
    """A Java peer could not be resolved, started or stopped; the message holds the end of its log."""


# ---------------------------------------------------------------------------------------------------- waiting, ports


def wait_until(probe: Callable[[], T], *, what: str, within_s: float, every_s: float = 0.05) -> T:
    """Call `probe` until it returns something true, and return that.

    Raises:
        TimeoutError: `within_s` times `PATIENCE` seconds passed; the text names `what` and the last value.
    """
    within_s *= PATIENCE
    deadline = time.monotonic() + within_s
    pause = threading.Event()
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{what}: not within {within_s:g} s (last value: {value!r})")
        pause.wait(every_s)


def port_answers(port: int, host: str = LOOPBACK) -> bool:
    """Whether something accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


_given_ports: set[int] = set()
_ports_lock = threading.Lock()
_WORKERS_MAX = 8
_PORTS = 20_000 // _WORKERS_MAX
"""Ports of each process of pytest, so that two that look for a port at the same time do not find the same one."""


def free_port(*neighbours: int) -> int:
    """A port that nobody listens on, below the range of outgoing connections; never the same twice in a process.

    Args:
        neighbours: offsets that must be free too; a broker needs -2 (its fast port) and, by default, +1 (replication).
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS_MAX
    first = 12_000 + worker * _PORTS
    for _ in range(1000):
        port = random.randrange(first, first + _PORTS)
        wanted = {port, *(port + offset for offset in neighbours)}
        with _ports_lock:
            if not wanted & _given_ports and all(map(_port_is_free, wanted)):
                _given_ports.update(wanted)
                return port
    raise PeerError(f"no free port between {first} and {first + _PORTS}")


# -------------------------------------------------------------------------------------------------------------- jars


class JavaJars:
    """The jars of one set, resolved from Maven Central once and kept in the cache directory."""

    @staticmethod
    def cache() -> Path:
        """Where the sets are kept: TANDEMQ_JAVA_CACHE, else `build/java` of the repository."""
        return Path(os.environ.get("TANDEMQ_JAVA_CACHE", REPOSITORY / "build" / "java")).resolve()

    @classmethod
    def resolve(cls, kind: Kind, version: str) -> Path:
        """The directory with the jars of `rocketmq-{client,tools}`, `rocketmq-{broker,namesrv}`, or of another peer.

        Raises:
            PeerError: Maven is missing or failed; its output is in the message.
        """
        directory = cls.cache() / f"{kind}-{version}"
        if directory.is_dir():
            return directory
        with file_lock(cls.cache() / ".lock"):
            if not directory.is_dir():
                cls._download(kind, version, directory)
        return directory

    @staticmethod
    def _download(kind: Kind, version: str, directory: Path) -> None:
        partial = directory.with_name(directory.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        what = "rocketmq" if kind in ("client", "server", "example", "proxy") else kind
        command = [
            os.environ.get("MAVEN", "mvn"),
            "-q",
            "-B",
            "-f",
            str(HERE / "pom.xml"),
            f"-P{kind}",
            f"-D{what}.version={version}",
            "dependency:copy-dependencies",
            f"-DoutputDirectory={partial}",
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise PeerError("Maven is needed to fetch the Java peers; install it or set MAVEN") from error
        except subprocess.CalledProcessError as error:
            raise PeerError(f"Maven could not resolve {kind} {version}:\n{error.stdout}{error.stderr}") from error
        partial.rename(directory)

    @classmethod
    def class_path(cls, kind: Kind, version: str, *first: Path) -> str:
        """A class path: `first`, then the jars."""
        return os.pathsep.join(map(str, [*first, cls.resolve(kind, version) / "*"]))


def java_executable(name: str = "java") -> str:
    """`java`, `javac` … of JAVA_HOME, else of the path."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / name) if home else name


def java_command(
    kind: Kind,
    version: str,
    main: str,
    *arguments: str,
    home: Path,
    jvm_options: Sequence[str],
    first: Sequence[Path] = (),
) -> list[str]:
    """The command line of a Java main class of one set of jars, with a home directory of its own.

    Args:
        home: made if missing; stands for ~ and for the RocketMQ installation.
        first: class path entries before the jars.
    """
    _make_home(home)
    return [
        java_executable(),
        *jvm_options,
        *_JAVA_17_MODULES,
        *_DISK_IS_NEVER_FULL,
        f"-Duser.home={home}",
        f"-Drocketmq.home.dir={home}",
        f"-Drmq.logback.configurationFile={_LOGGING}",
        f"-Drocketmq.client.logRoot={home / 'logs'}",
        "-Drocketmq.client.logLevel=WARN",
        "-cp",
        JavaJars.class_path(kind, version, *first),
        main,
        *arguments,
    ]


def _make_home(home: Path) -> None:
    """4.9 reads its logging set-up from files below the installation, 5.x from the one a property names."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    for name in ("broker", "namesrv", "tools"):
        shutil.copyfile(_LOGGING, home / "conf" / f"logback_{name}.xml")


# --------------------------------------------------------------------------------------------------------- processes

live: list[Process] = []
"""Everything that was started and not reaped; a failed test shows the ends of their logs."""


class Process:
    """A child process whose output is kept in a file and can be waited for.

    start -> running -> stop | kill -> start …; `start` appends to the same log. Usable as a context manager:
    leaving it kills what still runs.
    """

    def __init__(self, name: str, directory: Path, *, command: Callable[[], list[str]], ready: str | int) -> None:
        """A process that is not started yet.

        Args:
            name: of the process and of its log file.
            directory: working directory; made if missing.
            command: gives the command line at each start.
            ready: what says that it serves: a regular expression of a line of output, or a port that answers.
        """
        self.name = name
        self.directory = directory.resolve()
        self._command = command
        self._ready = ready
        self.log_path = self.directory / f"{name}.log"
        self._process: subprocess.Popen[str] | None = None
        self._pump: threading.Thread | None = None
        self._lines: list[str] = []
        self._changed = threading.Condition()

    def begin_start(self) -> None:
        """Start the process without waiting until it serves."""
        assert not self.is_running, f"{self.name} runs already"
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lines = []
        self._process = subprocess.Popen(
            self._command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=self.directory,
        )
        assert self._process.stdout is not None
        self._pump = threading.Thread(target=self._copy_output, args=(self._process.stdout,), daemon=True)
        self._pump.start()

    def start(self, within_s: float = 120) -> Self:
        """Start the process and wait until it serves.

        Raises:
            PeerError: it ended, or does not serve after `within_s` seconds (it is killed then).
        """
        self.begin_start()
        try:
            self._wait_ready(within_s)
        except (TimeoutError, PeerError) as error:
            self.kill()
            raise PeerError(f"{self.name} did not start: {error}\n{self.log_tail()}") from error
        live.append(self)
        return self

    def stop(self, within_s: float = 60) -> int:
        """SIGTERM, then wait for the end; returns the exit code. Nothing happens if it does not run.

        Raises:
            PeerError: it still runs after `within_s` seconds; it is killed then.
        """
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._reap(within_s * PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise PeerError(f"{self.name} did not stop within {within_s:g} s\n{self.log_tail()}") from None

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._reap(60)

    def sigstop(self) -> None:
        """Freeze the process: connections stay open, nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def sigcont(self) -> None:
        """Let a frozen process go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        """Whether the process has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the running process."""
        assert self._process is not None
        return self._process.pid

    def wait_for_line(self, pattern: str, within_s: float) -> str:
        """The first line of output since the start in which `pattern` (a regular expression) is found.

        Raises:
            PeerError: the process ended without it.
            TimeoutError: `within_s` times `PATIENCE` seconds passed.
        """
        within_s *= PATIENCE
        deadline = time.monotonic() + within_s
        seen = 0
        with self._changed:
            while True:
                for line in self._lines[seen:]:
                    if re.search(pattern, line):
                        return line
                seen = len(self._lines)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"{self.name}: no line with {pattern!r} within {within_s:g} s")
                if self._process is None or (self._process.poll() is not None and not self._pump_runs()):
                    raise PeerError(f"{self.name} ended\n{self.log_tail()}")
                self._changed.wait(min(left, 0.5))

    def lines(self) -> list[str]:
        """What it printed since its last start."""
        with self._changed:
            return list(self._lines)

    def log_tail(self, count: int = 40) -> str:
        """The last lines of its log, for error messages."""
        if not self.log_path.exists():
            return f"(no log at {self.log_path})"
        tail = self.log_path.read_text(errors="replace").splitlines()[-count:]
        return "\n".join([f"--- {self.log_path}", *tail])

    def _wait_ready(self, within_s: float) -> None:
        if isinstance(self._ready, str):
            self.wait_for_line(self._ready, within_s)
            return
        port = self._ready
        wait_until(
            lambda: port_answers(port) or not self.is_running, what=f"{self.name} answers on {port}", within_s=within_s
        )
        if not self.is_running:
            raise PeerError(f"{self.name} ended\n{self.log_tail()}")

    def _copy_output(self, source: IO[str]) -> None:
        with self.log_path.open("a") as log, source:
            for line in source:
                log.write(line)
                log.flush()
                with self._changed:
                    self._lines.append(line.rstrip("\n"))
                    self._changed.notify_all()

    def _pump_runs(self) -> bool:
        return self._pump is not None and self._pump.is_alive()

    def _reap(self, within_s: float) -> int:
        assert self._process is not None
        code = self._process.wait(within_s)
        if self._pump is not None:
            self._pump.join(5)
        self._process = None
        if self in live:
            live.remove(self)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class JavaNameServer(Process):
    """A Java name server on the loopback address.

    Args:
        version: 4.9.7, 5.3.3 or 5.5.0.
        directory: home, logs and configuration; made if missing.
        port: 0 takes a free one.
        jvm_options: heap and garbage collector.
        conf: further keys of its configuration file.
    """

    def __init__(
        self,
        version: str,
        directory: Path,
        port: int = 0,
        *,
        jvm_options: Sequence[str] = SMALL_JVM,
        **conf: Value,
    ) -> None:
        super().__init__(f"namesrv-{version}", directory, command=self._java, ready=_BOOTED)
        self.version = version
        self.port = port or free_port()
        self.jvm_options = tuple(jvm_options)
        self.conf: dict[str, Value] = {"listenPort": self.port, "bindAddress": LOOPBACK, **conf}

    @property
    def address(self) -> str:
        """host:port for clients and brokers."""
        return f"{LOOPBACK}:{self.port}"

    def _java(self) -> list[str]:
        conf_path = self.directory / f"namesrv-{self.port}.conf"
        write_properties(conf_path, self.conf)
        return java_command(
            "server",
            self.version,
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            "-c",
            str(conf_path),
            home=self.directory / "home",
            jvm_options=self.jvm_options,
        )


class JavaBroker(Process):
    """A Java broker on the loopback address, with its store below `directory`.

    Args:
        version: 4.9.7, 5.3.3 or 5.5.0.
        directory: home, logs, configuration; `store/` in it is the store unless `store` names another.
        namesrv: address of one or several name servers, `;` between.
        port: 0 takes a free one; port - 2 is the fast port, port + 1 replication.
        store: store directory.
        name: of the process and its log file; two brokers may share a directory.
        jvm_options: heap and garbage collector.
        settings: keys of broker.conf, spelled as RocketMQ spells them; they win over the defaults here.
        quiet: take little of the processor while idle; not for measuring.
        conf: the same as keyword arguments; they win over `settings`.
    """

    def __init__(
        self,
        version: str,
        directory: Path,
        *,
        namesrv: str,
        port: int = 0,
        store: Path | None = None,
        name: str = "",
        jvm_options: Sequence[str] = SMALL_JVM,
        settings: Mapping[str, Value] | None = None,
        quiet: bool = True,
        **conf: Value,
    ) -> None:
        super().__init__(name or f"broker-{version}", directory, command=self._java, ready=_BOOTED)
        self.version = version
        self.port = port or free_port(-2, 1)
        self.jvm_options = tuple(jvm_options)
        self.store = (store or self.directory / "store").resolve()
        own = {**(_QUIET if quiet else {}), **(settings or {}), **conf}
        self.conf: dict[str, Value] = broker_conf(self.port, namesrv, self.store, own)

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def ha_port(self) -> int:
        """Where a master listens for slaves."""
        return int(self.conf["haListenPort"])

    def _java(self) -> list[str]:
        conf_path = self.directory / f"{self.name}.conf"
        write_properties(conf_path, self.conf)
        return java_command(
            "server",
            self.version,
            "org.apache.rocketmq.broker.BrokerStartup",
            "-c",
            str(conf_path),
            home=self.directory / f"{self.name}.home",
            jvm_options=self.jvm_options,
        )


def broker_conf(port: int, namesrv: str, store: Path, conf: Mapping[str, Value]) -> dict[str, Value]:
    """The keys of a broker.conf for a broker on the loopback address; `conf` wins."""
    return {
        **_BROKER_BASE,
        "namesrvAddr": namesrv,
        "listenPort": port,
        "haListenPort": port + 1,
        "storePathRootDir": str(store),
        "storePathCommitLog": str(store / "commitlog"),
        **conf,
    }


def write_properties(path: Path, values: Mapping[str, Value]) -> None:
    """Write a Java properties file; booleans as true and false."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{key}={str(value).lower() if isinstance(value, bool) else value}\n" for key, value in values.items()]
    path.write_text("".join(lines))
