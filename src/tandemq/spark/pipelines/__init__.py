"""Declarative pipeline: bronze, silver and gold tables, updated by `spark-pipelines run`.

    rocketmq or rocketmq-log ─► bronze ─► silver ─► gold_minutes
    rocketmq-lag ──────────────────────────────────► gold_lag

`project/` is the template of a project; `write_project` copies it and writes the configuration.
Source: docs/guides/pipeline.md, "Declarative pipeline".
"""
