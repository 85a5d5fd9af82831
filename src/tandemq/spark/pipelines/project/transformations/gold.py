"""Gold: what operators and analysts look at."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.materialized_view(format="parquet", comment="Per minute and topic: messages, bytes, latency, retries, dead letters")
def gold_minutes() -> DataFrame:
    """Latency is from the producer's clock to the broker's, in milliseconds; of a retry, since the first delivery's."""
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


@dp.materialized_view(format="parquet", comment="Per group and queue: how far it is, how much is left")
def gold_lag() -> DataFrame:
    """As brokers say now; without rows where no name server is given."""
    return (
        spark.read.format("rocketmq-lag")
        .option("nameServer", spark.conf.get("spark.tandemq.nameServer", ""))
        .load()
        .groupBy("group", "topic")
        .agg(F.sum("lag").alias("lag"), F.sum("consumerOffset").alias("consumed"), F.count("*").alias("queues"))
    )
