"""What every page has to be: refused to those who may not see it, usable by everybody and without scripts, harmless
whatever a message contains.
"""

import json
import time
from collections.abc import Callable, Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.groupdb.audit import entries
from tandemq.model.message import Message, SendResult
from tandemq.run.children import ChildCluster
from tests.browser.served import PASSWORD, ServedConsole, Visitor
from tests.spec import spec

NewVisitor = Callable[..., Visitor]
ATTACK = "<script>window.attacked=1</script><img src=x onerror='window.attacked=1'>\"'><svg onload=window.attacked=1>"
FOR_ALL = (
    "/",
    "/topics",
    "/topics?all=1",
    "/topics/Orders",
    "/consumers",
    "/consumers/billing",
    "/consumers/billing/dead",
    "/limits",
    "/messages",
    "/messages?search=1&by=key&topic=Orders&key=order-1",
    "/groups",
    "/groups/broker-a",
    "/pipeline",
    "/me",
)
FOR_OPERATORS = (
    "/topics/new",
    "/topics/Orders/tail",
    "/topics/Orders/delete",
    "/consumers/billing/offsets",
    "/consumers/billing/offsets?topic=Orders&to=earliest",
    "/consumers/billing/delete",
)
FOR_ADMINS = (
    "/groups/new",
    "/groups/broker-a/edit",
    "/groups/broker-a/switch",
    "/groups/broker-a/force",
    "/groups/broker-a/remove",
    "/audit",
    "/users",
)

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def sent(cluster: ChildCluster) -> Iterator[SendResult]:
    """An order whose every part is an attack, among others; the group has consumed one and sent one back."""
    with BlockingProducer(cluster.name_servers, group="shop", trace=True) as producer:
        for number in range(8):
            producer.send(Message("Orders", b'{"order": %d}' % number, keys=[f"order-{number}"], tags="paid"))
        attack = Message("Orders", ATTACK.encode(), keys=["k<b>"], tags="<i>", properties={"note": ATTACK, "<u>": "1"})
        result = producer.send(attack)
        with BlockingConsumer(
            cluster.name_servers,
            group="billing",
            topics={"Orders": "*"},
            client_id="<b>client",
            max_reconsume_times=0,
            trace=True,
        ) as consumer:
            for number in range(9):
                message = consumer.receive(timeout_s=60)
                assert message is not None
                message.retry() if number % 2 else message.ack()
        yield result


def message_path(result: SendResult) -> str:
    """The page of a message."""
    queue = result.queue
    return f"/messages/{queue.topic}/{queue.broker_name}/{queue.queue_id}/{result.queue_offset}"


def test_viewer_sees_pages_without_bodies_and_changes_nothing(
    new_visitor: NewVisitor, sent: SendResult, console: ServedConsole
) -> None:
    vera = new_visitor()
    page = vera.log_in("vera")
    for path in (*FOR_ALL, message_path(sent), f"{message_path(sent)}/trace"):
        answer = page.goto(path)
        assert answer is not None and answer.status == 200, path
        assert "order-1" not in page.locator("main").inner_text(), path
        forms = page.locator("form[method=post]").evaluate_all("forms => forms.map(form => form.action)")
        expected = {f"{console.base}/logout"} | (
            {f"{console.base}/me{x}" for x in ("", "/password", "/sessions", "/tokens")} if path == "/me" else set()
        )
        assert set(forms) == expected, path
    page.goto(message_path(sent))
    expect(page.get_by_text("This console shows bodies and properties to operators only.")).to_be_visible()
    assert "attacked" not in page.content()
    for path in (*FOR_OPERATORS, *FOR_ADMINS):
        answer = page.goto(path)
        expected_status = 404 if path.endswith("/tail") else 403  # bodies are hidden, the page itself is not
        assert answer is not None and answer.status == expected_status, path
    vera.picture("refused")


