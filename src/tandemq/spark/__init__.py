"""Data pipeline: messages from brokers and store files into a durable, verifiable, queryable lake, with PySpark.

    a store directory ─► sources/log ─► records ─► Spark                   format("rocketmq-log")
                                           └─────► jobs/archive ─► lake    a Delta table, each record once
    two store directories ─► audit            one ─► scrub, rebuild, stats ─► report
    a running cluster ─► sources/cluster: layout, plan, reader, decode ─► Spark ─► sink ─► a running cluster
    lake ─► replay ─► a topic, or the commit log of a fresh slave          pipelines: bronze, silver, gold

Work is split by physical ranges of the commit log. Each range is decoded in Python column by column. Tasks hand Arrow
batches to Spark, or write Parquet files themselves, so that Spark passes on file names only. Log readers open files and
never map them (docs/decisions/0003-no-mmap.md); they need no broker. A running cluster is read and written through the
project's own client, by queue and queue offset.

Needs the extra `spark`: pip install 'tandemq[spark]'. Source: docs/guides/pipeline.md.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandemq.spark.runtime.session import open_session
    from tandemq.spark.sources.cluster.source import RocketMQDataSource
    from tandemq.spark.sources.formats import register
    from tandemq.spark.sources.log.source import RocketMQLogDataSource

__all__ = ["RocketMQDataSource", "RocketMQLogDataSource", "open_session", "register"]
_MODULES = {
    "RocketMQDataSource": "sources.cluster.source",
    "RocketMQLogDataSource": "sources.log.source",
    "open_session": "runtime.session",
    "register": "sources.formats",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: importing PySpark takes a second."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
