"""Unmodified gRPC clients of each language: what they can send, receive and be refused.

The servers are TandemQ's proxy and broker. RocketMQ's proxies and broker show that the tests are right, and that
unmodified Java proxies work with TandemQ's broker.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.interop.checks import bodies
from tests.interop.driver import Event
from tests.interop.flights import now_ms
from tests.interop.grpc_clients import CAN_PUSH, CAN_RECALL, LANGUAGES, GrpcClient, described
from tests.interop.grpc_stacks import GrpcClients, Stack, stack
from tests.interop.java import wait_until
from tests.samples import slow
from tests.spec import spec

OURS = ("ours", "ours")
JAVA_BEFORE_OURS = ("5.3.3", "ours")
STACKS = (OURS, JAVA_BEFORE_OURS, ("5.5.0", "ours"), ("5.3.3", "5.3.3"), ("ours", "5.3.3"))
"""Kinds of proxy and broker."""
USUAL = {*((OURS, language) for language in ("python", "java-5.2.0", "node")), (JAVA_BEFORE_OURS, "java-5.2.0")}
"""Those that are in `make interop`; the others run in `make soak`."""

MEBIBYTE = 1024 * 1024
BODY_MAX = 4 * MEBIBYTE
SIZES = (1, 1_000, 100_000, BODY_MAX - 1_024)
COUNT = 12
AWAIT_MS = 6_000
"""Of receives that get nothing. A Java proxy refuses polls of less than 5 s before the client's own deadline, which the
Rust client sets to the end of the poll."""

TOPIC_NOT_FOUND, EXPIRED_HANDLE = 40402, 40013


def each(languages: tuple[str, ...]) -> pytest.MarkDecorator:
    """Parametrise a test with proxy and broker, and clients; the tests of one pair run one after the other."""
    every = [(servers, language) for servers in STACKS for language in languages]
    cases = [case if case in USUAL else slow(case) for case in every]
    ids = ["-".join((*servers, language)) for servers, language in every]
    return pytest.mark.parametrize(("servers", "language"), cases, ids=ids, scope="module")


every_client = each(LANGUAGES)
every_push_client = each(CAN_PUSH)


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    """Servers, each kind started when first asked for."""
    found = Stacks(tmp_path_factory.mktemp("stacks"))
    yield found
    found.close()


class Stacks:
    """One running stack of servers at a time: the JVMs of all of them would need much memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[tuple[str, str], tuple[AbstractContextManager[Stack], Stack]] = {}
        self.clients = GrpcClients(directory / "clients")

    def __call__(self, servers: tuple[str, str]) -> Stack:
        """Return the stack of these kinds of proxy and broker."""
        if servers not in self._running:
            self._stop()
            context = stack(*servers, self._directory / "-".join(servers))
            self._running[servers] = context, context.__enter__()
        return self._running[servers][1]

    def _stop(self) -> None:
        for context, _ in self._running.values():
            context.__exit__(None, None, None)
        self._running.clear()

    def close(self) -> None:
        """Stop everything."""
        self.clients.close()
        self._stop()


@pytest.fixture
def place(servers: tuple[str, str], stacks: Stacks) -> Stack:
    """The servers of a test."""
    return stacks(servers)


@pytest.fixture
def client(language: str, place: Stack, stacks: Stacks) -> Iterator[GrpcClient]:
    """The client of a test; what the test opens is closed after it."""
    found = stacks.clients(language, place.proxy.address)
    yield found
    found.close_all()


@spec("X05")
@every_client
def test_messages_arrive_as_sent(place: Stack, client: GrpcClient) -> None:
    topic, group = place.topic(), place.group()
    producer = client.producer(topics=topic)
    consumer = client.simple(group=group, topic=topic)
    rich: dict[str, str | int] = {
        "tag": "tag-a",
        "keys": "k1,k2",
        "property.region": "eu",
        "property.city": "Zürich 東京",
    }
    variants: list[dict[str, str | int]] = [
        {"body": "plain"},
        {"body": "Grüße, 世界 🌍", **rich},
    ]
    variants += [{"size": size} for size in SIZES]
    sent = [producer.send(topic=topic, **values) for values in variants]
    assert [event["event"] for event in sent] == ["sent"] * len(variants), sent
    found = consumer.receive_all(len(variants))
    assert {event["messageId"] for event in found} == {event["messageId"] for event in sent}
    by_id = {event["messageId"]: event for event in found}
    ordered = [by_id[event["messageId"]] for event in sent]
    assert [event["size"] for event in ordered[2:]] == list(SIZES)
    [plain, full] = described(ordered[:2])
    assert ordered[0]["body"] == "plain"
    assert (plain["tag"] or None, plain["keys"], plain["properties"]) == (None, [], {})
    assert ordered[1]["body"] == "Grüße, 世界 🌍"
    assert (full["tag"], full["keys"]) == ("tag-a", ["k1", "k2"])
    assert full["properties"] == {"region": "eu", "city": "Zürich 東京"}
    assert all(event["attempt"] == 1 and event["topic"] == topic for event in found)


