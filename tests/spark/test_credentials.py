"""Users of source, sink and lag: from options, a file or the environment; the key is in no plan, log line or error."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tandemq.client.credentials import Signer
from tandemq.errors import ConfigError
from tandemq.model.access import Credentials
from tandemq.run.local import LocalCluster
from tandemq.spark.pipelines.projects import Project, write_project
from tandemq.spark.runtime.client_pool import close_clients
from tandemq.spark.sources.cluster.options import lag_options, sink_options, source_options
from tandemq.spark.sources.formats import register

KEY = "very-hidden-key"
USER = Credentials("spark", KEY)
SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": USER.access_key, "password": KEY}),
}
GOOD = {"nameServer": "a:1", "subscribe": "Orders"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("guarded"), settings=SETTINGS) as cluster:
        yield cluster
    close_clients()


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "spark.yml"
    path.write_text(f"accessKey: {USER.access_key}\nsecretKey: {KEY}\n", encoding="utf-8")
    return path


def test_user_is_read_by_source_sink_and_lag_alike(secret_file: Path) -> None:
    for given, signer in (
        ({}, Signer()),
        ({"accessKey": USER.access_key, "secretKey": KEY}, Signer(USER)),
        ({"secretFile": str(secret_file)}, Signer(path=str(secret_file))),
    ):
        found: list[Any] = [
            source_options(GOOD | given, streaming=True),
            sink_options({"nameServer": "a:1"} | given),
            lag_options({"nameServer": "a:1"} | given),
        ]
        assert [options.signer for options in found] == [signer] * 3
        assert KEY not in repr(found) and KEY not in str(found)
        assert signer.credentials() == (USER if given else None)


def test_key_is_not_written_into_a_project(tmp_path: Path, secret_file: Path) -> None:
    with pytest.raises(ConfigError, match="secretKey would be written"):
        write_project(tmp_path / "project", Project("rocketmq", GOOD | {"accessKey": "spark", "secretkey": KEY}))
    assert not (tmp_path / "project").exists()
    write_project(tmp_path / "project", Project("rocketmq", GOOD | {"secretFile": str(secret_file)}, "a:1"))
    spec = (tmp_path / "project" / "spark-pipeline.yml").read_text(encoding="utf-8")
    assert spec.count(str(secret_file)) == 2 and KEY not in spec


def test_rows_are_written_and_read_by_a_user_whose_key_is_not_shown(
    spark: SparkSession, guarded: LocalCluster, secret_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    register(spark)
    by_option = {"accessKey": USER.access_key, "secretKey": KEY}
    rows = spark.createDataFrame([("one",), ("two",)], "value string")
    names = {"nameServer": guarded.name_servers}
    for user in (by_option, {"secretFile": str(secret_file)}):
        rows.write.format("rocketmq").options(**names, **user, topic="Orders").mode("append").save()
        found = spark.read.format("rocketmq").options(**names, **user, subscribe="Orders")
        frame = found.load().selectExpr("cast(body as string) as text")
        assert {row.text for row in frame.collect()} == {"one", "two"}
        assert KEY not in frame._jdf.queryExecution().toString()
        spark.read.format("rocketmq-lag").options(**names, **user).load().collect()
    for user in ({}, by_option | {"secretKey": "wrong-hidden-key"}):
        close_clients()
        with pytest.raises(PySparkException) as caught:
            spark.read.format("rocketmq").options(**names, **user, subscribe="Orders").load().collect()
        assert "authentication failed" in str(caught.value) and "hidden-key" not in str(caught.value)
    assert "hidden-key" not in caplog.text
    assert "hidden-key" not in shown_by_the_ui(spark)


def shown_by_the_ui(spark: SparkSession) -> str:
    """Return what the pages of Spark's UI have about the queries of this session, and its environment."""
    state = spark._jsparkSession.sharedState().statusStore()
    executions = state.executionsList()
    texts = [str(spark.sparkContext.getConf().getAll())]
    for number in range(executions.size()):
        execution = executions.apply(number)
        texts += [
            str(execution.physicalPlanDescription()),
            str(execution.details()),
            execution.modifiedConfigs().toString(),
        ]
    assert any("Orders" in text or "rocketmq" in text for text in texts)
    return "\n".join(texts)


def test_user_of_a_streaming_query_is_not_in_its_progress_or_checkpoint(
    spark: SparkSession, guarded: LocalCluster, tmp_path: Path
) -> None:
    register(spark)
    given = {"nameServer": guarded.name_servers, "accessKey": USER.access_key, "secretKey": KEY}
    spark.createDataFrame([("one",)], "value string").write.format("rocketmq").options(**given, topic="Paid").mode(
        "append"
    ).save()
    rows = spark.readStream.format("rocketmq").options(**given, subscribe="Paid", startingOffsets="earliest").load()
    query = (
        rows.selectExpr("body as value")
        .writeStream.format("rocketmq")
        .options(**given, topic="Copies", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert query.exception() is None
    assert KEY not in str(query.recentProgress)
    assert KEY not in str(query._jsq.explainInternal(True))
    files = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert files and not any(KEY.encode() in path.read_bytes() for path in files)
    copies = spark.read.format("rocketmq").options(**given, subscribe="Copies").load()
    assert copies.count() == 1
