"""A standalone Spark cluster of real processes on this machine: a master, and workers that start executors.

    StandaloneCluster ─┬─ master   org.apache.spark.deploy.master.Master      its log is read
                       ├─ worker   org.apache.spark.deploy.worker.Worker ──► executor (a JVM) ──► Python workers
                       └─ worker   …

All of it comes with the package `pyspark`. Each process runs in a process group of its own, so that all of its children
can be killed.
"""

import os
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from tandemq.spark.runtime.java import find_java

HOME = Path(pyspark.__file__).parent
SCALA = next((HOME / "jars").glob("spark-core_*.jar")).name.removeprefix("spark-core_").partition("-")[0]
OPENED = ("java.lang", "java.lang.invoke", "java.nio", "java.util", "java.util.concurrent", "java.net", "sun.nio.ch")
LOG = """rootLogger.level = info
rootLogger.appenderRef.stdout.ref = stdout
appender.stdout.type = Console
appender.stdout.name = stdout
appender.stdout.layout.type = PatternLayout
appender.stdout.layout.pattern = %m%n
"""
EXIT_SECONDS = 30


class StandaloneCluster:
    """One master and several workers of one core each; use it in `with`."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        """`workers`: number of workers. Processes start on entry."""
        directory.mkdir()
        self._directory = directory
        self._java = find_java().home
        (directory / "log4j2.properties").write_text(LOG)
        self._count = workers
        self._processes: list[subprocess.Popen[str]] = []
        self.address = ""
        """Value for `spark.master`."""

    def __enter__(self) -> Self:
        try:
            self._master = self._start("master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            self.address = self._wait_for("Starting Spark master at ").rpartition(" ")[2]
            self._workers = [
                self._start(
                    "worker.Worker",
                    "--host",
                    "127.0.0.1",
                    "--cores",
                    "1",
                    "--memory",
                    "1g",
                    "--webui-port",
                    "0",
                    "--work-dir",
                    str(self._directory / f"work-{number}"),
                    self.address,
                    log=self._directory / f"worker-{number}.log",
                )
                for number in range(self._count)
            ]
            for _ in self._workers:
                self._wait_for("Registering worker ")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes."""
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(EXIT_SECONDS)
            if process.stdout is not None:
                process.stdout.close()

    def executors(self) -> list[int]:
        """Return the process ids of running executors, by worker."""
        return [
            int(pid)
            for worker in self._workers
            for path in Path(f"/proc/{worker.pid}/task").glob("*/children")
            for pid in path.read_text().split()
        ]

    def wait_for_lost_executor(self) -> None:
        """Read the master's log until it removes an executor that ended."""
        self._wait_for("Removing executor ")

    def _start(self, name: str, *arguments: str, log: Path | None = None) -> "subprocess.Popen[str]":
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
        settings = f"-Dlog4j2.configurationFile={self._directory / 'log4j2.properties'}"
        command = [
            str(self._java / "bin" / "java"),
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            *opened,
            settings,
            "-cp",
            f"{HOME / 'jars'}/*",
            f"org.apache.spark.deploy.{name}",
            *arguments,
        ]
        environment = os.environ | {
            "SPARK_HOME": str(HOME),
            "JAVA_HOME": str(self._java),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._directory / "local"),
            "SPARK_SCALA_VERSION": SCALA,
        }
        with (log or self._directory / "errors.log").open("ab") as file:
            process = subprocess.Popen(
                command,
                env=environment,
                text=True,
                stdout=subprocess.PIPE if log is None else file,
                stderr=file,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def _wait_for(self, text: str) -> str:
        """Return the next line of the master's log that contains a text; the timeout of the test applies."""
        assert self._master.stdout is not None
        for line in self._master.stdout:
            if text in line:
                return line.strip()
        raise AssertionError(
            f"the master ended before it said {text!r}: {(self._directory / 'errors.log').read_text()}"
        )
