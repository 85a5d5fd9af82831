"""Makes `format("rocketmq-log")` known to Spark, which looks into every installed module named `pyspark_…`.

Source: docs/guides/pipeline.md.
"""

from tandemq.spark.sources.log.source import RocketMQLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
