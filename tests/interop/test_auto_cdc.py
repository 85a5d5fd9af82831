"""Newest row and history of each key, as docs/guides/pipeline-project.md makes them, in tables that support MERGE."""

import json
import re
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from tandemq.model.message import Message, MessageQueue
from tandemq.run.local import LocalCluster
from tandemq.spark.pipelines.projects import Project, run_project, write_project
from tests.interop.java import JavaJars
from tests.spark.kills import ROOT
from tests.spark.messages import make_topic, send
from tests.spec import spec

VERSION = "4.2.0"
CATALOG = "org.apache.spark.sql.connector.catalog.SharedTablesInMemoryRowLevelOperationTableCatalog"
QUEUES, KEYS, CHANGES = 3, 7, 100
COPIES = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


def copy(name):
    return dp.materialized_view(name=name)(lambda: spark.read.table(f"lake.default.{name}"))


copy("customers")
copy("history")
"""
"""The tables of the catalog end with Spark: these stay."""


def make_changes() -> list[Message]:
    """Return changes of rows; each key has its queue."""
    random = Random(5)
    found = []
    for number in range(CHANGES):
        key = random.randrange(KEYS)
        deletes = random.random() < 0.2
        body = b"-" if deletes else json.dumps({"name": f"n{key}", "city": f"c{number}"}).encode()
        found.append(Message("Customers", body, "deleted" if deletes else "changed", [f"k{key}"]))
    return found


def key_of(message: Message) -> str:
    (key,) = message.keys
    return key


def sent_in_order(name_servers: str, changes: list[Message]) -> list[tuple[Message, int]]:
    """Send changes, those of each key in their order to one queue; return each with its queue offset."""
    found = []
    for queue_id in range(QUEUES):
        of_queue = [one for one in changes if int(key_of(one)[1:]) % QUEUES == queue_id]
        for one in of_queue:
            (result,) = send(name_servers, [one], queue=MessageQueue("Customers", "broker-a", queue_id))
            found.append((one, result.queue_offset))
    return found


@spec("P50")
@pytest.mark.system
def test_newest_rows_and_history_of_the_keys_of_a_topic(
    tandemq_broker: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(tandemq_broker.name_servers, "Customers", QUEUES)
    changes = sent_in_order(tandemq_broker.name_servers, make_changes())
    home = tmp_path / "project"
    write_project(home, Project("rocketmq", {}))
    for path in (home / "transformations").iterdir():
        path.unlink()
    page = (ROOT / "docs/guides/pipeline-project.md").read_text(encoding="utf-8")
    (block,) = (one for one in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "create_auto_cdc_flow" in one)
    block = block.replace("127.0.0.1:9876", tandemq_broker.name_servers).replace("=100_000", "=30")
    (home / "transformations" / "changes.py").write_text(block, encoding="utf-8")
    (home / "transformations" / "copies.py").write_text(COPIES, encoding="utf-8")
    (jar,) = JavaJars.resolve("spark-tables", VERSION).glob("*.jar")
    with (home / "conf" / "spark-defaults.conf").open("a", encoding="utf-8") as settings:
        settings.write(f"spark.jars {jar}\nspark.sql.catalog.lake {CATALOG}\nspark.sql.shuffle.partitions 1\n")
    monkeypatch.setenv("SPARK_TESTING", "1")  # any free port, beside other pipelines
    assert run_project(home) == 0

    newest: dict[str, str] = {}
    history: dict[tuple[str, int], tuple[str, int | None]] = {}
    last: dict[str, int] = {}
    for message, offset in changes:
        key = key_of(message)
        if key in newest:
            history[key, last[key]] = newest.pop(key), offset
        if message.tags == "changed":
            newest[key], last[key] = json.loads(message.body)["city"], offset
            history[key, offset] = newest[key], None
    rows = pq.read_table(home / "warehouse" / "customers").to_pylist()
    assert {row["key"]: row["city"] for row in rows} == newest
    assert len(rows) == len(newest)
    rows = pq.read_table(home / "warehouse" / "history").to_pylist()
    assert {(row["key"], row["__START_AT"]): (row["city"], row["__END_AT"]) for row in rows} == history
    assert len(rows) == len(history)
