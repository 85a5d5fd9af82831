"""Spark's data sources: rows from a cluster, rows from commit log files."""
