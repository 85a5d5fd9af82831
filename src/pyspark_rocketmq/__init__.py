"""Makes `format("rocketmq")` known to Spark, which looks into every installed module named `pyspark_…`.

Source: docs/guides/pipeline.md.
"""

from tandemq.spark.sources.cluster.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