@every_client
def test_what_a_topic_does_not_take_is_refused(place: Stack, client: GrpcClient) -> None:
    """Messages of another type than the topic's, too large ones, and messages to a topic that does not exist."""
    normal, fifo = place.topic(), place.topic("FIFO")
    producer = client.producer(topics=normal)
    refused = [
        producer.send(topic=normal, body="b", message_group="g"),
        producer.send(topic=normal, body="b", deliver_ms=now_ms() + 60_000),
        producer.send(topic=fifo, body="b"),
        producer.send(topic=normal, size=BODY_MAX + 1),
        producer.send(topic="GrpcAbsent", body="b"),
    ]
    assert [event["event"] for event in refused] == ["refused"] * len(refused), refused
    assert refused[-1]["code"] in (TOPIC_NOT_FOUND, None), refused[-1]
    assert producer.send(topic=normal, body="b")["event"] == "sent"
    assert sum(place.stored(normal, queue) for queue in (0, 1)) == 1
    assert sum(place.stored(fifo, queue) for queue in (0, 1)) == 0


@every_push_client
def test_consumer_of_unknown_topic_is_refused(place: Stack, client: GrpcClient) -> None:
    consumer = client.begin("push", client="absent", group=place.group(), topic="GrpcAbsent")
    consumer.wait_for(lambda event: event["event"] in ("error", "open"), within_s=30)
    assert [event["event"] for event in consumer.events()] == ["error"]


@every_push_client
def test_message_groups_keep_their_order(place: Stack, client: GrpcClient) -> None:
    topic, group = place.topic("FIFO", queues=4), place.group(ordered=True)
    producer = client.producer(topics=topic)
    consumer = client.push(group=group, topic=topic)
    sent = producer.burst(topic=topic, prefix="f", count=30, groups=3).result()
    assert [event["event"] for event in sent] == ["sent"] * 30, sent
    found = consumer.wait_bodies({f"f-{number}" for number in range(30)}, within_s=60)
    for name in ("g0", "g1", "g2"):
        numbers = [int(event["body"].partition("-")[2]) for event in found if event["messageGroup"] == name]
        assert numbers == sorted(numbers), found
    assert {event["messageGroup"] for event in found} == {"g0", "g1", "g2"}


@every_push_client
def test_failed_message_of_a_group_is_repeated_before_the_next_one(place: Stack, client: GrpcClient) -> None:
    topic, group = place.topic("FIFO", queues=1), place.group(ordered=True)
    producer = client.producer(topics=topic)
    sent = producer.send_all((f"r-{number}" for number in range(3)), topic=topic, message_group="g")
    consumer = client.push(group=group, topic=topic, fail_first=1)
    consumer.running.wait_for(lambda event: event["event"] == "message", 60, count=6)
    assert [event["body"] for event in consumer.messages()] == [body for body in sent for _ in range(2)]


@every_client
def test_simple_consumer_gets_next_message_of_a_queue_after_acknowledgement(place: Stack, client: GrpcClient) -> None:
    topic, group = place.topic("FIFO", queues=1), place.group(ordered=True)
    producer = client.producer(topics=topic)
    consumer = client.simple(group=group, topic=topic, await_ms=AWAIT_MS)
    producer.send_all(("o-0", "o-1", "o-2"), topic=topic, message_group="g")
    first = consumer.receive(count=1, invisible_ms=30_000)
    assert bodies(first) == ["o-0"]
    assert consumer.receive(count=1, invisible_ms=30_000) == []
    assert consumer.ack(first[0])["event"] == "acked"
    assert bodies(consumer.receive_all(2)) == ["o-1", "o-2"]


