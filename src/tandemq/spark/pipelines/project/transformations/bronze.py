"""Bronze: every record as stored, sound or not, with where it lies."""

import json

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table(format="parquet", comment="Every record as stored, with broker, offsets, epoch and verdict")
def bronze() -> DataFrame:
    """What brokers or their files hold; `spark.tandemq.format` and `spark.tandemq.options` say which and how."""
    options = json.loads(spark.conf.get("spark.tandemq.options") or "{}")
    return spark.readStream.format(spark.conf.get("spark.tandemq.format")).options(**options, details="true").load()
