"""A driver with Iceberg's own library for Spark: runs the statements that it reads, one a line.

    python -m tests.spark.on_iceberg JARS URL

The catalogue `lake` is the REST catalogue at URL. Each line of output has the rows of a statement, as JSON.
"""

import json
import sys

from pyspark.sql import SparkSession

from tests.spark.short import SHORT

SETTINGS = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "rest",
    "spark.sql.catalog.lake.cache-enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "768m",
}


def main(jars: str, url: str) -> None:
    """Run statements to the end of the input."""
    builder = SparkSession.builder.master("local[2]")
    for name, value in (SHORT | SETTINGS | {"spark.jars": jars, "spark.sql.catalog.lake.uri": url}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    for line in sys.stdin:
        rows = session.sql(line.rstrip(";\n ")).collect()
        print(json.dumps([list(row) for row in rows]), flush=True)
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
