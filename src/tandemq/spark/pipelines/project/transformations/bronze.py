"""Bronze: every record as stored, sound or not, with where it lies."""

import json

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.table(format="parquet", comment="Every record as stored, with broker, offsets, epoch and verdict")
def bronze() -> DataFrame:
    """What brokers or their files hold; `spark.tandemq.format` and `spark.tandemq.options` say which and how.

    `arrivedAt` is when a record came here: silver forgets copies by it.
    """
    options = json.loads(spark.conf.get("spark.tandemq.options") or "{}")
    records = spark.readStream.format(spark.conf.get("spark.tandemq.format")).options(**options, details="true").load()
    return records.withColumn("arrivedAt", F.current_timestamp())
