"""Spark data sources: messages of a running cluster, and of commit log files."""
