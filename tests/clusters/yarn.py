"""YARN on HDFS as child processes: a resource manager and a node manager, of the jar that has HDFS's servers too.

    spark-submit ──► resource manager ──► node manager ──► container of the driver ──► containers of executors
         └─ program, archives ──► HDFS ──────┘

Containers see what the node manager localizes for them, and the machine's Python and Java.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from tests.interop.hdfs import HadoopConf, hdfs
from tests.interop.java import LOOPBACK, Process, free_port, wait_until

_PACKAGE = "org.apache.hadoop.yarn.server"
_MANAGER = f"{_PACKAGE}.resourcemanager.ResourceManager"
_NODE = f"{_PACKAGE}.nodemanager.NodeManager"
MEMORY_MB = 4_096


@dataclass(frozen=True, slots=True)
class Yarn:
    """A running cluster."""

    conf: Path
    """Value for HADOOP_CONF_DIR."""
    logs: Path
    """Where containers write."""
    address: str
    """Of the resource manager's web service."""

    def state(self, application: str) -> tuple[str, str]:
        """Return the final status of an application, and the diagnostics of YARN."""
        with urlopen(f"http://{self.address}/ws/v1/cluster/apps/{application}", timeout=60) as answer:
            found = json.load(answer)["app"]
        return found["finalStatus"], found["diagnostics"]

    def containers(self, application: str) -> list[Path]:
        """Return the directories with the logs of an application's containers; the first is the driver's."""
        return sorted((self.logs / application).iterdir())

    def output(self, application: str) -> str:
        """Return what the driver printed."""
        return (self.containers(application)[0] / "stdout").read_text()


def application_of(log: str) -> str:
    """Return the name of the application that `spark-submit` reports."""
    names: list[str] = re.findall(r"application_\d+_\d+", log)
    return names[-1]


def _settings(directory: Path, url: str, ports: dict[str, int]) -> dict[str, object]:
    manager = {
        f"yarn.resourcemanager.{name}": f"{LOOPBACK}:{free_port()}"
        for name in ("address", "scheduler.address", "resource-tracker.address", "admin.address")
    }
    node = {f"yarn.nodemanager.{name}": f"{LOOPBACK}:{free_port()}" for name in ("address", "localizer.address")}
    return {
        "fs.defaultFS": url,
        **manager,
        **node,
        "yarn.resourcemanager.webapp.address": f"{LOOPBACK}:{ports['manager']}",
        "yarn.resourcemanager.scheduler.class": f"{_PACKAGE}.resourcemanager.scheduler.fifo.FifoScheduler",
        "yarn.scheduler.minimum-allocation-mb": 128,
        "yarn.nodemanager.hostname": LOOPBACK,
        "yarn.nodemanager.webapp.address": f"{LOOPBACK}:{ports['node']}",
        "yarn.nodemanager.local-dirs": directory / "local",
        "yarn.nodemanager.log-dirs": directory / "containers",
        "yarn.nodemanager.resource.memory-mb": MEMORY_MB,
        "yarn.nodemanager.resource.cpu-vcores": 4,
        "yarn.nodemanager.vmem-check-enabled": "false",
        # A nearly full disk of the machine is no fault of the node.
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": 99.9,
    }


@contextmanager
def yarn(directory: Path) -> Iterator[Yarn]:
    """Run a cluster with one node on an empty HDFS."""
    ports = {"manager": free_port(), "node": free_port()}
    with hdfs(directory / "hdfs") as url:
        conf = HadoopConf(directory / "yarn", _settings(directory.resolve(), url, ports), "yarn")
        with (
            Process("manager", directory, command=lambda: conf.command(_MANAGER), ready=ports["manager"]) as manager,
            Process("node", directory, command=lambda: conf.command(_NODE), ready=ports["node"]) as node,
        ):
            manager.start()
            node.start()
            running = Yarn(conf.conf, directory / "containers", f"{LOOPBACK}:{ports['manager']}")
            wait_until(lambda: _nodes(running) == 1, what="the node is registered", within_s=60)
            yield running


def _nodes(running: Yarn) -> int:
    with urlopen(f"http://{running.address}/ws/v1/cluster/metrics", timeout=60) as answer:
        found: int = json.load(answer)["clusterMetrics"]["activeNodes"]
    return found
