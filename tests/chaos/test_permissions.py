"""Spans of permissions from the logs of brokers, and their overlaps."""

import logging

import pytest

from chaos.permissions import Span, overlaps, spans_of
from tandemq.coordination.registry.records import Mode
from tandemq.run.local import LocalCluster

NOW = 100_000
BOTH, READ, NOTHING = "be read and written", "be read", "neither be read nor written"


def line(at: int, may: str) -> str:
    """Return a line as a broker logs it."""
    return f"2026-01-02 03:04:05,678 WARNING failover: epoch=3 mono_ms={at} may {may}: because"


FIRST = [line(1_000, BOTH), "2026-01-02 03:04:05,678 INFO something else", line(5_000, NOTHING)]


def found(second: list[str], deaths: dict[str, list[int]] | None = None) -> list[str]:
    """Return the overlaps with a broker that could be read and written from 1 s to 5 s."""
    return overlaps({"a-0": FIRST, "a-1": second}, {"a-0": [], "a-1": [], **(deaths or {})}, NOW)


def test_consecutive_spans_pass() -> None:
    assert found([line(5_000, BOTH)]) == []
    assert found([line(500, BOTH), line(1_000, NOTHING), line(5_000, READ)]) == []


def test_overlap_of_a_millisecond_is_found_for_each_permission() -> None:
    assert found([line(4_999, BOTH)]) == [
        "I6: a-0 and a-1 could be read at once for 1 ms from mono_ms=4999 on",
        "I6: a-0 and a-1 could be written at once for 1 ms from mono_ms=4999 on",
    ]
    assert found([line(500, READ), line(2_000, NOTHING)]) == [
        "I6: a-1 and a-0 could be read at once for 1000 ms from mono_ms=1000 on"
    ]


def test_killed_broker_has_its_permissions_until_it_is_dead() -> None:
    second = [line(500, BOTH), line(7_000, BOTH)]
    assert found(second, {"a-1": [1_000]}) == []
    assert len(found(second, {"a-1": [1_001]})) == 2


def test_permission_that_was_not_lost_lasts_until_now_or_the_last_death() -> None:
    assert spans_of("a", [line(5, READ)], "read", [], 9) == [Span("a", 5, 9)]
    assert spans_of("a", [line(5, READ)], "read", [2, 7], 9) == [Span("a", 5, 7)]
    assert spans_of("a", [line(5, READ)], "written", [], 9) == []


def test_permission_after_a_death_is_a_span_of_its_own() -> None:
    lines = [line(5, BOTH), line(20, BOTH), line(30, READ), line(40, NOTHING), line(50, NOTHING)]
    assert spans_of("a", lines, "read", [10], 99) == [Span("a", 5, 10), Span("a", 20, 40)]
    assert spans_of("a", lines, "written", [10], 99) == [Span("a", 5, 10), Span("a", 20, 30)]


def test_brokers_log_the_lines_parsed_here(tmp_path: object, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING),
        LocalCluster(str(tmp_path), groups=1, slaves=1, mode=Mode.ELECT.value) as cluster,
    ):
        cluster.master()
    spans = spans_of("a", caplog.messages, "written", [], 1 << 60)
    assert len(spans) == 1
    assert 0 < spans[0].start < spans[0].end
