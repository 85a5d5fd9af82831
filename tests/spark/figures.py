"""Statistics for pages: two topics, one with markup in its name, a group, an equal and a diverging replica."""

from datetime import UTC, datetime

from tandemq.spark.jobs.audit import AuditResult
from tandemq.spark.jobs.stats import LogStatistics

MADE = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


def figures(minutes: int = 3) -> LogStatistics:
    rows = [
        {
            "minute": 60_000 * (28_000_000 + at),
            "topic": topic,
            "messages": 10 + at,
            "bytes": 1000 * at,
            "retried": 0,
            "p50_ms": 1.0,
            "p90_ms": 2.0,
            "p99_ms": 3.5,
        }
        for at in range(minutes)
        for topic in ("Orders", "<b>&Co")
    ]
    topics = [
        {
            "topic": topic,
            "messages": 33,
            "bytes": 3000,
            "retried": 0,
            "queues": 4,
            "first": 0,
            "last": 0,
            "p50_ms": 1.0,
            "p90_ms": 2.0,
            "p99_ms": 3.5,
        }
        for topic in ("Orders", "<b>&Co")
    ]
    groups = [
        {"group": "billing", "topic": "Orders", "committed": 3, "end": 33, "lag": 30, "retries": 1, "dead": 2},
    ]
    return LogStatistics(rows, topics, groups)


def replicas() -> list[AuditResult]:
    bad = AuditResult("a", "slave-2", 0, 500, 600, 500)
    bad.counts["corrupt"] = 1
    bad.differences = [{"kind": "corrupt", "commitLogOffset": 1234, "topic": "Orders", "queueId": 1, "queueOffset": 7}]
    return [AuditResult("a", "slave-1", 0, 600, 600, 600), bad]
