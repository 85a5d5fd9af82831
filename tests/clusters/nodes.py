"""A Spark cluster whose processes know nothing of this repository: each worker has an environment with the wheel.

    dist/*.whl ─► env-a: master, worker 1, drivers         installed as the page says
                  env-b: worker 2                          a copy of env-a's packages in an environment of its own
                  env-c                                    the same packages without tandemq

Processes start with the commands of the page. Drivers name their Python `python3`, which each worker looks up in its
own path. Environments are kept in build/spark-cluster as long as wheel and lock files are the same.
"""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self
from zipfile import ZipFile

from tandemq.spark.runtime.java import find_java
from tests.blackbox.programs import wait_until
from tests.clusters.page import blocks, replaced

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "spark-cluster"
LOCKS = [ROOT / name for name in ("requirements.lock", "requirements-spark.lock")]
EXTRA_PINS = ("venv-pack2==0.9.2",)
SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DEFAULTS = f"""spark.driver.memory 512m
spark.executor.memory 512m
spark.ui.enabled false
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.sql.shuffle.partitions 2
spark.sql.codegen.wholeStage false
spark.driver.extraJavaOptions {SMALL_JVM}
spark.executor.extraJavaOptions {SMALL_JVM}
"""
START_S = 600
RUN_S = 900
"""Time limits for a machine that is busy; idle ones need a tenth."""


def wheel() -> Path:
    """Return the newest wheel of `make wheel`."""
    found = sorted((ROOT / "dist").glob("tandemq-*.whl"), key=lambda path: path.stat().st_mtime)
    assert found, "no wheel: run `make spark-cluster`, or `make wheel` before"
    return found[-1]


def constraints() -> str:
    """Return the versions of the lock files as pip's constraints; their hashes would have to include the wheel."""
    pins = {line for lock in LOCKS for line in re.findall(r"^[\w.-]+==[^\s;\\]+", lock.read_text(), re.MULTILINE)}
    return "\n".join([*sorted(pins), *EXTRA_PINS, f"tandemq=={wheel().name.split('-')[1]}"]) + "\n"


def site_packages(environment: Path) -> Path:
    """Return the packages' directory of an environment."""
    (found,) = (environment / "lib").glob("python3*/site-packages")
    return found


