"""Silver: sound messages, each once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()

UNIQUE_KEY = r"regexp_extract(properties, '(?:^|\\x02)UNIQ_KEY\\x01([^\\x02]*)', 1)"
REAL_TOPIC = r"regexp_extract(properties, '(?:^|\\x02)REAL_TOPIC\\x01([^\\x02]*)', 1)"
PLACE = "concat_ws('/', brokerName, queueId, queueOffset, epoch)"


@dp.table(format="parquet", comment="Sound messages; none twice by its place, nor by its unique key")
def silver() -> DataFrame:
    """Leaves out what has a verdict, what came from the same place before, and what a producer sent again.

    A record has its unique key wherever it is read again, so that the key tells both; what has none is told by its
    place. Redeliveries have the key of the first delivery: how often a message was delivered in vain tells them apart,
    and of delayed messages, which all wait in one topic, the topic they wait for.

    A key is kept for `spark.tandemq.copiesWithin` after its record arrived: by then copies must have come. No message
    is ever late, because time is that of arrival and not of the broker that stored it.
    """
    within = spark.conf.get("spark.tandemq.copiesWithin", "7 days")
    sound = spark.sql(
        f"""
        SELECT * EXCEPT (verdict),
            CASE WHEN {UNIQUE_KEY} = '' THEN {PLACE} ELSE {UNIQUE_KEY} END AS uniqueKey,
            CASE WHEN topic = 'SCHEDULE_TOPIC_XXXX' THEN {REAL_TOPIC} ELSE topic END AS realTopic,
            date_trunc('MINUTE', storeTimestamp) AS minute,
            unix_millis(storeTimestamp) - unix_millis(bornTimestamp) AS latencyMs
        FROM STREAM bronze WATERMARK arrivedAt DELAY OF INTERVAL {within}
        WHERE verdict IS NULL
        """  # noqa: S608  # the user's own setting
    )
    return sound.dropDuplicatesWithinWatermark(["topic", "realTopic", "uniqueKey", "reconsumeTimes"])
