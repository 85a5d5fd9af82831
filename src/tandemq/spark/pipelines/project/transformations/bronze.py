"""Bronze: every record as stored, sound or damaged, with its position."""

import json

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.table(format="parquet", comment="Every record as stored, with broker, offsets, epoch and verdict")
def bronze() -> DataFrame:
    """Records of brokers or of their files; `spark.tandemq.format` and `spark.tandemq.options` configure the source.

    `arrivedAt` is the time of arrival in this table; silver uses it to bound its state.
    """
    options = json.loads(spark.conf.get("spark.tandemq.options") or "{}")
    records = spark.readStream.format(spark.conf.get("spark.tandemq.format")).options(**options, details="true").load()
    return records.withColumn("arrivedAt", F.current_timestamp())
