"""Drivers that run in containers of YARN, with the commands of docs/guides/pipeline-clusters.md."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemq.run.local import LocalCluster
from tandemq.spark.runtime.java import find_java
from tests.clusters.conftest import RECORDS
from tests.clusters.nodes import SMALL_JVM, Nodes, site_packages
from tests.clusters.page import blocks, replaced
from tests.clusters.yarn import Yarn, application_of, yarn
from tests.spark.logs import LogWriter
from tests.spark.messages import make_topic, numbered, received, send
from tests.spec import spec

MESSAGES = 600
SETTINGS = f"""spark.driver.memory 512m
spark.executor.memory 512m
spark.executor.instances 2
spark.ui.enabled false
spark.driver.extraJavaOptions {SMALL_JVM}
spark.executor.extraJavaOptions {SMALL_JVM}
spark.yarn.am.waitTime 600s
"""
STREAM = """
import sys

from pyspark.sql import SparkSession
from tandemq.spark import register

names, directory = sys.argv[1:]
spark = SparkSession.builder.appName("copy").getOrCreate()
register(spark)
rows = spark.readStream.format("rocketmq").options(nameServer=names, subscribe="Orders", startingOffsets="earliest")
writer = rows.option("maxOffsetsPerTrigger", 250).load().writeStream.format("rocketmq")
writer = writer.options(nameServer=names, topic="Streamed").option("checkpointLocation", directory)
writer.trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yarn]:
    monkeypatch.setenv("JAVA_HOME", str(find_java().home))
    with yarn(tmp_path / "yarn") as cluster:
        yield cluster


def submit(nodes: Nodes, cluster: Yarn, text: str, directory: Path) -> str:
    """Run the page's command with another program; returns the name of the application."""
    done = nodes.run(text, activated=nodes.env_a, cwd=directory, SPARK_CONF_DIR=str(directory / "conf"))
    logs = "\n".join(path.read_text()[-4_000:] for path in cluster.logs.glob("*/*/stderr"))
    assert done.returncode == 0, f"{done.stderr[-4_000:]}\n{logs}"
    application = application_of(done.stderr)
    assert cluster.state(application)[0] == "SUCCEEDED"
    return application


@spec("P10")
@pytest.mark.slow
def test_driver_and_executors_run_in_containers_with_the_archive(
    nodes: Nodes, cluster: Yarn, program: Path, writer: LogWriter, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    make, _ = blocks("An environment in an archive")
    nodes.check(replaced(make, {"install . ": "install tandemq "}), activated=None, cwd=tmp_path)  # the wheel
    (tmp_path / program.name).write_bytes(program.read_bytes())
    (tmp_path / "conf").mkdir()
    jars = site_packages(nodes.env_a) / "pyspark" / "jars"  # not uploaded: the machine has them
    (tmp_path / "conf" / "spark-defaults.conf").write_text(f"{SETTINGS}spark.yarn.jars local:{jars}/*\n")
    text = replaced(blocks("YARN")[0], {"/etc/hadoop/conf": cluster.conf})
    store = "/var/lib/tandemq/broker-a"
    application = submit(nodes, cluster, replaced(text, {store: writer.store}), tmp_path)
    assert cluster.output(application).split()[-1] == str(RECORDS)
    assert len(cluster.containers(application)) >= 2

    names = tandemq_broker.name_servers
    for topic in ("Orders", "Streamed"):
        make_topic(names, topic)
    send(names, numbered("Orders", 0, MESSAGES))
    (tmp_path / "stream.py").write_text(STREAM)
    submit(nodes, cluster, text.replace(f"count.py {store}", f"stream.py {names} /checkpoint"), tmp_path)
    copied = [int(message.body) for message in received(names, "Streamed", MESSAGES)]
    assert sorted(copied) == list(range(MESSAGES))
