"""The last change of a master, from what brokers and the console have recorded."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from tandemq.client.aio.admin import Admin
from tandemq.console.cluster.failovers import Failover, last_failover, words_of
from tandemq.console.cluster.watch import ClusterWatch
from tandemq.console.web.translation import say
from tandemq.errors import NotConnected
from tests.unit.console.conftest import Browser
from tests.unit.console.fakes import MASTER, SLAVE, FakeAdmin, failover

START_MS = 1_700_000_000_000
REASON = "broker 1 follows 0, missing in 2 checks"


def entry(after_ms: int, epoch: int, text: str, broker: int) -> dict[str, Any]:
    return {"ms": START_MS + after_ms, "epoch": epoch, "text": text, "brokers": [broker]}


FOUNDING = [
    entry(-90_000, 1, "claiming: the group begins", 0),
    entry(-89_990, 1, "serving: the group begins", 0),
    entry(-89_980, 1, "may be read and written: the group begins", 0),
]
TAKEOVER = [
    entry(0, 2, f"claiming: {REASON}", 1),
    entry(14, 2, "preparing: the record is claimed", 1),
    entry(20, 2, f"serving: {REASON}", 1),
    entry(21, 2, f"may be read and written: {REASON}", 1),
]
RETURN = [entry(22_000, 2, f"slave: {REASON}", 0), entry(22_100, 2, "in sync: 0, 1", 1)]


def steps(found: Failover | None) -> list[tuple[int, str]]:
    assert found is not None
    return [(step.after_ms, say("en", step.what)) for step in found.steps]


def test_founding_of_a_group_is_no_failover() -> None:
    assert last_failover("broker-a", FOUNDING, {}, 2_000) is None
    assert last_failover("broker-a", [], {}, None) is None


def test_takeover_has_the_steps_of_the_new_master_and_of_the_others() -> None:
    restarted = entry(7_200_000, 2, f"slave: {REASON}", 0)
    found = last_failover("broker-a", [restarted, *RETURN, *TAKEOVER, *FOUNDING], {}, 2_000)
    assert steps(found) == [
        (0, "claims the group's record"),
        (14, "prepares its log"),
        (20, "serves as the master"),
        (21, "accepts and delivers messages"),
        (22_000, "follows as a replica"),
        (22_100, "in sync: brokers 0, 1"),
    ]
    assert found is not None
    assert (found.master, found.epoch, found.reason, found.is_planned) == (1, 2, REASON, False)
    assert found.outage_ms is None, "nothing says when the old master failed"


def test_last_answer_of_the_old_master_says_how_long_there_was_none() -> None:
    found = last_failover("broker-a", [*FOUNDING, *TAKEOVER], {0: START_MS - 2_300}, 2_000)
    assert steps(found)[0] == (-2_300, "answered this console for the last time")
    assert found is not None and found.outage_ms == 2_321 and found.at_ms == START_MS
    for unrelated in ({0: START_MS - 60_000}, {1: START_MS - 1_000}, {0: START_MS + 5_000}):
        found = last_failover("broker-a", [*FOUNDING, *TAKEOVER], unrelated, 2_000)
        assert found is not None and found.outage_ms is None, unrelated


def test_planned_switch_begins_with_the_order() -> None:
    order = entry(-40, 1, "handing over: handing over to broker 1", 0)
    earlier = entry(7, 2, "slave: switch", 0)
    found = last_failover("broker-a", [*FOUNDING, order, *TAKEOVER, earlier], {0: START_MS - 2_300}, 2_000)
    assert found is not None and found.is_planned
    assert steps(found)[0] == (0, "hands over") and found.outage_ms == 61
    assert [after_ms for after_ms, _ in steps(found)] == [0, 40, 47, 54, 60, 61], "in the order of time"


def test_only_the_newest_epoch_counts() -> None:
    again = [entry(90_000, 3, "claiming: ordered", 0), entry(90_002, 3, "may be read and written: ordered", 0)]
    found = last_failover("broker-a", [*FOUNDING, *TAKEOVER, *RETURN, *again], {}, None)
    assert found is not None and (found.epoch, found.master) == (3, 0)
    assert steps(found) == [(0, "claims the group's record"), (2, "accepts and delivers messages")]


def test_entries_are_said_in_words() -> None:
    assert say("en", words_of(f"slave: {REASON}")) == f"follows as a replica: {REASON}"
    assert say("en", words_of("may neither be read nor written: why")) == "neither accepts nor delivers messages: why"
    assert say("zh", words_of("in sync: 0, 1")) == "同步\uff1aBroker 0, 1"
    assert say("en", words_of("a new text")) == "a new text"


def test_watch_remembers_the_last_answer_before_an_outage(cluster: FakeAdmin) -> None:
    async def run() -> None:
        watch = ClusterWatch(cast(Admin, cluster))
        await watch.view()
        answered_ms = watch._brokers[MASTER].seen_ms
        cluster.answers[MASTER] = NotConnected("refused")
        await watch.fresh()
        await watch.fresh()
        assert watch._lost_ms == {("broker-a", 0): answered_ms}
        claimed = [{**one, "ms": one["ms"] - START_MS + answered_ms + 1_800} for one in TAKEOVER]
        cluster.answers[SLAVE] = failover(1, master=1, epoch=2, timeline=claimed, sessionMs=2_000)
        await watch.fresh()  # of figures
        found = (await watch.fresh()).failover
        assert found is not None and found.outage_ms == 1_821 and found.session_ms == 2_000

    asyncio.run(run())


def test_first_page_and_page_of_the_group_show_the_steps(
    browser_of: Callable[[str], Browser], cluster: FakeAdmin
) -> None:
    cluster.answers[SLAVE] = failover(1, master=1, epoch=2, timeline=TAKEOVER, sessionMs=2_000)
    late = entry(7_200_000, 2, f"slave: {REASON}", 0)
    cluster.answers[MASTER] = failover(0, master=1, epoch=2, timeline=[*FOUNDING, late])
    browser = browser_of("viewer")
    for path in ("/", "/groups/broker-a"):
        page = browser.get(path).text
        assert "Last failover: broker-a" in page and "broker 1 became the master, epoch 2" in page, path
        assert "+21 ms" in page and "+2 h</span>" in page, path
        assert "Its session at the registry lasts 2.0 s" in page, path


def test_trouble_that_a_broker_reports_is_shown(browser_of: Callable[[str], Browser], cluster: FakeAdmin) -> None:
    cluster.answers[MASTER] = failover(0, trouble="the registry is {gone}")
    assert "the registry is {gone}" in browser_of("viewer").get("/").text
