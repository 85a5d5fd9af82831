"""Lag and volume of streaming queries in Spark's progress reports."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from tandemq.errors import ConfigError
from tandemq.model.message import MessageQueue
from tandemq.run.local import LocalCluster
from tandemq.spark.runtime.client_pool import close_clients, cluster_client
from tandemq.spark.sources.cluster.backlog import BROKERS, LAG, broker_backlog, find_backlog
from tandemq.spark.sources.cluster.epochs import Epochs
from tandemq.spark.sources.cluster.limits import QueueEnd
from tandemq.spark.sources.cluster.members import QueueLayout
from tandemq.spark.sources.cluster.options import ReadFrom
from tandemq.spark.sources.cluster.progress import (
    BrokerProgress,
    ProgressListener,
    QueryReport,
    TopicProgress,
    log_report,
    query_report,
    with_volume,
)
from tests.blackbox.programs import wait_until
from tests.spark.messages import make_topic, numbered, send
from tests.spec import spec


@spec("P32")
def test_listener_reports_lag_and_volume_of_each_micro_batch(
    spark: SparkSession, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Orders", 1)
    send(names, numbered("Orders", 0, 100))
    reports: list[QueryReport] = []
    listener = ProgressListener(reports.append)
    spark.streams.addListener(listener)
    given = {"nameServer": names, "subscribe": "Orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
    rows = with_volume(spark.readStream.format("rocketmq").options(**given).load())
    writer = rows.writeStream.format("noop").queryName("orders").trigger(availableNow=True)
    try:
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        query.awaitTermination()
        wait_until(lambda: bool(reports) and reports[-1].lag == 0, "the last micro-batch is reported", seconds=300)
    finally:
        spark.streams.removeListener(listener)
    read = [report for report in reports if report.topics[0].offsets]
    assert {report.query for report in read} == {"orders"}
    assert [(one.topic, one.offsets, one.lag) for report in read for one in report.topics] == [
        ("Orders", 40, 60),
        ("Orders", 40, 20),
        ("Orders", 20, 0),
    ]
    ages = [report.lag_seconds for report in read]
    assert all(age is not None and 0 < age < 600 for age in ages[:2])
    assert ages[2] == 0
    assert [[(one.broker, one.lag) for one in report.brokers] for report in read] == [
        [("broker-a", lag)] for lag in (60, 20, 0)
    ]
    assert all(one.answer_ms is not None and one.answer_ms < 60_000 for report in read for one in report.brokers)
    assert [report.volume["messages"] for report in read] == [40, 40, 20]
    assert sum(report.volume["bytes"] for report in read) == 10 + 2 * 90
    assert read[-1].volume["newest"] is not None
    last = query.lastProgress
    assert last is not None
    found = query_report(last)
    assert found is not None
    assert found.lag == 0


def progress_of(latest: str | None, start: str = "{}", end: str = "{}") -> StreamingQueryProgress:
    source: dict[str, Any] = {
        "description": "x",
        "startOffset": start,
        "endOffset": end,
        "latestOffset": latest,
        "numInputRows": 0,
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 0.0,
        "metrics": {},
    }
    return StreamingQueryProgress.fromJson(
        {
            "id": "00000000-0000-0000-0000-000000000001",
            "runId": "00000000-0000-0000-0000-000000000002",
            "name": None,
            "timestamp": "",
            "batchId": 7,
            "batchDuration": 1,
            "durationMs": {},
            "eventTime": {},
            "stateOperators": [],
            "sources": [source],
            "sink": {"description": "x", "numOutputRows": 0, "metrics": {}},
            "numInputRows": 0,
            "inputRowsPerSecond": 0.0,
            "processedRowsPerSecond": 0.0,
            "observedMetrics": {},
        }
    )


def test_report_of_a_query_without_a_name_and_of_other_sources(caplog: pytest.LogCaptureFixture) -> None:
    for latest in (None, "17", "not JSON", '{"Orders": {"0": 4}}'):
        assert query_report(progress_of(latest)) is None
    lag = {"A": {"messages": 3, "seconds": None}, "B": {"messages": 0, "seconds": 0.0}}
    of_brokers = {"b": {"messages": 1, "answerMs": None}, "a": {"messages": 2, "answerMs": 40}}
    latest = json.dumps({LAG: lag, BROKERS: of_brokers})
    found = query_report(
        progress_of(
            latest, '{"A": {"a": {"epoch": 2, "0": 5}}}', '{"A": {"a": {"epoch": 3, "0": 9}}, "B": {"a": {"1": 2}}}'
        )
    )
    assert found == QueryReport(
        "00000000-0000-0000-0000-000000000001",
        7,
        (TopicProgress("A", 4, 3, None), TopicProgress("B", 2, 0, 0.0)),
        (BrokerProgress("a", 2, 40), BrokerProgress("b", 1, None)),
    )
    assert (found.lag, found.lag_seconds) == (3, None)
    with caplog.at_level(logging.INFO):
        log_report(found)
    assert [line.rpartition("batch=")[2] for line in caplog.messages] == [
        "7 broker=a lag=2 answer_ms=40",
        "7 broker=b lag=1 answer_ms=none",
        "7 topic=A offsets=4 lag=3 lag_seconds=unknown",
        "7 topic=B offsets=2 lag=0 lag_seconds=0.0",
    ]


def test_lag_by_broker_group_is_that_of_its_queues() -> None:
    a, b = (MessageQueue("Orders", name, 0) for name in ("a", "b"))
    ends = {a: QueueEnd(9, is_final=True), b: QueueEnd(5, is_final=False)}
    found = broker_backlog(ends, {a: 4, b: 7}, {"a": Epochs(answer_ms=3), "b": Epochs(), "c": Epochs(answer_ms=1)})
    assert found == {
        "a": {"messages": 5, "answerMs": 3},
        "b": {"messages": 0, "answerMs": None},
        "c": {"messages": 0, "answerMs": 1},
    }


def test_lag_in_seconds_is_unknown_if_no_member_answers() -> None:
    queues = tuple(MessageQueue("Orders", name, 0) for name in ("a", "b"))
    layout = QueueLayout(queues, {"a": {0: "127.0.0.1:1"}, "b": {}})
    ends = {queue: QueueEnd(9, is_final=True) for queue in queues}
    try:
        found = cluster_client("127.0.0.1:1").run(
            lambda _: find_backlog(layout, ends, dict.fromkeys(queues, 4), ReadFrom.MASTER), 5_000
        )
    finally:
        close_clients()
    assert found == {"Orders": {"messages": 10, "seconds": None}}


def test_volume_without_a_body_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="no column body"):
        with_volume(spark.range(1))
