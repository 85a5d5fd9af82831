"""Gold: metrics for operators and analysts."""

import json

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.materialized_view(format="parquet", comment="Per minute and topic: messages, bytes, latency, retries, dead letters")
def gold_minutes() -> DataFrame:
    """Latency in milliseconds is from the producer's clock to the broker's; for a retry it starts at the original
    send."""
    return (
        spark.read.table("silver")
        .groupBy("minute", "topic")
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.length("body")).alias("bytes"),
            F.percentile_approx("latencyMs", 0.5).alias("latencyMs50"),
            F.percentile_approx("latencyMs", 0.99).alias("latencyMs99"),
            F.max("latencyMs").alias("latencyMsMax"),
            F.count_if(F.col("topic").startswith("%RETRY%")).alias("retries"),
            F.count_if(F.col("topic").startswith("%DLQ%")).alias("deadLetters"),
        )
    )


@dp.materialized_view(format="parquet", comment="Per group and topic: consumed messages and lag")
def gold_lag() -> DataFrame:
    """Present lag from the brokers; no rows without a name server."""
    return (
        spark.read.format("rocketmq-lag")
        .option("nameServer", spark.conf.get("spark.tandemq.nameServer", ""))
        .options(**json.loads(spark.conf.get("spark.tandemq.tls", "{}")))
        .load()
        .groupBy("group", "topic")
        .agg(F.sum("lag").alias("lag"), F.sum("consumerOffset").alias("consumed"), F.count("*").alias("queues"))
    )