class Nodes:
    """Environments, and a master with two workers of one core each; use it in `with`."""

    def __init__(self, directory: Path) -> None:
        """`directory`: logs and scratch files. Processes start on entry."""
        self.directory = directory
        self.address = ""
        """Value for `spark.master`."""
        self.workers: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.prepare()
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # environments

    def prepare(self) -> None:
        """Create the environments, unless those of this wheel and these locks exist."""
        with ZipFile(wheel()) as archive:  # two builds of the same files differ in their times
            contents = sorted((entry.filename, entry.CRC) for entry in archive.infolist())
        stamp = hashlib.sha256(f"{contents}{constraints()}".encode()).hexdigest()
        self.env_a, self.env_b, self.env_c = (KEPT / name for name in ("env-a", "env-b", "env-c"))
        (self.directory / "conf").mkdir()
        (self.directory / "conf" / "spark-defaults.conf").write_text(DEFAULTS)
        (self.directory / "constraints.txt").write_text(constraints())
        kept = KEPT / "stamp"
        if kept.exists() and kept.read_text() == stamp:
            return
        shutil.rmtree(KEPT, ignore_errors=True)
        KEPT.mkdir(parents=True)
        values = {"/opt/tandemq": self.env_a, "'.[spark]'": "'tandemq[spark]'"}  # the wheel, instead of a clone
        self.check(replaced(blocks("A standalone cluster")[0], values), activated=None)
        for copy in (self.env_b, self.env_c):
            self.check(f"python3 -m venv --without-pip {copy}", activated=None)
            shutil.copytree(site_packages(self.env_a), site_packages(copy), copy_function=os.link, dirs_exist_ok=True)
            for script in (self.env_a / "bin").glob("*spark*"):
                shutil.copy(script, copy / "bin")
            shutil.copy(self.env_a / "bin" / "load-spark-env.sh", copy / "bin")
        for path in site_packages(self.env_c).glob("*"):
            if re.match(r"tandemq|pyspark_rocketmq", path.name):
                shutil.rmtree(path)
        kept.write_text(stamp)

    def environ(self) -> dict[str, str]:
        """Return the environment variables of all processes; nothing of this repository is among them."""
        python = Path(os.path.realpath(sys.executable)).parent
        return {
            "HOME": str(self.directory),
            "PATH": f"{python}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "JAVA_HOME": str(find_java().home),
            "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip")),
            **{name: value for name, value in os.environ.items() if name.startswith("PIP_") and "INDEX" in name},
            "PIP_CONSTRAINT": str(self.directory / "constraints.txt"),
            "PIP_FIND_LINKS": str(wheel().parent),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_QUIET": "1",
            "PYSPARK_PYTHON": "python3",
            "SPARK_CONF_DIR": str(self.directory / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SMALL_JVM,
            "SPARK_MASTER_WEBUI_PORT": "0",
            "SPARK_WORKER_WEBUI_PORT": "0",
            "SPARK_WORKER_CORES": "1",
            "SPARK_WORKER_MEMORY": "1g",
        }

    # commands

    def command(self, text: str, activated: Path | None) -> list[str]:
        """Return the words that run lines of a shell, after activation of an environment."""
        prefix = f". {activated}/bin/activate\n" if activated is not None else ""
        return ["bash", "-e", "-c", prefix + text]

    def run(
        self, text: str, *, activated: Path | None = None, cwd: Path | None = None, **environ: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run lines of a shell to their end."""
        return subprocess.run(
            self.command(text, activated),
            cwd=cwd or self.directory,
            env=self.environ() | environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )

    def check(self, text: str, *, activated: Path | None, cwd: Path | None = None, **environ: str) -> str:
        """Run lines of a shell that must succeed; returns their standard output."""
        done = self.run(text, activated=activated, cwd=cwd, **environ)
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr[-6_000:]}"
        return done.stdout

    def start(self, text: str, *, activated: Path, log: Path, **environ: str) -> "subprocess.Popen[bytes]":
        """Start lines of a shell in a process group of their own, which `__exit__` kills."""
        *lines, last = text.strip().splitlines()
        with log.open("wb") as file:
            process = subprocess.Popen(
                self.command("\n".join([*lines, f"exec {last}"]), activated),
                cwd=self.directory,
                env=self.environ() | environ,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._stack.callback(_kill_all, process)
        return process

    def stop(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill a process that `start` started; its executors end."""
        _kill_all(process)

    def _start(self) -> None:
        master_command, worker_command = blocks("A standalone cluster")[1:3]
        log = self.directory / "master.log"
        self.start(
            replaced(master_command, {"--host master --port 7077": "--host 127.0.0.1 --port 0"}),
            activated=self.env_a,
            log=log,
        )

        def said(pattern: str, count: int = 1) -> bool:
            return len(re.findall(pattern, log.read_text())) >= count

        wait_until(lambda: said(r"Starting Spark master at spark://\S+"), "the master has started", seconds=START_S)
        self.address = re.findall(r"Starting Spark master at (spark://\S+)", log.read_text())[0]
        for number, environment in enumerate((self.env_a, self.env_b)):
            self.workers.append(
                self.start(
                    replaced(worker_command, {"spark://master:7077": self.address}),
                    activated=environment,
                    log=self.directory / f"worker-{number}.log",
                    SPARK_WORKER_DIR=str(self.directory / f"work-{number}"),
                )
            )
        wait_until(lambda: said("Registering worker ", 2), "both workers are registered", seconds=START_S)

    # processes to kill

    def executors(self) -> list[int]:
        """Return the process ids of executors, the JVMs below the workers."""
        return [pid for worker in self.workers for pid in _children(worker.pid)]

    def pythons(self) -> list[int]:
        """Return the process ids of Python workers of executors, not of the daemons that fork them."""
        return [pid for executor in self.executors() for daemon in _children(executor) for pid in _children(daemon)]


def _children(pid: int) -> Iterator[int]:
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            yield from map(int, path.read_text().split())
        except OSError:  # the thread has ended
            continue


def _kill_all(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and all that it started: Spark's Python daemons have process groups of their own."""
    if process.poll() is not None:
        return
    found, rest = [], [process.pid]
    while rest:
        found.append(rest.pop())
        rest += _children(found[-1])
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()
