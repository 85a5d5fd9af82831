"""HDFS as child processes: a name node and a data node on loopback. Hadoop's servers are in a jar of Maven Central,
their dependencies in PySpark, which has the same version of Hadoop."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen
from xml.sax.saxutils import escape

import pyspark

from tests.interop.java import LOOPBACK, JavaJars, Kind, Process, free_port, java_executable, wait_until

VERSION = "3.5.0"
"""Version of Hadoop, the same as in PySpark."""
_JVM = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_STATE_PATH = "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"


class HadoopConf:
    """Configuration and command lines of servers of Hadoop."""

    def __init__(self, directory: Path, settings: Mapping[str, object], kind: Kind = "hadoop") -> None:
        """Write settings in `conf` below a directory. `kind`: the servers' jars."""
        self._kind: Kind = kind
        self.directory = directory.resolve()
        self.conf = self.directory / "conf"
        given = {"hadoop.tmp.dir": self.directory / "tmp", **settings}
        rows = [
            f"<property><name>{name}</name><value>{escape(str(value))}</value></property>"
            for name, value in given.items()
        ]
        for path in (self.conf, self.directory / "tmp"):
            path.mkdir(parents=True, exist_ok=True)
        text = "\n".join(["<configuration>", *rows, "</configuration>", ""])
        for name in ("core-site.xml", "hdfs-site.xml", "yarn-site.xml"):
            (self.conf / name).write_text(text)

    def command(self, main: str, *arguments: str) -> list[str]:
        """Return the command line of a Java process. `main`: its main class."""
        jars = Path(pyspark.__file__).parent / "jars" / "*"
        class_path = os.pathsep.join([JavaJars.class_path(self._kind, VERSION, self.conf), str(jars)])
        temporary = f"-Djava.io.tmpdir={self.directory / 'tmp'}"
        return [java_executable(), *_JVM, temporary, "-cp", class_path, main, *arguments]


class _Cluster(HadoopConf):
    """A name node and a data node."""

    def __init__(self, directory: Path) -> None:
        self.port, self.http_port = free_port(), free_port()
        settings = {
            "fs.defaultFS": f"hdfs://{LOOPBACK}:{self.port}",
            "dfs.replication": 1,
            "dfs.namenode.http-address": f"{LOOPBACK}:{self.http_port}",
            "dfs.datanode.address": f"{LOOPBACK}:{free_port()}",
            "dfs.datanode.http.address": f"{LOOPBACK}:{free_port()}",
            "dfs.datanode.ipc.address": f"{LOOPBACK}:{free_port()}",
        }
        super().__init__(directory, settings)

    def serves(self) -> bool:
        """Whether the name node accepts writes, and has a data node for them."""
        with urlopen(f"http://{LOOPBACK}:{self.http_port}{_STATE_PATH}", timeout=60) as answer:
            states = json.load(answer)["beans"]  # empty until the name node has loaded its name system
        return any(state["NumLiveDataNodes"] == 1 and state["FSState"] == "Operational" for state in states)


@contextmanager
def hdfs(directory: Path) -> Iterator[str]:
    """Run an empty HDFS; yield its URL."""
    cluster = _Cluster(directory)
    subprocess.run(
        cluster.command(_NAME_NODE, "-format", "-nonInteractive"),
        check=True,
        capture_output=True,
        cwd=cluster.directory,
        timeout=600,
    )
    with (
        Process("namenode", directory, command=lambda: cluster.command(_NAME_NODE), ready=cluster.port) as name_node,
        Process(
            "datanode", directory, command=lambda: cluster.command(_DATA_NODE), ready=cluster.http_port
        ) as data_node,
    ):
        name_node.start()
        data_node.start()
        wait_until(cluster.serves, what="a data node is registered with the name node", within_s=60)
        yield f"hdfs://{LOOPBACK}:{cluster.port}"
