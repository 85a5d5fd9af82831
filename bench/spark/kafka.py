"""A Kafka broker in KRaft mode as a child process, and the jars of Spark's Kafka source.

    with KafkaBroker(directory) as kafka:
        kafka.start()
        kafka.create_topic("orders", 4)
        spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.address)

Broker and controller are one process, as Kafka's own quick start has them; the settings are its defaults, but for the
number of replicas (one broker) and the time of a record, which is that of the broker's append as in RocketMQ's
`storeTimestamp`. The jars come from Maven Central, once (`tests.interop.java.JavaJars`).
"""

from __future__ import annotations

import base64
import os
import subprocess
import uuid
from pathlib import Path
from subprocess import Popen
from typing import IO

from tests.interop.java import LOOPBACK, JavaJars, Process, free_port, java_executable

KAFKA = "4.1.0"
CONNECTOR = "4.2.0"
"""Of Spark's Kafka source: the last one on Maven Central. It runs unchanged on Spark 4.3."""
_OF_CONNECTOR = ("spark-sql-kafka-0-10", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
"""Its jars that PySpark does not have."""
_JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
"""The heap of Kafka's start script."""


def connector_class_path() -> str:
    """Return the jars of Spark's Kafka source, for `spark.driver.extraClassPath`.

    Raises:
        PeerError: Maven is missing, or could not fetch them.
    """
    jars = sorted(JavaJars.resolve("spark-kafka", CONNECTOR).glob("*.jar"))
    return os.pathsep.join(str(jar) for jar in jars if jar.name.startswith(_OF_CONNECTOR))


class KafkaBroker(Process):
    """One broker that is its own controller, on the loopback address."""

    def __init__(self, directory: Path) -> None:
        """`directory`: of its configuration, logs and data; made if missing."""
        self.port, controller = free_port(), free_port()
        self._conf = directory.resolve() / "server.properties"
        self._conf.parent.mkdir(parents=True, exist_ok=True)
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
            "listeners": f"PLAINTEXT://{LOOPBACK}:{self.port},CONTROLLER://{LOOPBACK}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": directory.resolve() / "data",
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "log.message.timestamp.type": "LogAppendTime",
        }
        self._conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        super().__init__(
            "kafka", directory, command=lambda: self._java("kafka.Kafka", str(self._conf)), ready=self.port
        )

    @property
    def address(self) -> str:
        """host:port for `kafka.bootstrap.servers`."""
        return f"{LOOPBACK}:{self.port}"

    def _java(self, main: str, *arguments: str) -> list[str]:
        return [java_executable(), *_JVM, "-cp", JavaJars.class_path("kafka", KAFKA), main, *arguments]

    def format(self) -> None:
        """Prepare the data directory; once, before the first start."""
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._run(self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._conf)))

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic."""
        words = ["--create", "--topic", name, "--partitions", str(partitions), "--bootstrap-server", self.address]
        self._run(self._java("org.apache.kafka.tools.TopicCommand", *words))

    def begin_load(self, topic: str, rate: int, seconds: int, *, body_bytes: int, output: IO[str]) -> Popen[str]:
        """Start Kafka's own load generator: messages of one length at a steady rate."""
        words = ["--topic", topic, "--num-records", str(rate * seconds), "--record-size", str(body_bytes)]
        words += ["--throughput", str(rate), "--producer-props", f"bootstrap.servers={self.address}"]
        command = self._java("org.apache.kafka.tools.ProducerPerformance", *words)
        return Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True)

    def _run(self, command: list[str]) -> None:
        subprocess.run(command, check=True, capture_output=True, text=True, cwd=self.directory)
