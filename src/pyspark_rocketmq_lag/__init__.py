"""Makes `format("rocketmq-lag")` known to Spark, which looks into every installed module named `pyspark_…`.

Source: docs/guides/pipeline.md.
"""

from tandemq.spark.sources.cluster.lag import RocketMqLag as DefaultSource

__all__ = ["DefaultSource"]
