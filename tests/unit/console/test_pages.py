"""Pages of topics, consumer groups, dead letters, broker groups, audit and users."""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from tandemq.client.admin.groups import ConsumeProgress, ResetTarget
from tandemq.client.aio.admin import Admin
from tandemq.console.cluster import topics_and_groups
from tandemq.console.cluster.messages import RESENT_FROM
from tandemq.console.operations import consumers
from tandemq.console.pages.broker_groups import read_form
from tandemq.console.services import Console, wall_ms
from tandemq.console.web.forms import Fields
from tandemq.coordination.registry.records import GroupConfig, GroupMember, Mode, Role
from tandemq.errors import RemoteError
from tandemq.groupdb.audit import Actor, AuditEntry
from tandemq.groupdb.database import GroupDatabase
from tandemq.model.message import MessageQueue
from tandemq.model.topic import TopicConfig
from tests.unit.console.conftest import PASSWORD, Browser
from tests.unit.console.fakes import CLUSTER, MASTER, FakeAdmin, FakeProducer, stored

BrowserOf = Callable[[str], Browser]
Audit = Callable[[], list[AuditEntry]]
QUEUE = MessageQueue("Orders", "broker-a", 0)
EVIL = "<script>alert(1)</script>"
CONFIG = GroupConfig(Mode.ELECT, (GroupMember(0, Role.MASTER), GroupMember(1, Role.SLAVE)))


@pytest.fixture
def cluster() -> FakeAdmin:
    return FakeAdmin(
        messages=[stored("Orders", n) for n in range(5)] + [dead(n) for n in range(3)],
        groups_progress={"billing": {QUEUE: ConsumeProgress(5, 2, 1_700_000_000_001)}, "idle": {}},
        configs={
            "Orders": {"broker-a": TopicConfig("Orders", 1, 1)},
            "%DLQ%billing": {"broker-a": TopicConfig("%DLQ%billing", 1, 1)},
        },
    )


def dead(offset: int) -> Any:
    properties = {"UNIQ_KEY": f"D{offset}", "RETRY_TOPIC": "Orders", "RECONSUME_TIME": "16", "x": "y"}
    return stored("%DLQ%billing", offset, properties=properties, reconsume_times=16)


# Topics.


