"""Bronze: every record of both topics as stored, with the time of its arrival here."""

import json

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.table(format="parquet", comment="Every record as stored, with broker, offsets, epoch and verdict")
def bronze() -> DataFrame:
    """Records of the brokers; `spark.tandemq.options` configures the source."""
    options = json.loads(spark.conf.get("spark.tandemq.options") or "{}")
    records = spark.readStream.format("rocketmq").options(**options, details="true").load()
    return records.withColumn("arrivedAt", F.current_timestamp())
