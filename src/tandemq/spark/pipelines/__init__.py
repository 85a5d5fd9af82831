"""The declarative pipeline: bronze, silver and gold tables that `spark-pipelines run` brings up to date.

    rocketmq or rocketmq-log ─► bronze ─► silver ─► gold_minutes
    rocketmq-lag ──────────────────────────────────► gold_lag

`project/` holds what a project consists of; `write_project` fills in what differs from one to the next.
Source: docs/guides/pipeline.md, "Declarative pipeline".
"""
