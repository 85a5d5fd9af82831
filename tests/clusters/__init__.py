"""Tests on a real Spark cluster, `make spark-cluster`."""
