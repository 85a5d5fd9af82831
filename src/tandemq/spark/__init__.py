"""The data pipeline: what brokers hold becomes a lasting, checkable, queryable lake, through PySpark.

    a store directory ─► logsource ─► records ─► Spark                      format("rocketmq-log")
                                         └─────► archive ─► lake            Delta, each record once
    two store directories ─► audit          one ─► scrub, rebuild, stats ─► report
    a running cluster ─► source: layout, plan, reader, decode ─► Spark ─► sink ─► a running cluster
    lake ─► replay ─► a topic, or the log of a fresh slave        pipelines: bronze, silver, gold

Work is split by physical ranges of the commit log, decoded in Python column by column, and handed to Spark as Arrow
batches, or written as Parquet by the task itself, so that Spark carries file names only. Readers open files, never map
them (docs/decisions/0003-no-mmap.md), and need no broker. The cluster is read and written by our own client, by queues
and their offsets.

Needs the extra `spark`: pip install 'tandemq[spark]'. Source: docs/guides/pipeline.md.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandemq.spark.sources.cluster.source import RocketMQDataSource
    from tandemq.spark.sources.log.source import RocketMQLogDataSource

__all__ = ["RocketMQDataSource", "RocketMQLogDataSource"]
_MODULES = {"RocketMQDataSource": "sources.cluster.source", "RocketMQLogDataSource": "sources.log.source"}


def __getattr__(name: str) -> Any:
    """The formats' classes, loaded when they are named: PySpark takes a second."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
