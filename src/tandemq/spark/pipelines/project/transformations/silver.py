"""Silver: sound messages, each once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()

UNIQUE_KEY = r"regexp_extract(properties, '(?:^|\\x02)UNIQ_KEY\\x01([^\\x02]*)', 1)"
POSITION = ["topic", "brokerName", "queueId", "queueOffset", "epoch"]


@dp.table(format="parquet", comment="Sound messages; none twice by its place, nor by its unique key")
def silver() -> DataFrame:
    """Leaves out what has a verdict, what came from the same place before, and what a producer sent again.

    Copies are known for as long as the state is kept: keys and places of all messages.
    """
    sound = spark.readStream.table("bronze").where("verdict IS NULL")
    place = "concat_ws('/', brokerName, queueId, queueOffset, epoch)"
    keyed = sound.selectExpr(
        "* except (verdict)",
        f"CASE WHEN {UNIQUE_KEY} = '' THEN {place} ELSE {UNIQUE_KEY} END AS uniqueKey",
        "date_trunc('MINUTE', storeTimestamp) AS minute",
        "unix_millis(storeTimestamp) - unix_millis(bornTimestamp) AS latencyMs",
    )
    return keyed.dropDuplicates([*POSITION]).dropDuplicates(["topic", "uniqueKey"])