def test_viewers_own_forms_do_not_reach_other_pages(new_visitor: NewVisitor, console: ServedConsole) -> None:
    """A viewer edits a form of an allowed page so that it changes something: the role decides, not the page."""
    page = new_visitor().log_in("vera")
    with console.audit() as connection:
        before = len(entries(connection, count=1_000))
    for target in ("/topics", "/consumers/billing/offsets", "/groups", "/groups/broker-a/switch", "/users"):
        page.goto("/me")
        form = page.locator("main form").first
        form.evaluate("(form, target) => { form.action = target }", target)
        with page.expect_navigation() as navigation:
            form.get_by_role("button", name="Save").click()
        assert navigation.value.status == 403, target
        expect(page.get_by_role("alert")).to_contain_text("this needs the role")
    with console.audit() as connection:
        assert len(entries(connection, count=1_000)) == before


def test_two_admins_at_once_see_both_versions(new_visitor: NewVisitor, console: ServedConsole) -> None:
    first, second = new_visitor(), new_visitor()
    pages = [first.log_in("ada"), second.log_in("ada")]
    for page, weight in zip(pages, ("70", "30"), strict=True):
        page.goto("/groups/broker-a/edit")
        page.get_by_label("Weight 2").fill(weight)
        page.get_by_role("button", name="Show the difference").click()
    pages[0].get_by_role("button", name="Save").click()
    expect(pages[0].get_by_role("heading", level=1)).to_have_text("broker-a")
    pages[1].get_by_role("button", name="Save").click()
    meanwhile = pages[1].locator("section").filter(has_text="Saved meanwhile")
    expect(meanwhile).to_contain_text("weight 70")
    expect(pages[1].locator("section").filter(has_text="Yours")).to_contain_text("weight 30")
    second.picture("conflict")
    pages[1].get_by_role("button", name="Show the difference").click()
    expect(pages[1].locator("del")).to_contain_text("weight 70")
    pages[1].get_by_role("button", name="Save").click()
    expect(pages[1].get_by_role("heading", level=1)).to_have_text("broker-a")
    expect(pages[1].get_by_role("cell", name="30", exact=True)).to_be_visible()


def test_content_of_messages_and_names_is_shown_and_not_run(new_visitor: NewVisitor, sent: SendResult) -> None:
    visitor = new_visitor()
    page = visitor.log_in("otto")
    paths = [
        message_path(sent),
        "/topics/Orders",
        "/topics/Orders/tail",
        "/consumers/billing",
        "/consumers/billing/dead",
    ]
    paths += ["/topics?q=" + ATTACK, "/messages?search=1&by=key&topic=" + ATTACK, "/topics/Orders/tail?tag=" + ATTACK]
    for path in paths:
        page.goto(path)
        page.wait_for_load_state("load")
        assert page.evaluate("window.attacked") is None, path
    page.goto(message_path(sent))
    assert page.locator("pre").inner_text() == ATTACK
    expect(page.get_by_role("cell", name=ATTACK)).to_be_visible()
    # Live: the same, when the stream brings it.
    page.goto("/topics/Orders/tail")
    expect(page.locator("#live")).to_contain_text("window.attacked=1")
    assert page.evaluate("window.attacked") is None


def test_body_is_a_file_that_no_browser_shows(new_visitor: NewVisitor, sent: SendResult) -> None:
    page = new_visitor().log_in("otto")
    page.goto(message_path(sent))
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the body").click()
    assert download.value.path().read_bytes() == ATTACK.encode()


@spec("C08")
def test_message_leads_to_its_trace(new_visitor: NewVisitor, sent: SendResult) -> None:
    visitor = new_visitor()
    page = visitor.log_in("vera")
    page.goto(message_path(sent))
    page.get_by_role("link", name="Trace: who sent").click()
    expect(page.get_by_role("rowheader", name="sent")).to_be_visible()
    expect(page.get_by_role("cell", name="shop")).to_be_visible()
    expect(page.get_by_role("rowheader", name="delivered")).to_be_visible()
    expect(page.get_by_role("cell", name="stored", exact=True)).to_be_visible()
    visitor.picture("trace")


@spec("C09")
def test_pipeline_shows_lakes_and_checks(new_visitor: NewVisitor, console: ServedConsole) -> None:
    visitor = new_visitor()
    page = visitor.log_in("vera")
    page.get_by_role("navigation").get_by_role("link", name="Pipeline").click()
    row = page.get_by_role("row").filter(has_text="broker-a")
    expect(row.first).to_contain_text("3,096")
    expect(page.get_by_text("2 faults, the first at log offset 1200")).to_be_visible()
    query = page.get_by_role("row").filter(has_text="gold_minutes")
    expect(query).to_contain_text("in progress")
    expect(query).to_contain_text("40, 2.0 KiB")
    visitor.picture("pipeline")


