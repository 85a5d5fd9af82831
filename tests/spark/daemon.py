"""Spark's daemon of Python workers, with the imports done that every worker would do after its fork: 1 s less of each.

Spark forks first because imported libraries may have threads; here they have none that workers need.
"""

import pandas as pd  # type: ignore[import-untyped]  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import tandemq.spark.sources.cluster.source
import tandemq.spark.sources.log.source  # noqa: F401

if __name__ == "__main__":
    manager()
