"""Declarative pipeline: bronze, silver and gold tables, updated by `spark-pipelines run`.

    rocketmq or rocketmq-log ─► bronze ─► silver ─► gold_minutes
    rocketmq-lag ──────────────────────────────────► gold_lag

`project/` is the template of a project; `write_project` copies it and writes the configuration. `orders/` is an example
of more: joins, late data, timers and upserts, also without a declarative pipeline.
Source: docs/guides/pipeline.md, "Declarative pipeline"; docs/guides/pipeline-project.md.
"""
