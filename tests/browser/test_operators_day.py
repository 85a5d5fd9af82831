"""An operator's day: look at the cluster, lose a master, switch back, find a message, reset offsets, send dead letters
again, be refused a change of roles; an admin makes it. Each step is made with clicks and keys, and leaves a screenshot.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

import pytest
from playwright.sync_api import Page, expect

from tandemq.client.aio.admin import Admin
from tandemq.client.aio.loop_thread import LoopThread
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.errors import TandemError
from tandemq.groupdb.audit import entries
from tandemq.model.message import Message
from tandemq.run.children import ChildCluster
from tests.browser.served import ServedConsole, Visitor

NewVisitor = Callable[..., Visitor]
ORDERS = 24
PAUSE_S = 0.05
"""Between two payments; their consumer takes longer, so that it lags."""
SEEN_S = 20.0
"""How soon the page shows that a master has died; two seconds on an idle machine."""


def test_operators_day(cluster: ChildCluster, console: ServedConsole, new_visitor: NewVisitor) -> None:
    ada, otto = new_visitor(), new_visitor()
    with _payments(cluster.name_servers):
        _passes(cluster, console, ada, otto)
        _looks_at_a_chart(ada)


def _passes(cluster: ChildCluster, console: ServedConsole, ada: Visitor, otto: Visitor) -> None:
    _creates_topic_and_group(otto)
    _send_and_consume(cluster.name_servers)
    _looks_at_the_cluster(ada)
    _loses_a_master(cluster, ada)
    _switches_back(cluster, ada)
    _finds_a_message(otto)
    _resets_offsets(cluster.name_servers, otto)
    _sends_dead_letters_again(cluster.name_servers, otto)
    _is_refused_a_role(otto)
    _changes_a_role(cluster, ada)
    _reads_the_audit_log(ada, console)


@contextmanager
def _payments(name_servers: str) -> Iterator[None]:
    """Traffic of another topic, so that charts have lines."""
    ended = Event()

    def send() -> None:
        with BlockingProducer(name_servers, group="bank") as producer:
            while not ended.wait(PAUSE_S):
                with suppress(TandemError):  # while there is no master
                    producer.send(Message("Payments", b"{}"))

    def receive() -> None:
        with BlockingConsumer(name_servers, group="ledger", topics={"Payments": "*"}) as consumer:
            while not ended.wait(2 * PAUSE_S):
                with suppress(TandemError):
                    message = consumer.receive(timeout_s=0.5)
                    if message is not None:
                        message.ack()

    async def create() -> None:
        async with Admin(name_servers) as admin:
            await admin.create_topic("Payments", queues=2)

    loop = LoopThread()
    loop.call(create())
    loop.stop()
    threads = [Thread(target=send), Thread(target=receive)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _looks_at_a_chart(ada: Visitor) -> None:
    page = ada.page
    page.goto("/topics/Payments")
    chart = page.get_by_role("img", name="Messages per second")
    expect(chart).to_be_visible()
    expect(chart.locator("desc")).not_to_contain_text("sent: 0 – 0;")
    ada.picture("topic-charts")


def _go(page: Page, name: str) -> None:
    page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()


def _creates_topic_and_group(otto: Visitor) -> None:
    page = otto.log_in("otto")
    _go(page, "Topics")
    page.get_by_role("link", name="New topic").click()
    page.get_by_label("Topic", exact=True).fill("Orders")
    page.get_by_label("Queues per broker group").fill("2")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Orders")
    _go(page, "Consumers")
    page.get_by_label("Group", exact=True).fill("billing")
    page.get_by_label("Retries").fill("3")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("billing")


def _send_and_consume(name_servers: str) -> None:
    """Send orders; the group consumes all of them but the unpaid ones, which become dead letters."""
    with BlockingProducer(name_servers, group="shop") as producer:
        for number in range(ORDERS):
            body = json.dumps({"order": number, "paid": number % 8 != 7}).encode()
            producer.send(Message("Orders", body, keys=[f"order-{number}"], tags="paid", properties={"shop": "7"}))
    with BlockingConsumer(name_servers, group="billing", topics={"Orders": "*"}, max_reconsume_times=0) as consumer:
        for _ in range(ORDERS):
            message = consumer.receive(timeout_s=60)
            assert message is not None
            if json.loads(message.body)["paid"]:
                message.ack()
            else:
                message.retry()


def _looks_at_the_cluster(ada: Visitor) -> None:
    page = ada.log_in("ada")
    expect(page.get_by_role("status")).to_contain_text("2 groups, all in sync")
    expect(page.get_by_role("group", name="Master and replicas of broker-a")).to_be_visible()
    ada.picture("cluster")


def _loses_a_master(cluster: ChildCluster, ada: Visitor) -> None:
    """The page is not loaded again: the stream changes it."""
    page = ada.page
    master = cluster.master_of("broker-a")
    assert master is not None and master.broker_id == 0
    page.evaluate("window.isTheSamePage = true")
    master.kill()
    killed = time.monotonic()
    status = page.get_by_role("status")
    expect(status).to_contain_text("broker-a:", timeout=SEEN_S * 1000)
    expect(status).to_contain_text("broker 0 does not answer", timeout=SEEN_S * 1000)
    assert time.monotonic() - killed < SEEN_S + 1
    ada.picture("master-lost")
    expect(page.get_by_text("master · 1")).to_be_visible(timeout=60_000)
    failover = page.get_by_role("region", name="Last failover: broker-a")
    expect(failover).to_contain_text("broker 0: answered this console for the last time")
    expect(failover).to_contain_text("broker 1: accepts and delivers messages")
    master.start()
    cluster.wait_until(cluster.in_sync, 60)
    expect(status).to_contain_text("2 groups, all in sync", timeout=60_000)
    expect(failover).to_contain_text("broker 0: follows as a replica")
    assert page.evaluate("window.isTheSamePage"), "the page was loaded again"
    ada.picture("failover", is_whole=True)


def _switches_back(cluster: ChildCluster, ada: Visitor) -> None:
    page = ada.page
    page.get_by_role("link", name="broker-a", exact=True).click()
    page.get_by_role("link", name="Switch the master").click()
    page.get_by_label("New master").select_option("0")
    ada.picture("switch")
    page.get_by_label("To confirm, type broker-a").fill("broker-b")
    page.get_by_role("button", name="Switch").click()
    expect(page.get_by_role("alert")).to_contain_text("nothing was changed")
    page.go_back()
    page.get_by_label("New master").select_option("0")
    page.get_by_label("To confirm, type broker-a").fill("broker-a")
    page.get_by_role("button", name="Switch").click()
    expect(page.get_by_text("master · 0")).to_be_visible()
    expect(page.get_by_text("group.switch: done")).to_be_visible()
    ada.picture("broker-group")
    serving = cluster.master_of("broker-a")
    assert serving is not None and serving.broker_id == 0


def _finds_a_message(otto: Visitor) -> None:
    page = otto.page
    _go(page, "Messages")
    page.get_by_label("By", exact=True).select_option("key")
    page.get_by_label("Topic").fill("Orders")
    page.get_by_label("Key or id").fill("order-5")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("heading", name="1 messages")).to_be_visible()
    otto.picture("messages")
    page.get_by_role("link", name="Orders broker-").click()
    expect(page.locator("pre")).to_have_text('{\n  "order": 5,\n  "paid": true\n}')
    expect(page.get_by_role("listitem").filter(has_text="billing")).to_contain_text("consumed")
    expect(page.get_by_role("row", name="shop 7")).to_be_visible()
    otto.picture("message")
    page.get_by_role("button", name="Send again").click()
    expect(page.get_by_role("status")).to_contain_text("Sent again: broker-")


def _resets_offsets(name_servers: str, otto: Visitor) -> None:
    page = otto.page
    _go(page, "Consumers")
    page.get_by_role("link", name="billing", exact=True).click()
    page.get_by_role("link", name="Reset offsets").click()
    page.get_by_label("Topic").fill("Orders")
    page.get_by_label("To", exact=True).select_option("earliest")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text(f"{ORDERS} messages would be delivered again, 0 skipped.")).to_be_visible()
    otto.picture("reset-offsets")
    page.get_by_label("To confirm, type billing").fill("billing")
    page.get_by_role("button", name="Reset offsets").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("billing")
    with BlockingConsumer(name_servers, group="billing", topics={"Orders": "*"}) as consumer:
        bodies = []
        for _ in range(ORDERS + 1):  # with the copy that was sent
            message = consumer.receive(timeout_s=60)
            assert message is not None
            bodies.append(json.loads(message.body)["order"])
            message.ack()
    assert sorted(bodies) == sorted([*range(ORDERS), 5])


def _sends_dead_letters_again(name_servers: str, otto: Visitor) -> None:
    page = otto.page
    _go(page, "Consumers")
    page.get_by_role("link", name="billing", exact=True).click()
    page.get_by_role("link", name="Dead letters").click()
    boxes = page.get_by_role("checkbox")
    expect(boxes).to_have_count(ORDERS // 8)
    page.get_by_role("link", name=f"Choose all {ORDERS // 8}").click()
    for number in range(ORDERS // 8):
        expect(boxes.nth(number)).to_be_checked()
    boxes.nth(2).uncheck()
    otto.picture("dead-letters")
    page.get_by_role("button", name="Send the chosen ones again").click()
    expect(page.get_by_role("status")).to_contain_text("2 sent again, 0 failed")
    with BlockingConsumer(name_servers, group="billing", topics={"Orders": "*"}) as consumer:
        for _ in range(2):
            message = consumer.receive(timeout_s=60)
            assert message is not None
            assert not json.loads(message.body)["paid"]
            message.ack()
    _go(page, "Topics")
    page.get_by_role("link", name="Orders", exact=True).click()
    otto.picture("topic")


def _is_refused_a_role(otto: Visitor) -> None:
    page = otto.page
    _go(page, "Roles")
    page.get_by_role("link", name="broker-b", exact=True).click()
    expect(page.get_by_role("link", name="Change roles and permissions")).to_have_count(0)
    page.goto("/groups/broker-b/edit")
    expect(page.get_by_role("alert")).to_have_text("this needs the role admin")


def _changes_a_role(cluster: ChildCluster, ada: Visitor) -> None:
    """Two masters are refused beside their line; another weight is saved, and the publisher carries it."""
    page = ada.page
    _go(page, "Roles")
    page.get_by_role("link", name="broker-b", exact=True).click()
    page.get_by_role("link", name="Change roles and permissions").click()
    page.get_by_label("Role 2").select_option("master")
    page.get_by_role("button", name="Show the difference").click()
    expect(page.locator(".error, .notice.bad li").first).to_contain_text("master")
    ada.picture("roles-refused")
    page.get_by_label("Role 2").select_option("slave")
    page.get_by_label("Weight 2").fill("50")
    page.get_by_role("button", name="Show the difference").click()
    expect(page.locator("ins")).to_contain_text("weight 50")
    ada.picture("roles-difference")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("broker-b")
    _reload_until(page, "revision 2, applied")
    group = next(one for one in cluster.brokers if one.broker_name == "broker-b")
    assert [one["weight"] for one in group.failover_status()["members"]] == [100, 50]


def _reload_until(page: Page, text: str) -> None:
    deadline = time.monotonic() + 20
    while not page.get_by_text(text).count():
        assert time.monotonic() < deadline, f"the page does not show {text!r}"
        page.reload()


def _reads_the_audit_log(ada: Visitor, console: ServedConsole) -> None:
    page = ada.page
    _go(page, "Audit")
    ada.picture("audit")
    with console.audit() as connection:
        found = [(one.by.name, one.action, one.target) for one in reversed(entries(connection, count=100))]
    made = [(name, action) for name, action, _ in found if name in ("ada", "otto") and action != "user.login"]
    expected = [
        ("otto", "topic.create"),
        ("otto", "group.create"),
        ("ada", "group.switch"),
        ("otto", "message.resend"),
        ("otto", "offsets.reset"),
        ("otto", "dead_letters.resend"),
    ]
    assert made[: len(expected)] == expected
    assert made[len(expected) :] == [("ada", made[-1][1])], "only the change of roles follows"
    assert found[-1][2] == "broker-b"


pytestmark = pytest.mark.timeout(600)
