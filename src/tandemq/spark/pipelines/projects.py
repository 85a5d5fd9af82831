"""Pipeline project in a directory of the user: created once, run any number of times.

    DIRECTORY/spark-pipeline.yml          name, storage, source
    DIRECTORY/conf/spark-defaults.conf    catalog and warehouse, which Spark reads only at its start
    DIRECTORY/transformations/*.py        the tables; users may change them

Source: docs/guides/pipeline.md, "Declarative pipeline"; Spark Declarative Pipelines.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pyspark

from tandemq.errors import ConfigError
from tandemq.spark.runtime.java import find_java
from tandemq.spark.runtime.local_paths import local_path
from tandemq.spark.runtime.session import SETTINGS
from tandemq.spark.sources.cluster.options import TLS, USER

SPEC = "spark-pipeline.yml"
TEMPLATE = Path(__file__).parent / "project"
EXAMPLES = {"orders": Path(__file__).parent / "orders"}
"""Example projects by name; each also has programs that run without a declarative pipeline."""
DEDUPLICATION_WINDOW = "7 days"
"""Time for which silver recognizes a duplicate; bounds its state."""
END_S = 20.0
"""Time that the processes of a run have to end after a signal."""
END_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Project:
    """Source of a project: format and options. `name_servers`: cluster whose consumer lag is read, "" for none."""

    format: str
    options: Mapping[str, str]
    name_servers: str = ""


def write_project(directory: Path, project: Project) -> None:
    """Write a project into an empty or new directory.

    Raises:
        ConfigError: the directory contains files; they are left unchanged.
    """
    _check_no_key(project)
    home = _copy(TEMPLATE, directory)
    _configure(home, project)


def write_example(directory: Path, name: str, name_servers: str) -> None:
    """Write an example project into an empty or new directory; `name` is one of `EXAMPLES`.

    Raises:
        ConfigError: the directory contains files; they are left unchanged.
    """
    home = _copy(EXAMPLES[name], directory)
    options = {"nameServer": name_servers, "subscribe": "Orders,Payments", "startingOffsets": "earliest"}
    _configure(home, Project("rocketmq", options))


def _copy(template: Path, directory: Path) -> Path:
    local_path(directory, "the project")
    if directory.exists() and any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty", hint="give a new directory, or run the existing project")
    home = directory.absolute()
    shutil.copytree(template, home, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return home


def _check_no_key(project: Project) -> None:
    if any(name.lower() == "secretkey" for name in project.options):
        raise ConfigError("secretKey would be written into the project", hint="give secretFile, or TANDEMQ_CREDENTIALS")


def _configure(home: Path, project: Project) -> None:
    (home / "conf").mkdir()
    (home / "storage").mkdir()
    (home / SPEC).write_text(_spec(home, project), encoding="utf-8")
    (home / "conf" / "spark-defaults.conf").write_text(_defaults(home), encoding="utf-8")


def _spec(home: Path, project: Project) -> str:
    settings = {
        "spark.tandemq.format": project.format,
        "spark.tandemq.options": json.dumps(dict(project.options)),
        "spark.tandemq.copiesWithin": DEDUPLICATION_WINDOW,
    }
    if project.name_servers:
        settings["spark.tandemq.nameServer"] = project.name_servers
        settings["spark.tandemq.tls"] = json.dumps(
            {name: project.options[name] for name in (*TLS, *USER) if name in project.options}
        )
    # JSON strings are valid YAML strings.
    lines = [f"  {name}: {json.dumps(value)}" for name, value in settings.items()]
    return "\n".join(
        [
            "name: tandemq",
            f"storage: {json.dumps((home / 'storage').as_uri())}",
            "configuration:",
            *lines,
            "libraries:",
            "  - glob:",
            "      include: transformations/**",
            "",
        ]
    )


def _defaults(home: Path) -> str:
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": (home / "warehouse").as_uri(),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={home / 'metastore'};create=true",
        "spark.sql.streaming.stateStore.providerClass":
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        "spark.connect.grpc.binding.address": "127.0.0.1",  # by default all addresses
        # Partitions of silver's state: each costs files and time in every run.
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        **SETTINGS,
    }  # fmt: skip
    return "".join(f"{name} {value}\n" for name, value in settings.items())


def run_project(directory: Path, arguments: Sequence[str] = (), *, is_quiet: bool = False) -> int:
    """Run `spark-pipelines run` on a project, with the Java that Spark needs; returns its exit code.

    SIGINT and SIGTERM end it with all of its processes; the code is 128 and the number then. The next run continues.

    Args:
        arguments: additional arguments of spark-pipelines, like --full-refresh-all.
        is_quiet: drop its standard output.
    Raises:
        ConfigError: there is no project, or no Java.
    """
    if not (directory / SPEC).is_file():
        raise ConfigError(
            f"{directory} contains no {SPEC}",
            hint="tandemq spark pipeline DIRECTORY --namesrv … --subscribe … creates one",
        )
    home = directory.absolute()
    # In a process group of its own: some of the processes ignore Ctrl-C, and would continue without the others.
    process = subprocess.Popen(  # noqa: S603  # PySpark's own command
        [pipelines_command(), "run", "--spec", str(home / SPEC), *arguments],
        env=environment(home), cwd=home, stdout=subprocess.DEVNULL if is_quiet else None, process_group=0,
    )  # fmt: skip
    return _wait(process)


def _wait(process: "subprocess.Popen[bytes]") -> int:
    """Wait for a process, and end its group when a signal comes; a second signal kills it."""
    received: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        _signal_group(process.pid, signal.SIGTERM if len(received) == 1 else signal.SIGKILL)

    former = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
        until = time.monotonic() + END_S
        while received and _signal_group(process.pid, 0) and time.monotonic() < until:
            time.sleep(END_PAUSE_S)
        if received:
            _signal_group(process.pid, signal.SIGKILL)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    return 128 + received[0] if received else code


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; returns whether it has processes."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def pipelines_command() -> str:
    """Return the path of `spark-pipelines` in the imported PySpark."""
    return str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines")


def environment(directory: Path) -> dict[str, str]:
    """Return the environment of `spark-pipelines` for a project."""
    java = find_java()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return os.environ | {
        "JAVA_HOME": str(java.home), "SPARK_CONF_DIR": str(directory.absolute() / "conf"), "PATH": path,
        "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip
