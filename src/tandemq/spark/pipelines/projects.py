"""A pipeline project in a directory of the user's: written once, run as often as wanted.

    DIRECTORY/spark-pipeline.yml          name, storage, what to read
    DIRECTORY/conf/spark-defaults.conf    catalog and warehouse, which Spark takes at its start only
    DIRECTORY/transformations/*.py        the tables; the user's to change

Source: docs/guides/pipeline.md, "Declarative pipeline"; Spark Declarative Pipelines.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tandemq.errors import ConfigError
from tandemq.spark.runtime.java import find_java
from tandemq.spark.runtime.local_paths import local_path
from tandemq.spark.runtime.session import SETTINGS

SPEC = "spark-pipeline.yml"
TEMPLATE = Path(__file__).parent / "project"
COPIES_WITHIN = "7 days"
"""For how long silver knows a message again: the bound of its state."""
FORMATS = ("rocketmq", "rocketmq-log")


@dataclass(frozen=True, slots=True)
class Project:
    """What a project reads: a format, its options, and the cluster whose groups are looked at ("" for none)."""

    format: str
    options: Mapping[str, str]
    name_servers: str = ""


def write_project(directory: Path, project: Project) -> None:
    """Write a project into an empty or new directory.

    Raises:
        ConfigError: something is there already: it is left as it is.
    """
    local_path(directory, "the project")
    if directory.exists() and any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty", hint="give a new directory, or run the project that is there")
    home = directory.absolute()
    shutil.copytree(TEMPLATE, home, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (home / "conf").mkdir()
    (home / "storage").mkdir()
    (home / SPEC).write_text(_spec(home, project), encoding="utf-8")
    (home / "conf" / "spark-defaults.conf").write_text(_defaults(home), encoding="utf-8")


def _spec(home: Path, project: Project) -> str:
    settings = {
        "spark.tandemq.format": project.format,
        "spark.tandemq.options": json.dumps(dict(project.options)),
        "spark.tandemq.copiesWithin": COPIES_WITHIN,
    }
    if project.name_servers:
        settings["spark.tandemq.nameServer"] = project.name_servers
    # A JSON text is a YAML text too, quoted as YAML wants it.
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
        "spark.connect.grpc.binding.address": "127.0.0.1",  # spark-pipelines talks to itself, else on all
        # Of the state that silver keeps: each costs files and time in every run.
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        **SETTINGS,
    }  # fmt: skip
    return "".join(f"{name} {value}\n" for name, value in settings.items())


def run_project(directory: Path, arguments: Sequence[str] = (), *, is_quiet: bool = False) -> int:
    """Run `spark-pipelines run` on a project, on the Java that Spark needs; returns its exit code.

    Args:
        arguments: further ones for spark-pipelines, like --full-refresh-all.
        is_quiet: what it prints is dropped, errors excepted.
    Raises:
        ConfigError: there is no project, or no Java.
    """
    if not (directory / SPEC).is_file():
        raise ConfigError(
            f"{directory} holds no {SPEC}", hint="tandemq spark pipeline DIRECTORY --namesrv … --subscribe … writes one"
        )
    home = directory.absolute()
    return subprocess.run(  # noqa: S603  # PySpark's own command
        [pipelines_command(), "run", "--spec", str(home / SPEC), *arguments],
        env=environment(home), cwd=home, check=False, stdout=subprocess.DEVNULL if is_quiet else None,
    ).returncode  # fmt: skip


def pipelines_command() -> str:
    """Where `spark-pipelines` is: in the same PySpark that we import."""
    return str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines")


def environment(directory: Path) -> dict[str, str]:
    """The environment `spark-pipelines` needs for a project."""
    java = find_java()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return os.environ | {
        "JAVA_HOME": str(java.home), "SPARK_CONF_DIR": str(directory.absolute() / "conf"), "PATH": path,
        "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip
