"""The trace of a message: what clients reported, shown without effect of its content."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tandemq.client.admin.traces import MessageTrace, TraceEvent, TraceStep
from tandemq.console.pages.messages import BAR_WIDTH, trace_bar
from tandemq.model.topic import TRACE_TOPIC, TopicConfig
from tests.spec import spec
from tests.unit.console.conftest import Browser
from tests.unit.console.fakes import FakeAdmin, stored

BrowserOf = Callable[[str], Browser]
ONE = "/messages/Orders/broker-a/0/0"


def step(event: TraceEvent, time_ms: int, **fields: Any) -> TraceStep:
    values = {"group": "shop", "client": "10.0.0.9", "outcome": "stored", "success": True, **fields}
    return TraceStep(event=event, time_ms=time_ms, **values)


@pytest.fixture
def cluster() -> FakeAdmin:
    steps = [
        step(TraceEvent.SENT, 1_000, cost_ms=4, broker="10.0.0.1:10911"),
        step(TraceEvent.DELIVERED, 1_100, group="billing", outcome="no end is known", success=None, retry_times=2),
        step(TraceEvent.DELIVERED, 1_200, group="billing", outcome="not consumed: FAILED", success=False, cost_ms=800),
    ]
    traces = [MessageTrace(message_id="UK0", topic="Orders", steps=steps)]
    found = FakeAdmin(messages=[stored("Orders", 0)], traces=traces)
    found.configs[TRACE_TOPIC] = {"broker-a": TopicConfig(TRACE_TOPIC, 1, 1)}
    return found


@spec("C08")
def test_message_leads_to_its_trace_with_every_step(browser_of: BrowserOf) -> None:
    browser = browser_of("viewer")
    assert f'href="{ONE}/trace"' in browser.get(ONE).text
    page = browser.get(f"{ONE}/trace").text
    rows = [re.sub(r"<[^>]+>", " ", row) for row in re.findall(r"<tr>.*?</tr>", page)[1:]]
    assert [("sent" in row, "delivered" in row) for row in rows] == [(True, False), (False, True), (False, True)]
    assert "10.0.0.1:10911" in rows[0] and "4 ms" in rows[0]
    assert "no end is known (delivery 3)" in rows[1] and "ms" not in rows[1]
    assert "not consumed: FAILED" in rows[2] and "800 ms" in rows[2]


@spec("C08")
def test_page_says_why_there_is_no_trace(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    browser = browser_of("viewer")
    cluster.traces = []
    assert "No client has reported anything" in browser.get(f"{ONE}/trace").text
    del cluster.configs[TRACE_TOPIC]
    page = browser.get(f"{ONE}/trace")
    assert page.status_code == 200 and "traceTopicEnable=true" in page.text
    assert browser.get("/messages/Orders/broker-a/0/99/trace").status_code == 404


@spec("C08")
def test_page_says_what_is_missing_from_a_trace(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    cluster.traces.append(MessageTrace(message_id="other", steps=[]))
    cluster.unreadable = 3
    page = browser_of("viewer").get(f"{ONE}/trace").text
    assert "There may be more" in page and "3 reports could not be read" in page


def test_content_of_reports_has_no_effect(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    evil = "<script>alert(1)</script>\"'{{7*7}}"
    steps = [step(TraceEvent.SENT, 1, group=evil, client=evil, broker=evil, outcome=evil)]
    cluster.traces = [MessageTrace(message_id="UK0", steps=steps)]
    page = browser_of("viewer").get(f"{ONE}/trace").text
    assert "<script>alert" not in page and "{{7*7}}" in page and page.count("&lt;script&gt;alert") == 4


def test_message_without_unique_key_is_traced_by_its_place(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    cluster.messages = [stored("Orders", 0, properties={})]
    browser_of("viewer").get(f"{ONE}/trace")
    assert ("message_traces", cluster.messages[0].offset_message_id) in cluster.calls


def test_bars_lie_within_their_width() -> None:
    for times in ((0, 0), (0, 1 << 40), (5, 5, 6), (0, 10, 1_000)):
        trace = MessageTrace(message_id="x", steps=[step(TraceEvent.SENT, ms, cost_ms=ms) for ms in times])
        for one in trace.steps:
            (found,) = re.findall(r'x="([\d.]+)" y="1" width="([\d.]+)"', trace_bar(trace, one))
            left, width = map(float, found)
            assert left >= 0 and width >= 2 and left + width <= BAR_WIDTH + 0.2
