"""Figures of the data pipeline on Spark, beside Spark's own readers and writers, `cmp`, and Kafka."""
