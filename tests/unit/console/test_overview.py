"""The first page and its stream: one poller for all viewers."""

import asyncio
from collections.abc import Callable
from typing import cast

import anyio
import pytest

from tandemq.client.aio.admin import Admin
from tandemq.console.cluster import watch
from tandemq.console.cluster.watch import FIGURES_EVERY, ClusterWatch
from tandemq.console.pages.overview import event
from tandemq.console.services import STREAMS_PER_USER, Console
from tandemq.errors import NotConnected
from tandemq.model.codes import RequestCode
from tests.unit.console.conftest import Browser
from tests.unit.console.fakes import MASTER, FakeAdmin, failover


def test_first_page_says_whether_all_is_well(browser_of: Callable[[str], Browser], cluster: FakeAdmin) -> None:
    page = browser_of("viewer").get("/").text
    assert "1 group, all in sync" in page
    assert "512 B · 1.5 s" in page
    assert "in 12.5/s" in page


def test_page_names_what_is_wrong(browser_of: Callable[[str], Browser], cluster: FakeAdmin) -> None:
    cluster.answers[MASTER] = NotConnected("refused")
    page = browser_of("viewer").get("/").text
    assert "broker-a: no active master; broker 0 does not answer, since " in page


def test_tick_asks_each_broker_once_whatever_the_number_of_viewers(cluster: FakeAdmin) -> None:
    async def run() -> None:
        poller = ClusterWatch(cast(Admin, cluster))
        await poller.view()
        cluster.calls.clear()
        for _ in range(FIGURES_EVERY):
            await asyncio.gather(*(poller._polled() for _ in range(50)))
        assert len(cluster.calls) == 2 * FIGURES_EVERY
        assert [code for code, _ in cluster.calls].count(RequestCode.GET_BROKER_RUNTIME_INFO) == 2

    asyncio.run(run())


def test_viewers_get_each_picture_and_the_poller_ends_with_the_last_one(
    cluster: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        watch_ = ClusterWatch(cast(Admin, cluster))
        viewers = watch_.follow(), watch_.follow()
        await asyncio.gather(*map(anext, viewers))
        cluster.answers = {address: failover(n, master=1, epoch=4) for n, address in enumerate(cluster.answers)}
        for _ in range(3):
            following = [asyncio.ensure_future(anext(viewer)) for viewer in viewers]
            await anyio.wait_all_tasks_blocked()
            view = await watch_._polled()
            assert [await picture for picture in following] == [view, view]
            assert view.groups[0].epoch == 4
        assert watch_.viewers == 2
        for viewer in viewers:
            await viewer.aclose()
        assert watch_.viewers == 0
        await watch_.close()

    monkeypatch.setattr(watch, "TICK_S", 3_600)  # the test polls
    asyncio.run(run())


def test_user_has_a_limited_number_of_streams(console: Console) -> None:
    async def run() -> None:
        async with anyio.create_task_group():
            opened = [console.stream("ada") for _ in range(STREAMS_PER_USER)]
            assert all([await one.__aenter__() for one in opened])
            async with console.stream("ada") as is_open:
                assert not is_open
            async with console.stream("bob") as is_open:
                assert is_open
            for one in opened:
                await one.__aexit__(None, None, None)
        assert console.streams == {}

    asyncio.run(run())


def test_event_keeps_lines_apart() -> None:
    assert event("<p>\na</p>") == "data: <p>\ndata: a</p>\n\n"
    assert event("", name="over") == "event: over\ndata: \n\n"
