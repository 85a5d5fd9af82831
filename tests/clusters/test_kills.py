"""Executors and their Python workers killed with SIGKILL in the middle of jobs: nothing is lost, nothing is doubled."""

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tandemq.model.message import UNIQ_KEY
from tandemq.run.local import LocalCluster
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.sources.cluster.outgoing import unique_keys
from tests.blackbox.programs import wait_until
from tests.clusters.conftest import RECORDS, SEGMENT_BYTES
from tests.clusters.nodes import RUN_S, Nodes
from tests.clusters.page import blocks, replaced
from tests.spark.logs import LogWriter
from tests.spark.messages import make_topic, numbered, received, send
from tests.spark.shop import written as written_rows

MASTER = "spark://master:7077"
BATCH_BYTES = 120_000
MESSAGES = 1_200
Moment = Callable[[], bool]


class Killer:
    """A job on the cluster, and the processes that are killed while it runs."""

    def __init__(self, nodes: Nodes, text: str, log: Path) -> None:
        self._nodes = nodes
        self._log = log
        self.process = nodes.start(text, activated=nodes.env_a, log=log)

    def _kill(self, victims: Callable[[], list[int]], moment: Moment, what: str) -> None:
        """Wait for a moment and for a process, then kill it; the job must not have ended."""

        killed: list[int] = []

        def is_done() -> bool:
            if not self._has_ended() and moment():
                killed.extend(filter(_is_killed, victims()[:1]))
            return bool(killed) or self._has_ended()

        wait_until(is_done, what, seconds=RUN_S)
        assert killed, f"ended before {what}: {self._log.read_text()[-4_000:]}"

    def kill_python(self, moment: Moment) -> None:
        """Kill a Python worker."""
        self._kill(self._nodes.pythons, moment, "a Python worker runs at the moment to kill it")

    def kill_executor(self, moment: Moment) -> None:
        """Kill the JVM of an executor; its worker starts another one."""
        self._kill(self._nodes.executors, moment, "an executor runs at the moment to kill it")

    def finish(self) -> str:
        """Wait for the end of the job, which must succeed; returns its output."""
        try:
            self.process.wait(RUN_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running: {self._log.read_text()[-4_000:]}") from None
        assert self.process.returncode == 0, self._log.read_text()[-4_000:]
        return self._log.read_text()

    def _has_ended(self) -> bool:
        return self.process.poll() is not None


def _is_killed(pid: int) -> bool:
    """Kill a process; false if it has ended by itself since it was seen."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def commits(lake: Path) -> int:
    """Return the number of commits of a lake."""
    return len(list((lake / "_delta_log").glob("*.json")))


def column(lake: Path, name: str) -> list[object]:
    """Return a column of all rows of a lake, sorted."""
    values: list[object] = ds.dataset(DeltaLake(lake).data_files()).to_table([name]).column(0).to_pylist()
    return sorted(values, key=str)


def job(name: str) -> str:
    """Return the page's command that contains a text."""
    (found,) = [line for line in blocks("Jobs")[0].splitlines() if name in line]
    return found


def by_key(name_servers: str, topic: str, count: int) -> dict[str, int]:
    """Return the numbers in the bodies of a topic by unique key; copies of a message must have the same body."""
    found: dict[str, int] = {}
    for message in received(name_servers, topic, count):
        key, number = message.properties[UNIQ_KEY], int(message.body)
        assert found.setdefault(key, number) == number, "two messages have the same unique key"
    return found


@pytest.mark.slow
def test_archive_and_replay_survive_killed_executors(
    nodes: Nodes, writer: LogWriter, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names, lake = tandemq_broker.name_servers, tmp_path / "lake"
    values = {
        MASTER: nodes.address,
        "/var/lib/tandemq/broker-a": writer.store,
        "/data/lake": lake,
        "127.0.0.1:9876": names,
    }
    # The log as a source, files written by tasks.
    archive = Killer(nodes, f"{replaced(job(' archive '), values)} --batch-bytes {BATCH_BYTES}", tmp_path / "archive")
    archive.kill_python(lambda: commits(lake) >= 2)
    archive.kill_executor(lambda: commits(lake) >= 5)
    archive.finish()
    assert column(lake, "commitLogOffset") == sorted((made.log_offset for made in writer.made), key=str)

    # A batch read of the lake, and files of a store written by tasks.
    restored = tmp_path / "restored"
    values["/data/broker-a-s1"] = restored

    def segments() -> int:
        return len(list(restored.glob("commitlog/*")))

    words = f"{replaced(job('--to-store'), values)} --segment-bytes {SEGMENT_BYTES}"
    restore = Killer(nodes, words, tmp_path / "restore")
    restore.kill_python(lambda: segments() >= 1)
    restore.kill_executor(lambda: segments() >= 4)
    restore.finish()
    files = [sorted(store.glob("commitlog/*")) for store in (writer.store, restored)]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    written, read = (b"".join(path.read_bytes() for path in paths)[: writer.end] for paths in files)
    assert written == read
    assert {path.name for path in restored.iterdir()} == {"commitlog", "config", "replay.json"}

    # The same, and the sink.
    make_topic(names, "Copies")
    queues = tandemq_broker.broker().node.store.queues

    def copied() -> int:
        return sum(queue.max_offset for (topic, _), queue in list(queues.items()) if topic == "Copies")

    replay = Killer(nodes, f"{replaced(job('--to-topic'), values)} --rate 400/s", tmp_path / "replay")
    replay.kill_python(lambda: copied() >= 100)
    sent = copied()
    replay.kill_executor(lambda: copied() >= sent + 100)
    replay.finish()
    keys = {message.properties[UNIQ_KEY] for message in received(names, "Copies", copied())}
    assert keys == {f"{made.number:032X}" for made in writer.made}


@pytest.mark.slow
def test_collect_of_a_running_cluster_survives_killed_executors(
    nodes: Nodes, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names, lake = tandemq_broker.name_servers, tmp_path / "orders"
    make_topic(names, "Orders")
    send(names, numbered("Orders", 0, MESSAGES))
    values = {MASTER: nodes.address, "/data/orders": lake, "127.0.0.1:9876": names}
    collect = Killer(nodes, f"{replaced(job(' collect '), values)} --batch-messages 100", tmp_path / "collect")
    collect.kill_python(lambda: commits(lake) >= 2)
    collect.kill_executor(lambda: commits(lake) >= 4)
    collect.finish()
    assert column(lake, "body") == sorted((str(number).encode() for number in range(MESSAGES)), key=str)


def test_batch_read_survives_a_killed_executor(nodes: Nodes, writer: LogWriter, tmp_path: Path) -> None:
    program = tmp_path / "count.py"
    option = '.option("rangeBytes", 65536)'
    text = (
        blocks("A program", "python")[0]
        .replace(".load(", f"{option}.load(")
        .replace("register(spark)", "register(spark, check=False)")
    )
    assert option in text
    assert "check=False" in text
    program.write_text(text)
    command = replaced(blocks("spark-submit")[0], {MASTER: nodes.address, "/var/lib/tandemq/broker-a": writer.store})
    count = Killer(nodes, command.replace("count.py", str(program)), tmp_path / "count")
    count.kill_executor(lambda: bool(nodes.pythons()))
    lines = count.finish().splitlines()
    assert [line for line in lines if re.fullmatch(r"\d+", line)] == [str(RECORDS)]


PROGRAM = """
import sys

from pyspark.sql import SparkSession
from tandemq.spark import register

names, home = sys.argv[1:]
spark = SparkSession.builder.appName("copy").getOrCreate()
register(spark, check=False)


def copy(query, sink, **options):
    source = spark.readStream.format("rocketmq").options(nameServer=names, subscribe="Orders")
    rows = source.options(startingOffsets="earliest", maxOffsetsPerTrigger=%d).load()
    writer = rows.writeStream.queryName(query).format(sink).options(**options)
    return writer.option("checkpointLocation", f"{home}/checkpoints/{query}").trigger(availableNow=True).start()


queries = [
    copy("table", "parquet", path=f"{home}/table"),
    copy("topic", "rocketmq", nameServer=names, topic="Streamed"),
]
for query in queries:
    query.awaitTermination()
rows = spark.range(0, %d, numPartitions=%d).selectExpr("cast(id as string) as body")
options = {"nameServer": names, "topic": "Written", "writeId": "one", "maxInFlight": 1}  # one request per message
rows.write.format("rocketmq").options(**options).mode("append").save()
spark.stop()
"""
STREAMED, PER_BATCH = 800, 80
WRITTEN, PARTS = 4_000, 4


@pytest.mark.slow
def test_streams_and_a_batch_write_survive_killed_executors(
    nodes: Nodes, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names = tandemq_broker.name_servers
    for topic in ("Orders", "Streamed", "Written"):
        make_topic(names, topic)
    send(names, numbered("Orders", 0, STREAMED))
    queues = tandemq_broker.broker().node.store.queues

    def count(wanted: str) -> int:
        return sum(queue.max_offset for (topic, _), queue in list(queues.items()) if topic == wanted)

    def batches() -> int:
        return len(list((tmp_path / "table" / "_spark_metadata").glob("[0-9]*")))

    program = tmp_path / "streams.py"
    program.write_text(PROGRAM % (PER_BATCH, WRITTEN, PARTS))
    (command,) = blocks("spark-submit")[:1]
    command = command.replace("count.py /var/lib/tandemq/broker-a", f"{program} {names} {tmp_path}")
    copy = Killer(nodes, command.replace(MASTER, nodes.address), tmp_path / "copy")
    copy.kill_python(lambda: count("Streamed") >= PER_BATCH)
    copy.kill_executor(lambda: batches() >= 4)
    copy.kill_python(lambda: count("Written") >= 200)
    written = count("Written")
    copy.kill_executor(lambda: count("Written") >= written + 200)
    copy.finish()
    numbers = sorted(int(row["body"]) for row in written_rows(tmp_path / "table"))
    assert numbers == list(range(STREAMED))
    assert sorted(by_key(names, "Streamed", count("Streamed")).values()) == list(range(STREAMED))
    found = by_key(names, "Written", count("Written"))
    assert sorted(found.values()) == list(range(WRITTEN))
    assert found.keys() == {
        unique_keys("one", "", part, row, 1) for part in range(PARTS) for row in range(WRITTEN // PARTS)
    }
