"""The session: that it runs at all, Python workers included."""

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from tandemq.spark.session import SETTINGS, open_session


def test_session_has_our_settings_and_runs_python(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    twice = udf(lambda number: 2 * number, "long")
    assert [row[0] for row in spark.range(3).select(twice("id")).collect()] == [0, 2, 4]


def test_second_session_joins_the_first(spark: SparkSession) -> None:
    again, java = open_session("other")
    assert again is spark
    assert java is None
    assert SETTINGS
