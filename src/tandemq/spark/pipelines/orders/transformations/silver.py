"""Silver: valid messages of each topic, each once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()

SENT_AGAIN_WITHIN = "7 days"
"""For how long silver recognizes a message that is sent again."""
UNIQUE_KEY = r"regexp_extract(properties, '(?:^|\\x02)UNIQ_KEY\\x01([^\\x02]*)', 1)"
POSITION = "concat_ws('/', brokerName, queueId, queueOffset, epoch)"


def valid(topic: str, fields: str) -> DataFrame:
    """Return the valid messages of a topic, each once; the watermark is on the time of arrival, so that none is late.

    Flows read tables of the pipeline by SQL: there `withWatermark` finds no table.
    """
    events = spark.sql(
        f"""
        SELECT CASE WHEN {UNIQUE_KEY} = '' THEN {POSITION} ELSE {UNIQUE_KEY} END AS messageId,
            from_json(CAST(body AS STRING), '{fields}') AS event, arrivedAt
        FROM STREAM bronze WATERMARK arrivedAt DELAY OF INTERVAL {SENT_AGAIN_WITHIN}
        WHERE topic = '{topic}' AND verdict IS NULL
        """  # noqa: S608  # constants of this file
    )
    return (
        events.dropDuplicatesWithinWatermark(["messageId"])
        .selectExpr("messageId", "event.*")
        .where("order IS NOT NULL AND at IS NOT NULL AND cents > 0")
    )


@dp.table(format="parquet", comment="Valid orders, each once")
def silver_orders() -> DataFrame:
    """Orders."""
    return valid("Orders", "order string, customer string, cents bigint, at timestamp")


@dp.table(format="parquet", comment="Valid payments, each once")
def silver_payments() -> DataFrame:
    """Payments."""
    return valid("Payments", "payment string, order string, cents bigint, at timestamp")