def test_topics_of_users_come_first_and_others_are_behind_a_switch(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    """The broker's own topics are known by the names of brokers and clusters."""
    cluster.configs |= {"broker-a": {"broker-a": TopicConfig("broker-a")}}
    cluster.configs |= {f"T{n:04}": {"broker-a": TopicConfig(f"T{n:04}")} for n in range(1_000)}
    browser = browser_of("viewer")
    page = browser.get("/topics").text
    assert "1 to 100 of 1001" in page and page.count("<tr>") == 101 and "%DLQ%" not in page
    assert "2 topics for retries, dead letters and the system are not shown." in page
    assert "1001 to 1001 of 1001" in browser.get("/topics?at=1000").text
    assert "1 to 1 of 1" in browser.get("/topics?q=t0042").text
    everything = browser.get("/topics?all=1&at=950").text
    assert everything.index("T0999") < everything.index("%DLQ%billing") < everything.index(">broker-a</a>")
    assert "%2525" not in everything and "/topics/%25DLQ%25billing" in everything
    assert "all=1&amp;at=850" in everything, "the other parts show all too"
    assert [call for call in cluster.calls if call[0] == "topic_configs"] == [("topic_configs",)], "fetched once"


def test_topic_is_created_changed_and_deleted(browser_of: BrowserOf, cluster: FakeAdmin, audit: Audit) -> None:
    browser = browser_of("operator")
    assert browser.post("/topics", {"topic": "New", "queues": "4", "perm": "6"}).headers["location"] == "/topics/New"
    assert browser.post("/topics/New", {"queues": "8", "perm": "4"}).status_code == 303
    assert "messages are lost" in browser.get("/topics/Orders/delete").text
    assert browser.post("/topics/New/delete", {"confirm": "new"}).status_code == 400
    assert "New" in cluster.configs
    assert browser.post("/topics/New/delete", {"confirm": "New"}).status_code == 303
    assert [(one.action, one.outcome) for one in audit()] == [
        ("topic.create", "done"),
        ("topic.change", "done"),
        ("topic.delete", "done"),
    ]


def test_wrong_topics_are_refused_beside_the_form(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    browser = browser_of("operator")
    for values, why in (
        ({"topic": EVIL}, "illegal characters"),
        ({"topic": "Orders"}, "exists already"),
        ({"topic": "A", "queues": "0"}, "queues: 0 is not between"),
        ({"topic": "A", "perm": "7"}, "choose one of the permissions"),
    ):
        response = browser.post("/topics", {"queues": "1", "perm": "6", **values})
        assert response.status_code == 400 and why in response.text and EVIL not in response.text
    assert not [call for call in cluster.calls if call[0] == "create_topic"]
    assert browser.post("/topics/Nothing", {"queues": "1"}).status_code == 404


def test_topic_shows_queues_groups_and_newest_messages(browser_of: BrowserOf) -> None:
    page = browser_of("viewer").get("/topics/Orders").text
    assert "broker-a/0" in page and re.search(r">billing</a></th><td class=\"number\">3</td>", page)
    assert page.index("broker-a/0@4") < page.index("broker-a/0@0"), "newest first"
    assert browser_of("viewer").get("/topics/Nothing").status_code == 404


def test_test_message_is_sent(browser_of: BrowserOf, producer: FakeProducer, audit: Audit) -> None:
    browser = browser_of("operator")
    form = {"body": "hello\n", "tag": "paid", "keys": "a b", "properties": "x=y\n\n", "delay": "0"}
    assert browser.post("/topics/Orders/send", form).headers["location"] == "/messages/Orders/broker-a/0/77"
    (sent,) = producer.sent
    assert (sent.body, sent.tags, tuple(sent.keys), sent.properties) == (b"hello\n", "paid", ("a", "b"), {"x": "y"})
    assert audit()[0].action == "message.send"
    for wrong in ({"properties": "x"}, {"tag": "a|b"}, {"properties": "KEYS=z"}, {"delay": "99"}):
        assert browser.post("/topics/Orders/send", wrong).status_code == 400


def test_tail_shows_newest_messages_with_a_tag(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    cluster.messages = [stored("Orders", 0, EVIL.encode()), stored("Orders", 1, b"other", properties={"TAGS": "x"})]
    page = browser_of("viewer").get("/topics/Orders/tail?tag=paid").text
    assert "&lt;script&gt;" in page and EVIL not in page and "other" not in page


# Consumer groups.


def test_groups_are_listed_by_lag_with_one_request(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    cluster.groups_progress |= {f"g{n:04}": {QUEUE: ConsumeProgress(5, 5, 1)} for n in range(2_000)}
    browser = browser_of("viewer")
    page = browser.get("/consumers").text
    assert page.index("billing") < page.index("g0000")
    assert "1 to 100 of 2002" in page
    browser.get("/consumers?at=100&q=g1")
    assert [call for call in cluster.calls if call[0] == "all_progress"] == [("all_progress",)]


def test_list_of_groups_has_dead_letters_and_retries(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    """Only groups on the page that have such a topic are asked for, at once, and not again within seconds."""
    browser = browser_of("viewer")
    for _ in range(2):
        page = browser.get("/consumers").text
        assert '<a href="/consumers/billing/dead">3</a></td><td class="number">16</td>' in page
    assert [call for call in cluster.calls if call[0] == "message_counts"] == [("message_counts", "%DLQ%billing")]
    assert "Dead letters (3)" in browser.get("/consumers/billing").text
    assert "Dead letters (0)" in browser.get("/consumers/idle").text


def test_list_is_shown_at_once_while_the_next_one_is_fetched(
    cluster: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(topics_and_groups, "time", SimpleNamespace(monotonic=lambda: clock[0], time_ns=lambda: 0))

    async def lists() -> list[tuple[str, ...]]:
        shown, tables = [], topics_and_groups.ClusterTables(cast(Admin, cluster))
        for wait_s, name in ((0, "a"), (4, "b"), (0, "c"), (20, "d")):
            clock[0] += wait_s
            cluster.groups_progress = {name: {}}
            shown.append(tuple(row.name for row in await tables.groups()))
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
        await tables.close()
        return shown

    # The second is 4 s old and shown, while "b" is fetched; the last one would be 20 s old.
    assert anyio.run(lists) == [("a",), ("a",), ("b",), ("d",)]


def test_group_shows_queues_and_chart(browser_of: BrowserOf, console: Console) -> None:
    browser = browser_of("viewer")
    assert "Not known yet" in browser.get("/consumers/billing").text
    for minute in range(3):
        progress = {"billing": {QUEUE: ConsumeProgress(60 * minute + 5, 30 * minute + 2, 1)}}
        console.tables.history.record(1_700_000_000_000 + 60_000 * minute, progress, {})
    page = browser.get("/consumers/billing").text
    assert page.count('<svg class="chart" role="img"') == 2 and "No client is online." in page
    assert "sent to its topics: 1 – 1; consumed: 0.5 – 0.5" in page, "described without the picture"
    assert '<th scope="row">2023-11-14 22:15:20.000 UTC</th><td class="number">1.0</td>' in page, "and as a table"
    assert "delivered again up to 16 times" in page
    assert "<polyline" in browser.get("/consumers").text
    assert "has committed no offset" in browser.get("/consumers/idle").text
    assert browser.get("/consumers/nothing").status_code == 404


def test_page_of_a_group_asks_for_that_group_only(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    """The progress of thousands of groups takes a second."""

    def asked() -> list[tuple[Any, ...]]:
        found = [call for call in cluster.calls if call[0] in ("all_progress", "group_progress")]
        cluster.calls.clear()
        return found

    browser = browser_of("viewer")
    for _ in range(2):
        assert "Orders" in browser.get("/consumers/billing").text
    assert asked() == [("group_progress", "billing")]
    browser.get("/topics/Orders")
    assert asked() == []
    browser.get("/consumers")
    browser.get("/consumers/idle")
    assert asked() == [("all_progress",)], "a new table has it"


def test_topic_with_many_groups_asks_for_all_at_once(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    groups = {f"g{n}": {QUEUE: ConsumeProgress(5, 5, 1)} for n in range(topics_and_groups.SINGLE_MAX)}
    cluster.groups_progress |= groups
    assert "g7" in browser_of("viewer").get("/topics/Orders").text
    assert [call for call in cluster.calls if "progress" in str(call[0])] == [("all_progress",)]


def test_group_that_was_deleted_elsewhere_is_not_found(
    browser_of: BrowserOf, cluster: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    fake = SimpleNamespace(monotonic=lambda: clock[0], time_ns=lambda: 0)
    monkeypatch.setattr(topics_and_groups, "time", fake)
    browser = browser_of("viewer")
    assert browser.get("/consumers/billing").status_code == 200
    del cluster.groups_progress["billing"]
    clock[0] += topics_and_groups.FRESH_S + 1
    assert browser.get("/consumers/billing").status_code == 404


def test_reset_is_previewed_and_needs_the_name(browser_of: BrowserOf, cluster: FakeAdmin, audit: Audit) -> None:
    browser = browser_of("operator")
    page = browser.get("/consumers/billing/offsets?topic=Orders&to=offset&offset=0").text
    assert "2 messages would be delivered again, 0 skipped." in page
    assert (
        "0 messages would be delivered again, 2 skipped."
        in browser.get("/consumers/billing/offsets?topic=Orders&to=offset&offset=4").text
    )
    form = {"topic": "Orders", "to": "offset", "offset": "4", "time": "", "broker": "", "queue": ""}
    assert browser.post("/consumers/billing/offsets", {**form, "confirm": "x"}).status_code == 400
    assert not [call for call in cluster.calls if call[0] == "reset_offsets"]
    assert browser.post("/consumers/billing/offsets", {**form, "confirm": "billing"}).status_code == 303
    assert ("reset_offsets", "billing", "Orders", ResetTarget(offset=4)) in cluster.calls
    (entry,) = audit()
    assert (entry.action, entry.before, entry.after) == ("offsets.reset", '{"broker-a/0": 2}', '{"broker-a/0": 4}')


def test_new_group_is_found_at_once_and_its_reset_begins_with_present_offsets(
    browser_of: BrowserOf, cluster: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables are kept for seconds, but neither hide what is new nor show a reset from offsets of the past."""
    monkeypatch.setattr(topics_and_groups, "NEW_S", 0.0)
    monkeypatch.setattr(consumers, "NEW_S", 0.0)
    browser = browser_of("operator")
    assert browser.get("/consumers/late").status_code == 404
    cluster.groups_progress = {"late": {QUEUE: ConsumeProgress(10, 4, 1_700_000_000_000)}}
    assert browser.get("/consumers/late").status_code == 200
    cluster.groups_progress = {"late": {QUEUE: ConsumeProgress(10, 9, 1_700_000_000_000)}}
    assert "9 messages would be delivered again" in browser.get("/consumers/late/offsets?topic=Orders&to=earliest").text


@pytest.mark.parametrize("query", ["to=time", "to=time&time=x", "to=offset&offset=-1", "to=x", "to=latest&queue=y"])
def test_wrong_reset_says_what_is_wrong(browser_of: BrowserOf, query: str) -> None:
    response = browser_of("operator").get(f"/consumers/billing/offsets?topic=Orders&{query}")
    assert response.status_code == 400 and 'role="alert"' in response.text


def test_group_is_created_and_deleted(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    browser = browser_of("operator")
    assert browser.post("/consumers", {"group": "new", "retries": "3"}).status_code == 303
    assert browser.post("/consumers", {"group": EVIL}).status_code == 400
    assert "3 messages are not consumed" in browser.get("/consumers/billing/delete").text
    assert browser.post("/consumers/new/delete", {"confirm": "new"}).status_code == 303
    assert ("delete_group", "new", True) in cluster.calls


# Dead letters.


def test_chosen_dead_letters_go_to_the_retry_topic(browser_of: BrowserOf, producer: FakeProducer, audit: Audit) -> None:
    browser = browser_of("operator")
    page = browser.get("/consumers/billing/dead").text
    assert page.index("broker-a/0@2") < page.index("broker-a/0@0") and "Orders" in page
    form = {"what": "chosen", "place": ["broker-a/0@0", "broker-a/0@2"]}
    page = browser.post("/consumers/billing/dead", form).text
    assert "2 sent again, 0 failed" in page
    assert [one.topic for one in producer.sent] == ["%RETRY%billing"] * 2
    assert producer.sent[0].properties == {"RETRY_TOPIC": "Orders", "x": "y", RESENT_FROM: "D0"}
    (entry,) = audit()
    assert entry.before == '["broker-a/0@0", "broker-a/0@2"]' and entry.outcome == "done"


def test_all_dead_letters_of_a_page_are_chosen_by_a_link(browser_of: BrowserOf) -> None:
    browser = browser_of("operator")
    page = browser.get("/consumers/billing/dead").text
    assert "Choose all 3" in page and " checked" not in page and "3 in all." in page
    assert '<td class="number">16</td>' in page, "retries of the letter"
    page = browser.get("/consumers/billing/dead?choose=all").text
    assert page.count(" checked") == 3 and "Choose none" in page


def test_all_dead_letters_are_sent_after_the_name_was_typed(browser_of: BrowserOf, producer: FakeProducer) -> None:
    browser = browser_of("operator")
    assert browser.post("/consumers/billing/dead", {"what": "all", "confirm": ""}).status_code == 400
    assert producer.sent == []
    assert "3 sent again" in browser.post("/consumers/billing/dead", {"what": "all", "confirm": "billing"}).text


def test_failed_resend_has_its_reason(browser_of: BrowserOf, producer: FakeProducer, audit: Audit) -> None:
    producer.failing_topic = "%RETRY%billing"
    response = browser_of("operator").post("/consumers/billing/dead", {"what": "all", "confirm": "billing"})
    assert response.status_code == 400 and "the broker refuses" in response.text
    assert audit()[0].outcome.startswith("failed: no message was sent")


def test_group_without_retries_gets_no_copies(
    browser_of: BrowserOf, cluster: FakeAdmin, producer: FakeProducer
) -> None:
    cluster.retries = 0
    response = browser_of("operator").post("/consumers/billing/dead", {"what": "all", "confirm": "billing"})
    assert response.status_code == 400 and "no retries" in response.text
    assert producer.sent == []


@pytest.mark.parametrize("place", ["x", "broker-a/0@99", "other/0@0", "broker-a/-1@0", "../0@0"])
def test_wrong_places_are_refused(browser_of: BrowserOf, producer: FakeProducer, place: str) -> None:
    assert browser_of("operator").post("/consumers/billing/dead", {"place": place}).status_code in (400, 404)
    assert producer.sent == []


def test_dead_letters_are_exported_as_lines(browser_of: BrowserOf) -> None:
    response = browser_of("viewer").get("/consumers/billing/dead.jsonl")
    assert response.headers["content-disposition"].startswith("attachment")
    assert [line["id"] for line in map(__import__("json").loads, response.text.splitlines())] == ["D0", "D1", "D2"]
    assert "There are no dead letters." in browser_of("viewer").get("/consumers/idle/dead").text


# Broker groups.


def fields(members: list[tuple[int, str, str]], **more: str) -> dict[str, Any]:
    """Return the form of broker-a; members: id, role, permission."""
    return {
        "name": "broker-a",
        "cluster": CLUSTER,
        "mode": "elect",
        "revision": "0",
        "id": [str(each) for each, _, _ in members],
        "role": [role for _, role, _ in members],
        "permission": [one for _, _, one in members],
        "weight": ["100"] * len(members),
        "priority": ["0"] * len(members),
        **more,
    }


GOOD = [(0, "master", "FULL"), (1, "slave", "READ")]


def test_configuration_is_shown_with_its_difference_then_saved(
    browser_of: BrowserOf, database: GroupDatabase, audit: Audit
) -> None:
    database.change(CLUSTER, "broker-a", lambda _: CONFIG, wall_ms=1, by=Actor("root@host"))
    browser = browser_of("admin")
    page = browser.get("/groups/broker-a/edit").text
    assert 'name="revision" value="1"' in page
    page = browser.post("/groups", fields(GOOD, revision="1", step="preview")).text
    assert "<del>" in page and "<ins>" in page and "1: replica, read, weight" in page
    assert database.group(CLUSTER, "broker-a").config == CONFIG  # type: ignore[union-attr]
    assert browser.post("/groups", fields(GOOD, revision="1", step="save")).status_code == 303
    found = database.group(CLUSTER, "broker-a")
    assert found is not None and found.config is not None and found.revision == 2
    assert found.config.members[1].permission.value == "READ"
    entries = [(one.by.name, one.action, one.outcome) for one in audit()]
    assert entries == [("root@host", "group.change", "revision 1"), ("admin", "group.change", "revision 2")]


def test_operator_who_saves_second_sees_both_versions(browser_of: BrowserOf, database: GroupDatabase) -> None:
    database.change(CLUSTER, "broker-a", lambda _: CONFIG, wall_ms=1)
    first, second = browser_of("admin"), browser_of("admin")
    assert first.post("/groups", fields(GOOD, revision="1", step="save")).status_code == 303
    other = [(0, "master", "FULL"), (1, "slave", "NONE")]
    response = second.post("/groups", fields(other, revision="1", step="save"))
    assert response.status_code == 409
    assert "1: replica, read, weight" in response.text and "1: replica, none, weight" in response.text
    assert database.group(CLUSTER, "broker-a").revision == 2  # type: ignore[union-attr]
    revision = re.search(r'name="revision" value="(\d+)"', response.text)
    assert revision is not None and revision[1] == "2"
    assert second.post("/groups", fields(other, revision="2", step="save")).status_code == 303


def test_refusals_stand_beside_their_lines(browser_of: BrowserOf, database: GroupDatabase) -> None:
    wrong = fields([(0, "slave", "FULL"), (1, "master", "FULL")], mode="static", step="save")
    response = browser_of("admin").post("/groups", wrong)
    assert response.status_code == 400
    for number in (0, 1):
        assert re.search(rf'<td class="text" id="e-{number}"><p class="error">broker {number} is a ', response.text)
    assert database.group(CLUSTER, "broker-a") is None


def test_every_fault_of_a_form_is_found_at_once() -> None:
    values = {key: [value] if isinstance(value, str) else value for key, value in fields(GOOD).items()}
    values |= {"id": ["x", "1"], "weight": ["100", "y"], "role": ["king", "slave"], "mode": ["static"]}
    form = read_form(Fields(values))
    assert form.config is None
    assert [len(faults) for _, faults in sorted(form.member_faults.items())] == [2, 1]
    doubled = read_form(Fields({**values, "id": ["0", "0"], "weight": ["1", "1"], "role": ["master", "master"]}))
    texts = doubled.faults + [text for faults in doubled.member_faults.values() for text in faults]
    assert any("listed 2 times" in text for text in texts) and any("all master" in text for text in texts)


def test_wrong_names_and_torn_forms_are_refused(browser_of: BrowserOf, database: GroupDatabase) -> None:
    browser = browser_of("admin")
    for more in ({"name": EVIL}, {"name": "../x"}, {"cluster": ""}, {"mode": "x"}, {"revision": "x"}):
        response = browser.post("/groups", fields(GOOD, step="save", **more))
        assert response.status_code == 400 and EVIL not in response.text
    torn = {**fields(GOOD, step="save"), "role": ["master"]}
    assert browser.post("/groups", torn).status_code == 400
    assert database.groups() == []


def test_group_shows_whether_its_configuration_is_applied(browser_of: BrowserOf, database: GroupDatabase) -> None:
    browser = browser_of("viewer")
    assert "not configured here" in browser.get("/groups/broker-a").text
    stored_group = database.change(CLUSTER, "broker-a", lambda _: CONFIG, wall_ms=1)
    page = browser.get("/groups/broker-a").text
    assert "revision 1, not applied yet (brokers have 0)" in page and "No publisher runs" in page
    database.mark_applied(stored_group)
    page = browser.get("/groups/broker-a").text
    assert "revision 1, applied" in page and "elected" in page and "group.change: revision 1" in page
    assert "No publisher runs" in browser.get("/").text
    assert browser.get("/groups/other").status_code == 404


def test_removal_needs_the_name(browser_of: BrowserOf, database: GroupDatabase) -> None:
    database.change(CLUSTER, "broker-a", lambda _: CONFIG, wall_ms=1)
    browser = browser_of("admin")
    assert browser.post("/groups/broker-a/remove", {"confirm": ""}).status_code == 400
    assert browser.post("/groups/broker-a/remove", {"confirm": "broker-a"}).status_code == 303
    assert database.group(CLUSTER, "broker-a").config is None  # type: ignore[union-attr]


def test_master_is_switched_after_the_name_was_typed(browser_of: BrowserOf, cluster: FakeAdmin, audit: Audit) -> None:
    browser = browser_of("admin")
    assert "No message is lost" in browser.get("/groups/broker-a/switch").text
    assert browser.post("/groups/broker-a/switch", {"target": "1", "confirm": "x"}).status_code == 400
    form = {"target": "1", "confirm": "broker-a"}
    assert browser.post("/groups/broker-a/switch", form).status_code == 303
    assert ("switch_master", MASTER, 1) in cluster.calls
    cluster.refusal = RemoteError("broker 0 is not in sync")
    response = browser.post("/groups/broker-a/switch", {**form, "target": "0"})
    assert response.status_code == 502 and "not in sync" in response.text
    assert [one.outcome for one in audit()] == ["done", "failed: broker 0 is not in sync"]


def test_forced_takeover_shows_its_price(browser_of: BrowserOf, cluster: FakeAdmin, audit: Audit) -> None:
    browser = browser_of("admin")
    assert "512 bytes may be lost" in browser.get("/groups/broker-a/force").text
    assert browser.post("/groups/broker-a/force", {"target": "1", "confirm": "broker-a"}).status_code == 303
    assert browser.post("/groups/broker-a/force", {"target": "7", "confirm": "broker-a"}).status_code == 400
    (entry,) = audit()
    assert (entry.action, entry.before) == ("group.force-master", "512 bytes may be lost")


# Audit and users.


def test_audit_is_filtered_paged_and_exported(browser_of: BrowserOf, console: Console) -> None:
    browser = browser_of("admin")
    for number in range(150):
        console.accounts.add(f"u{number:03}", console.accounts.users()[0].role, PASSWORD, Actor("=evil()"), wall_ms())
    page = browser.get("/audit").text
    older = re.search(r'rel="next" href="([^"]+)"', page)
    assert older is not None and page.count("<tr>") == 101
    assert "u000" in browser.get(older[1].replace("&amp;", "&")).text
    assert browser.get("/audit?q=u042").text.count("<tr>") == 2
    assert browser.get("/audit", params={"q": "100%"}).text.count("<tr>") == 1, "a percent sign is no wildcard"
    lines = browser.get("/audit.csv?q=u042").text.splitlines()
    assert len(lines) == 2 and ",'=evil()," in lines[1]


def test_users_are_administered(browser_of: BrowserOf, console: Console) -> None:
    browser, viewer = browser_of("admin"), browser_of("viewer")
    assert browser.post("/users", {"name": "bob", "password": PASSWORD, "role": "viewer"}).status_code == 303
    assert browser.post("/users", {"name": "eve", "password": PASSWORD, "role": "king"}).status_code == 400
    assert browser.post("/users/viewer/role", {"role": "operator"}).status_code == 303
    assert viewer.get("/topics/new").status_code == 200, "the new role applies at once"
    assert browser.post("/users/viewer/remove", {"confirm": "viewer"}).status_code == 303
    assert viewer.get("/").status_code == 303
    assert browser.post("/users/admin/remove", {"confirm": "admin"}).status_code == 400
    assert [one.name for one in console.accounts.users()] == ["admin", "bob", "operator"]