@spec("C03", "C04")
def test_token_is_made_by_hand_used_by_a_program_and_revoked(
    new_visitor: NewVisitor, sent: SendResult, console: ServedConsole
) -> None:
    """Names with percent signs pass through the real server."""
    visitor = new_visitor()
    page = visitor.log_in("otto")
    page.goto("/me")
    page.get_by_label("Purpose").fill("nightly")
    page.get_by_label("Role", exact=True).select_option("viewer")
    page.get_by_label("Present password").last.fill(PASSWORD)
    page.get_by_role("button", name="Make a token").click()
    secret = page.get_by_label("API token", exact=True).inner_text()
    headers = {"authorization": f"Bearer {secret}"}
    for path in ("cluster", "topics/%25DLQ%25billing", "consumer-groups/billing/dead-letters"):
        answer = visitor.context.request.get(f"{console.base}/api/v1/{path}", headers=headers)
        assert answer.status == 200, path
    messages = visitor.context.request.get(f"{console.base}/api/v1/topics/Orders/messages", headers=headers)
    assert messages.json()["items"] and "order-1" not in messages.text()
    assert visitor.context.request.get(f"{console.base}/api/v1/cluster").status == 401, "the cookie does not count"
    page.get_by_role("button", name="Revoke token").click()
    expect(page.get_by_text("There are no tokens.")).to_be_visible()
    assert visitor.context.request.get(f"{console.base}/api/v1/cluster", headers=headers).status == 401


def _findings(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]


@pytest.mark.parametrize(("theme", "locale"), [("light", "en-GB"), ("dark", "zh-CN")])
def test_axe_has_no_findings(new_visitor: NewVisitor, sent: SendResult, theme: str, locale: str) -> None:
    visitor = new_visitor(color_scheme=theme, locale=locale)
    page = visitor.page
    page.goto("/login")
    found = {"/login": _findings(page)}
    visitor.log_in("ada")
    for path in (*FOR_ALL, *FOR_OPERATORS, *FOR_ADMINS, message_path(sent), f"{message_path(sent)}/trace", "/nothing"):
        page.goto(path)
        page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true })")
        if path != "/nothing":
            found[path] = _findings(page)
    assert {path: findings for path, findings in found.items() if findings} == {}
    page.goto("/")
    visitor.picture(f"cluster-{theme}")


BROKEN_WORDS = """() => {
    const found = [], range = document.createRange();
    const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = nodes.nextNode(); node; node = nodes.nextNode()) {
        for (const word of node.data.matchAll(/[A-Za-z0-9]{2,30}/g)) {
            range.setStart(node, word.index);
            range.setEnd(node, word.index + word[0].length);
            const lines = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
            if (lines.size > 1) found.push(word[0]);
        }
    }
    return found;
}"""
"""Words that are on two lines."""


def test_pages_fit_a_telephone(new_visitor: NewVisitor, sent: SendResult) -> None:
    """Wide tables scroll on their own; the page itself does not move sideways, and no word is broken."""
    page = new_visitor(viewport={"width": 390, "height": 800}).log_in("ada")
    for path in (*FOR_ALL, *FOR_OPERATORS, *FOR_ADMINS, message_path(sent), f"{message_path(sent)}/trace"):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        assert page.evaluate(BROKEN_WORDS) == [], path


