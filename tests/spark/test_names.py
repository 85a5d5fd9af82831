"""Names of jobs and queries in Spark's UI, read where the UI and its REST API read them."""

from pathlib import Path

from click.testing import CliRunner
from pyspark.sql import SparkSession

from tandemq.cli import main
from tandemq.run.local import LocalCluster
from tests.spark.logs import LogWriter
from tests.spark.messages import numbered, send


def jobs(spark: SparkSession) -> dict[int, str]:
    """Return the descriptions of all jobs of the session by number."""
    store = spark.sparkContext._jsc.sc().statusStore()
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    found = store.jobsList(None)
    each = [found.apply(number) for number in range(found.size())]
    return {one.jobId(): one.description().get() if one.description().isDefined() else "" for one in each}


def run(spark: SparkSession, *words: object) -> set[str]:
    """Run a command; returns the descriptions of its jobs, without the ids that Spark adds to a query's name."""
    before = jobs(spark)
    done = CliRunner().invoke(main, ["spark", *map(str, words)])
    assert done.exit_code == 0, done.output
    new = {text for number, text in jobs(spark).items() if number not in before}
    return {text.partition("<br/>")[0].partition("\n")[0] for text in new}


def test_jobs_and_queries_of_commands_are_named_after_their_input(
    spark: SparkSession, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    writer, lake, orders = LogWriter(tmp_path / "broker-a"), tmp_path / "lake", tmp_path / "orders"
    writer.write_many(20)
    assert run(spark, "scrub", writer.store) == {f"scrub {writer.store}"}
    assert run(spark, "audit", writer.store, writer.store) == {f"audit {writer.store} {writer.store}"}
    assert run(spark, "archive", writer.store, lake) == {f"archive broker-a to {lake}"}
    names = tandemq_broker.name_servers
    send(names, numbered("Orders", 0, 20))
    found = run(spark, "collect", orders, "--namesrv", names, "--subscribe", "Orders")
    assert found == {f"collect Orders to {orders}"}
    before = jobs(spark)
    spark.range(3).selectExpr("sum(id)").collect()
    assert {text for number, text in jobs(spark).items() if number not in before} == {""}, "names end with commands"