@spec("X05")
@every_client
def test_delayed_message_is_delivered_at_its_time(place: Stack, client: GrpcClient) -> None:
    topic, group = place.topic("DELAY"), place.group()
    producer = client.producer(topics=topic)
    consumer = client.simple(group=group, topic=topic)
    deliver_ms = (now_ms() // 1000 + 4) * 1000
    sent = producer.send(topic=topic, body="later", deliver_ms=deliver_ms)
    assert sent["event"] == "sent", sent
    [found] = consumer.receive_all(1)
    assert found["body"] == "later"
    assert found["at_ms"] >= deliver_ms, (found["at_ms"], deliver_ms)


@each(CAN_RECALL)
def test_recalled_message_is_not_delivered(place: Stack, client: GrpcClient) -> None:
    topic, group = place.topic("DELAY"), place.group()
    producer = client.producer(topics=topic)
    consumer = client.simple(group=group, topic=topic, await_ms=AWAIT_MS)
    deliver_ms = (now_ms() // 1000 + 5) * 1000
    recalled, kept = (producer.send(topic=topic, body=body, deliver_ms=deliver_ms) for body in ("recalled", "kept"))
    assert recalled["recallHandle"]
    answer = producer.recall(topic, recalled["recallHandle"])
    assert answer["event"] == "recalled", answer
    assert answer["messageId"] == recalled["messageId"]
    assert producer.recall(topic, "no handle")["event"] == "refused"
    [found] = consumer.receive_all(1)
    assert found["messageId"] == kept["messageId"]
    assert consumer.receive() == []


@every_client
def test_committed_transaction_is_delivered_and_rolled_back_one_is_not(place: Stack, client: GrpcClient) -> None:
    topic, group = place.topic("TRANSACTION"), place.group()
    producer = client.producer(topics=topic, check="unknown")
    consumer = client.simple(group=group, topic=topic, await_ms=AWAIT_MS)
    for end in ("rollback", "commit"):
        events = producer.transact(topic=topic, body=end, tag="t", end=end)
        assert [event["event"] for event in events] == ["sent", "ended"], events
    [found] = consumer.receive_all(1)
    assert (found["body"], found["tag"]) == ("commit", "t")
    assert consumer.receive() == []


@every_client
@pytest.mark.parametrize("resolution", ["commit", "rollback"])
def test_orphaned_transaction_is_checked(place: Stack, client: GrpcClient, resolution: str) -> None:
    topic, group = place.topic("TRANSACTION"), place.group()
    producer = client.producer(topics=topic, check=resolution)
    consumer = client.simple(group=group, topic=topic, await_ms=AWAIT_MS)
    [sent] = producer.transact(topic=topic, body="orphan", **{"property.a": "b"})
    assert sent["event"] == "sent", sent
    [checked, *_] = producer.running.wait_for(lambda event: event["event"] == "check", within_s=60)
    assert (checked["messageId"], checked["body"]) == (sent["messageId"], "orphan")
    assert checked["properties"]["a"] == "b"
    if resolution == "commit":
        [found] = consumer.receive_all(1)
        assert found["messageId"] == sent["messageId"]
    else:
        assert consumer.receive() == []


@every_push_client
def test_unacknowledged_message_is_delivered_again(place: Stack, client: GrpcClient) -> None:
    """Until its time it is invisible; the time can be changed, with a new handle; expired handles are refused."""
    topic, group = place.topic(queues=1), place.group()
    producer = client.producer(topics=topic)
    consumer = client.simple(group=group, topic=topic, await_ms=AWAIT_MS)
    producer.send_all(["again"], topic=topic)
    [first] = consumer.receive(invisible_ms=10_000)
    again: list[Event] = []
    while not again:
        again = consumer.receive(invisible_ms=30_000)
    assert [event["messageId"] for event in (first, *again)] == [first["messageId"]] * 2
    assert [event["attempt"] for event in (first, *again)] == [1, 2]
    assert again[0]["at_ms"] - first["at_ms"] >= 9_000
    answer = consumer.ack(first)
    assert (answer["event"], answer.get("code")) == ("refused", EXPIRED_HANDLE), answer
    assert consumer.change(again[0], 2_000)["event"] == "changed"
    [third] = consumer.receive_all(1)
    assert (third["messageId"], third["attempt"]) == (first["messageId"], 3)
    assert consumer.receive() == []


@every_push_client
def test_acknowledgement_with_changed_handle_is_accepted(place: Stack, client: GrpcClient) -> None:
    topic, group = place.topic(queues=1), place.group()
    producer = client.producer(topics=topic)
    consumer = client.simple(group=group, topic=topic, await_ms=AWAIT_MS)
    producer.send_all(["once"], topic=topic)
    [message] = consumer.receive(invisible_ms=10_000)
    assert consumer.change(message, 10_000)["event"] == "changed"
    assert consumer.ack(message)["event"] == "acked"
    assert [bodies(consumer.receive()) for _ in range(3)] == [[], [], []]


@every_client
def test_waiting_receive_gets_message_when_it_is_sent(place: Stack, client: GrpcClient) -> None:
    """Long before the end of the poll, and more than once."""
    topic, group = place.topic(), place.group()
    producer = client.producer(topics=topic)
    consumer = client.simple(group=group, topic=topic, await_ms=20_000)
    for number in range(3):
        receive = client.begin("receive", client=consumer.name, max=1)
        # Nothing says that the request waits in the broker.
        threading.Event().wait(1)
        sent = producer.send(topic=topic, body=f"w-{number}")
        [message] = [event for event in receive.result() if event["event"] == "message"]
        assert message["body"] == f"w-{number}"
        waited_ms = message["at_ms"] - sent["at_ms"]
        print(f"{client.language}: message received {waited_ms} ms after the response to its send")
        assert waited_ms < 15_000
        assert consumer.ack(message)["event"] == "acked"


@every_push_client
def test_push_consumers_share_messages(place: Stack, client: GrpcClient) -> None:
    topic, group = place.topic(queues=4), place.group()
    producer = client.producer(topics=topic)
    consumers = [client.push(group=group, topic=topic) for _ in range(2)]
    sent = producer.send_all((f"p-{number}" for number in range(COUNT)), topic=topic)

    def consumed() -> Counter[str]:
        return Counter(body for consumer in consumers for body in bodies(consumer.messages()))

    wait_until(lambda: set(consumed()) == set(sent), what="all messages consumed", within_s=60)
    assert consumed() == Counter(sent)


@every_push_client
def test_failed_messages_are_delivered_to_push_consumer_again(place: Stack, client: GrpcClient) -> None:
    topic, group = place.topic(), place.group()
    producer = client.producer(topics=topic)
    consumer = client.push(group=group, topic=topic, fail_first=2)
    sent = producer.send_all((f"p-{number}" for number in range(COUNT)), topic=topic)
    consumer.running.wait_for(lambda event: event["event"] == "message", within_s=90, count=3 * COUNT)
    for body in sent:
        found = [event for event in consumer.messages() if event["body"] == body]
        assert [(event["attempt"], event["failed"]) for event in found] == [(1, True), (2, True), (3, False)], found


@every_push_client
def test_filters_select_messages(place: Stack, client: GrpcClient) -> None:
    topic = place.topic()
    producer = client.producer(topics=topic)
    by_tag = client.push(group=place.group(), topic=topic, expression="a || c")
    by_property = client.push(group=place.group(), topic=topic, expression="amount > 5 AND region = 'eu'", sql=True)
    for number, tag in enumerate("abcabc"):
        values = {"property.amount": str(number * 3), "property.region": "eu" if number < 5 else "us"}
        assert producer.send(topic=topic, body=f"{tag}{number}", tag=tag, **values)["event"] == "sent"
    tagged = by_tag.wait_bodies({"a0", "c2", "a3", "c5"})
    selected = by_property.wait_bodies({"c2", "a3", "b4"})
    assert sorted(bodies(tagged)) == ["a0", "a3", "c2", "c5"]
    assert sorted(bodies(selected)) == ["a3", "b4", "c2"]


@every_push_client
@pytest.mark.parametrize("ordered", [False, True], ids=["standard", "ordered"])
def test_message_goes_to_dead_letter_queue_after_its_attempts(place: Stack, client: GrpcClient, ordered: bool) -> None:
    topic = place.topic("FIFO" if ordered else "NORMAL", queues=1)
    group = place.group(ordered=ordered, retries=1, exponential=client.language == "node" and ordered)
    producer = client.producer(topics=topic)
    values = {"message_group": "g"} if ordered else {}
    producer.send_all(["dead"], topic=topic, **values)
    consumer = client.push(group=group, topic=topic, fail_first=99)
    place.wait_dead_letters(group, within_s=90)
    found = consumer.messages()
    assert bodies(found) == ["dead", "dead"], found
    assert place.stored(f"%DLQ%{group}") == 1