def test_limit_is_set_changed_and_deleted_without_scripts(new_visitor: NewVisitor, sent: SendResult) -> None:
    """Only the fields that the chosen kind has are shown."""
    visitor = new_visitor(java_script_enabled=False)
    page = visitor.log_in("ada")
    page.get_by_role("navigation").get_by_role("link", name="Limits").click()
    expect(page.get_by_text("There are no limits.")).to_be_visible()
    for kind, connections, in_flight in (("user", True, False), ("group", False, True), ("topic", False, False)):
        page.get_by_label("Of", exact=True).select_option(kind)
        expect(page.get_by_label("Connections")).to_be_visible(visible=connections)
        expect(page.get_by_label("In flight")).to_be_visible(visible=in_flight)
        expect(page.get_by_role("checkbox")).to_be_visible(visible=kind != "group")
    page.get_by_label("Name").fill("Orders")
    page.get_by_label("Messages/s").fill("2000")
    page.get_by_role("checkbox").check()
    page.get_by_role("button", name="Save").click()
    row = page.get_by_role("row").filter(has_text="Orders")
    expect(row).to_contain_text("2,000")
    expect(row).to_contain_text("waits, then refused")
    visitor.picture("limits")
    page.get_by_role("link", name="Change the limit of topic Orders").click()
    expect(page.get_by_label("Messages/s")).to_have_value("2000")
    page.get_by_role("button", name="Delete the limit of topic Orders").click()
    expect(page.get_by_text("There are no limits.")).to_be_visible()


def test_fields_of_a_search_depend_on_its_kind(new_visitor: NewVisitor, sent: SendResult) -> None:
    page = new_visitor(java_script_enabled=False).log_in("vera")
    page.goto("/messages")
    assert page.locator("#topics option").evaluate_all("all => all.map(one => one.value)") == ["Orders"]
    labels = ("Topic", "Key or id", "Broker group", "Queue", "Offset", "From", "Until")
    for by, shown in (
        ("key", ("Topic", "Key or id", "From", "Until")),
        ("id", ("Key or id",)),
        ("offset", ("Topic", "Broker group", "Queue", "Offset")),
        ("time", ("Topic", "From", "Until")),
    ):
        page.get_by_label("By", exact=True).select_option(by)
        assert tuple(label for label in labels if page.get_by_label(label, exact=True).is_visible()) == shown, by


def test_charts_have_axes_and_a_table(new_visitor: NewVisitor, sent: SendResult) -> None:
    page = new_visitor().log_in("vera")
    for path in ("/consumers/billing", "/topics/Orders", "/"):
        page.goto(path)
        deadline = time.monotonic() + 60
        while not page.get_by_role("img", name="Messages per second").count():
            assert time.monotonic() < deadline, "the console has taken no second sample"
            page.reload()
        chart = page.get_by_role("img", name="Messages per second")
        expect(chart).to_be_visible()
        assert chart.locator("text").count() >= 4, path
        page.get_by_text("As a table").last.click()
        expect(page.get_by_role("columnheader", name="per second").first).to_be_visible()
        if path == "/topics/Orders":
            assert _findings(page) == []


def test_keyboard_is_enough(new_visitor: NewVisitor) -> None:
    """Log in and reach the content without a pointer."""
    page = new_visitor().page
    page.goto("/login")
    for text in ("", "", "vera", "correct horse"):
        page.keyboard.press("Tab")
        page.keyboard.type(text)
    page.keyboard.press("Enter")
    page.wait_for_url("**/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_pages_work_without_scripts(new_visitor: NewVisitor, sent: SendResult) -> None:
    visitor = new_visitor(java_script_enabled=False)
    page = visitor.log_in("ada")
    expect(page.get_by_role("status")).to_contain_text("2 groups, all in sync")
    for path in (*FOR_ALL, *FOR_OPERATORS, *FOR_ADMINS, message_path(sent), f"{message_path(sent)}/trace"):
        answer = page.goto(path)
        assert answer is not None and answer.status == 200, path
    page.goto("/topics/Orders")
    page.get_by_label("Body").fill(json.dumps({"order": 99}))
    page.get_by_role("button", name="Send").click()
    expect(page.locator("pre")).to_have_text('{\n  "order": 99\n}')
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")


def test_page_follows_no_stream_after_logout(new_visitor: NewVisitor) -> None:
    """A page that is still open in another tab no longer changes, and its next request needs a login."""
    visitor = new_visitor()
    page = visitor.log_in("vera")
    other = visitor.context.new_page()
    other.goto("/")
    page.get_by_role("button", name="Log out").click()
    other.goto("/topics")
    expect(other.get_by_role("heading", level=1)).to_have_text("Log in")
    answer = visitor.context.request.get("/live")
    assert answer.status == 401
