"""Unmodified Java clients 4.9.8 and 5.3.3 against the broker and the name server."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.interop.checks import (
    Events,
    agrees_with,
    all_sent_ok,
    at_least_once,
    bodies,
    change_body,
    exactly,
    fail_one,
    in_queue_order,
    invent_one,
    lose_one,
    messages,
    move_one,
    prove,
    repeat_one,
    sent,
    swap_two,
)
from tests.interop.conftest import Pair
from tests.interop.driver import JavaDriver, Running
from tests.interop.java import wait_until
from tests.interop.peers import CLIENTS
from tests.interop.wire import wait_topic
from tests.spec import spec

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def java(any_java: JavaDriver) -> JavaDriver:
    return any_java


@pytest.fixture
def topic(pair: Pair, java: JavaDriver) -> str:
    """A topic of four queues for one test."""
    return pair.make_topic(java, f"Interop{next(_numbers)}")


def _expected(prefix: str, count: int, start: int = 0) -> list[str]:
    return [f"{prefix}-{index}" for index in range(start, start + count)]


def _pull(java: JavaDriver, topic: str, tags: str = "*") -> Events:
    return java.call("pull", topic=topic, group=f"reader-{next(_numbers)}", tags=tags)


# ---------------------------------------------------------------------------------------------------------- sending


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_java_send_is_answered_ok_and_stored_as_answered(java: JavaDriver, topic: str, mode: str) -> None:
    answers = java.call("produce", topic=topic, mode=mode, count=20, queues=4, tags="A,B", keys="k", property="colour")
    prove(all_sent_ok(20), answers, lose_one, repeat_one, fail_one)
    read = _pull(java, topic)
    prove(exactly(_expected("body", 20)), read, lose_one, repeat_one, invent_one, change_body)
    prove(agrees_with(sent(answers)), read, lose_one, move_one)
    prove(_attributes_are_kept, read, _lose_tag, _lose_property)


def _attributes_are_kept(events: Events) -> None:
    for event in messages(events):
        index = int(event["body"].split("-")[1])
        assert (event["tags"], event["keys"]) == ("AB"[index % 2], f"k{index} kall")
        assert event["properties"].get("colour") == f"colour{index}"


def _lose_tag(events: Events) -> None:
    messages(events)[3]["tags"] = None


def _lose_property(events: Events) -> None:
    del messages(events)[3]["properties"]["colour"]


def test_java_oneway_send_arrives(java: JavaDriver, topic: str) -> None:
    java.call("produce", topic=topic, mode="oneway", count=15, prefix="oneway")
    prove(exactly(_expected("oneway", 15)), _pull(java, topic), lose_one, repeat_one, change_body)


def test_java_batch_is_stored_message_by_message_in_one_queue(java: JavaDriver, topic: str) -> None:
    [answer] = java.call("produce", topic=topic, mode="batch", count=12, prefix="batch", keys="b", tags="T")
    read = _pull(java, topic)
    prove(exactly(_expected("batch", 12)), read, lose_one, repeat_one, change_body)

    def stands_together(events: Events) -> None:
        assert answer["status"] == "SEND_OK"
        places = [int(each[-16:], 16) for each in answer["offsetMsgId"].split(",")]
        assert places == [event["commitLogOffset"] for event in messages(events)]
        offsets = [(event["queueId"], event["queueOffset"]) for event in messages(events)]
        assert offsets == [(answer["queueId"], answer["queueOffset"] + index) for index in range(12)]
        assert [event["keys"] for event in messages(events)] == [f"b{index} ball" for index in range(12)]

    prove(stands_together, read, swap_two, move_one, lose_one)


def test_java_send_to_unknown_topic_creates_it(java: JavaDriver) -> None:
    fresh = f"Fresh{next(_numbers)}"
    prove(all_sent_ok(4), java.call("produce", topic=fresh, count=4), lose_one, fail_one)
    prove(exactly(_expected("body", 4)), _pull(java, fresh), lose_one, repeat_one)


def test_java_compressed_body_comes_back_whole(java: JavaDriver, topic: str) -> None:
    java.call("produce", topic=topic, count=2, size=20000, compress_over=1000, queue=1)
    read = _pull(java, topic)

    def is_whole(events: Events) -> None:
        found = messages(events)
        assert [len(event["body"]) for event in found] == [20000, 20000]
        assert all(event["storeSize"] < 2000 for event in found), "it was stored compressed"

    prove(is_whole, read, change_body, lose_one)


def test_java_sends_through_fast_port(java: JavaDriver, topic: str) -> None:
    prove(all_sent_ok(5), java.call("produce", topic=topic, count=5, vip=True), lose_one, fail_one)
    prove(exactly(_expected("body", 5)), _pull(java, topic), lose_one)


# -------------------------------------------------------------------------------------------------------- consuming


def test_java_push_consumer_gets_each_message_once(java: JavaDriver, topic: str) -> None:
    consumer = java.begin("push", topic=topic, group=f"push{next(_numbers)}", count=40, linger_ms=500)
    consumer.wait_for(lambda event: event["event"] == "started", 30)
    java.call("produce", topic=topic, count=40, queues=4)
    prove(exactly(_expected("body", 40)), consumer.result(), lose_one, repeat_one, invent_one)


def test_java_push_consumer_goes_on_where_its_group_stopped(java: JavaDriver, topic: str) -> None:
    group = f"push{next(_numbers)}"
    java.call("produce", topic=topic, count=10, queues=4)
    java.call("push", topic=topic, group=group, count=10)
    java.call("produce", topic=topic, count=10, start=10, queues=4)
    second = java.call("push", topic=topic, group=group, count=10, linger_ms=500)
    prove(exactly(_expected("body", 10, 10)), second, lose_one, repeat_one, invent_one)


def test_java_orderly_consumer_keeps_order_through_failures(java: JavaDriver, topic: str) -> None:
    java.call("produce", topic=topic, count=16, queues=4)
    read = java.call(
        "push",
        topic=topic,
        group=f"ordered{next(_numbers)}",
        orderly=True,
        fail_first=1,
        suspend_ms=50,
        count=32,
        linger_ms=300,
    )
    prove(in_queue_order, read, swap_two, _lose_first_of_a_queue)
    prove(exactly(_expected("body", 16) * 2), read, lose_one, repeat_one)


def _lose_first_of_a_queue(events: Events) -> None:
    first = messages(events)[0]
    where = (first["queueId"], first["queueOffset"])
    for event in [event for event in messages(events) if (event["queueId"], event["queueOffset"]) == where]:
        events.remove(event)


def test_java_consumers_see_only_their_tags(java: JavaDriver, topic: str) -> None:
    java.call("produce", topic=topic, count=30, queues=4, tags="A,B,C")
    wanted = [f"body-{index}" for index in range(30) if index % 3 != 1]
    pushed = java.call("push", topic=topic, group=f"tags{next(_numbers)}", tags="A || C", count=20, linger_ms=500)
    prove(exactly(wanted), pushed, lose_one, repeat_one, invent_one)
    prove(exactly(wanted), _pull(java, topic, tags="A || C"), lose_one, repeat_one, invent_one)


def test_java_pull_consumer_stores_and_resumes_offsets(java: JavaDriver, topic: str) -> None:
    group = f"pull{next(_numbers)}"
    java.call("produce", topic=topic, count=40, queues=4)
    first = java.call("pull", topic=topic, group=group, limit=4, commit=True)
    second = java.call("pull", topic=topic, group=group, resume=True)
    prove(exactly(_expected("body", 40)), first + second, lose_one, repeat_one)

    def tells_offsets(events: Events) -> None:
        values = [(event["queueId"], event["stored"], event["min"], event["max"]) for event in events]
        assert values == [(queue, 4, 0, 10) for queue in range(4)]

    def forget_offset(events: Events) -> None:
        events[0]["stored"] = -1

    prove(tells_offsets, java.call("offsets", topic=topic, group=group), forget_offset, lambda events: events.pop())


def test_java_search_by_time_finds_first_message_from_then(java: JavaDriver, topic: str) -> None:
    java.call("produce", topic=topic, count=5, queue=0, interval_ms=30)
    stored = [event["storeTimestamp"] for event in messages(_pull(java, topic))]

    def finds(events: Events) -> None:
        assert [event["at_timestamp"] for event in events] == [3]

    found = java.call("offsets", topic=topic, group="searcher", timestamp=stored[3])
    prove(finds, [event for event in found if event["queueId"] == 0], lambda events: events[0].update(at_timestamp=2))


@pytest.mark.parametrize("assign", [False, True], ids=["subscribed", "assigned"])
def test_java_lite_pull_consumer_gets_each_message_once(java: JavaDriver, topic: str, assign: bool) -> None:
    java.call("produce", topic=topic, count=20, queues=4)
    read = java.call("lite", topic=topic, group=f"lite{next(_numbers)}", count=20, assign=assign)
    prove(exactly(_expected("body", 20)), read, lose_one, repeat_one, invent_one)


def test_java_consumers_of_both_versions_share_a_group(
    pair: Pair, drivers: Callable[[str], JavaDriver], java: JavaDriver, topic: str
) -> None:
    group = f"shared{next(_numbers)}"
    others = {"namesrv": pair.namesrv.address, "topic": topic, "group": group}
    members = [drivers(version).begin("push", deadline_ms=90000, **others) for version in (CLIENTS * 2)[:2]]
    for member in members:
        member.wait_for(lambda event: event["event"] == "started", 30)
    expected: list[str] = []
    # Until the members have shared the queues out, one of them may get everything.
    for round_number in range(30):
        java.call("produce", topic=topic, count=4, queues=4, start=4 * round_number, prefix="shared")
        expected = _expected("shared", 4 * (round_number + 1))
        _wait_for_bodies(members, expected)
        if all(_had_part_of(member.events(), expected[-4:]) for member in members):
            break
    read = [event for member in members for event in member.end()]
    prove(at_least_once(expected), read, invent_one, _lose_last_body)

    def both_had_a_share(clients: list[bool]) -> None:
        assert all(clients)

    shares = [_had_part_of(member.events(), expected[-4:]) for member in members]
    prove(both_had_a_share, shares, lambda values: values.append(False))


def _wait_for_bodies(members: list[Running], expected: list[str]) -> None:
    wait_until(
        lambda: {body for member in members for body in bodies(member.events())} >= set(expected),
        what="all messages delivered",
        within_s=60,
    )


def _had_part_of(events: Events, expected: list[str]) -> bool:
    return bool(set(bodies(events)) & set(expected))


def _lose_last_body(events: Events) -> None:
    last = messages(events)[-1]["body"]
    for event in [event for event in messages(events) if event["body"] == last]:
        events.remove(event)


# --------------------------------------------------------------------------------------------- retries, delays, query


def _stored(java: JavaDriver, topic: str) -> int:
    return sum(int(event["max"]) for event in java.call("offsets", topic=topic, group="counter"))


@spec("G13")
def test_java_message_refused_again_and_again_ends_as_dead_letter(pair: Pair, java: JavaDriver, topic: str) -> None:
    group = f"refuser{next(_numbers)}"
    java.call("produce", topic=topic, count=3, queues=3, keys="r")
    consumer = java.begin("push", topic=topic, group=group, fail_first=99, max_reconsume=2, deadline_ms=90000)
    consumer.wait_for(lambda event: event["event"] == "message", 60, count=9)
    dead_letters = f"%DLQ%{group}"
    wait_topic(pair.namesrv.port, dead_letters)
    wait_until(lambda: _stored(java, dead_letters) >= 3, what="three dead letters", within_s=20, every_s=0.3)
    read = consumer.end()
    prove(exactly(_expected("body", 3) * 3), read, lose_one, repeat_one)

    def counts_up(events: Events) -> None:
        for body in _expected("body", 3):
            tries = [event for event in messages(events) if event["body"] == body]
            assert [event["reconsumeTimes"] for event in tries] == [0, 1, 2]
            assert {event["topic"] for event in tries} == {topic}, "the client shows the topic it was sent to"

    prove(counts_up, read, lose_one, lambda events: messages(events)[-1].update(reconsumeTimes=1))
    dead = java.call("pull", topic=dead_letters, group=f"undertaker{next(_numbers)}")
    prove(exactly(_expected("body", 3)), dead, lose_one, repeat_one, change_body)

    def tells_origin(events: Events) -> None:
        for event in messages(events):
            assert event["properties"].get("RETRY_TOPIC") == topic
            assert event["keys"].endswith("rall")
            assert event["properties"]["ORIGIN_MESSAGE_ID"]

    prove(tells_origin, dead, lambda events: messages(events)[0]["properties"].pop("RETRY_TOPIC"))


def test_java_message_refused_once_is_delivered_again(java: JavaDriver, topic: str) -> None:
    java.call("produce", topic=topic, count=5, queues=4)
    read = java.call("push", topic=topic, group=f"moody{next(_numbers)}", fail_first=1, count=10, linger_ms=1500)
    prove(exactly(_expected("body", 5) * 2), read, lose_one, repeat_one)


def test_java_delayed_message_comes_after_its_delay_and_not_before(java: JavaDriver, topic: str) -> None:
    consumer = java.begin("push", topic=topic, group=f"patient{next(_numbers)}", count=4, linger_ms=500)
    consumer.wait_for(lambda event: event["event"] == "started", 30)
    java.call("produce", topic=topic, count=2, delay=1, prefix="one")
    java.call("produce", topic=topic, count=2, delay=2, prefix="two")
    read = consumer.result()
    prove(exactly(_expected("one", 2) + _expected("two", 2)), read, lose_one, repeat_one)

    def waited(events: Events) -> None:
        for event in messages(events):
            delay_ms = {"one": 1000, "two": 2000}[event["body"].split("-")[0]]
            assert delay_ms <= event["storeTimestamp"] - event["bornTimestamp"] <= delay_ms + 2000, event
            assert event["properties"]["DELAY"] == str(delay_ms // 1000)

    def came_at_once(events: Events) -> None:
        messages(events)[0]["storeTimestamp"] = messages(events)[0]["bornTimestamp"] + 5

    def came_late(events: Events) -> None:
        messages(events)[0]["storeTimestamp"] += 3000

    prove(waited, read, came_at_once, came_late)


def test_java_timed_message_comes_after_its_time_and_not_before(java: JavaDriver, topic: str) -> None:
    consumer = java.begin("push", topic=topic, group=f"timed{next(_numbers)}", count=3, linger_ms=500)
    consumer.wait_for(lambda event: event["event"] == "started", 30)
    java.call("produce", topic=topic, count=3, timed_ms=2_500)
    read = consumer.result()
    prove(exactly(_expected("body", 3)), read, lose_one, repeat_one)

    def not_early(events: Events) -> None:
        for event in messages(events):
            assert event["storeTimestamp"] - event["bornTimestamp"] >= 2_500, event

    def came_early(events: Events) -> None:
        messages(events)[0]["storeTimestamp"] = messages(events)[0]["bornTimestamp"] + 2_400

    prove(not_early, read, came_early)


def test_java_queries_find_messages_by_key_unique_key_and_id(java: JavaDriver, topic: str) -> None:
    answers = sent(java.call("produce", topic=topic, count=12, queues=4, keys="key", prefix="asked"))
    by_common_key = java.call("key", topic=topic, key="keyall")
    prove(exactly(_expected("asked", 12)), by_common_key, lose_one, invent_one)
    by_key = java.call("key", topic=topic, key="key7")
    prove(exactly(["asked-7"]), by_key, lose_one, change_body)
    by_unique_key = java.call("unique", topic=topic, unique=answers[5]["msgId"])
    prove(exactly(["asked-5"]), by_unique_key, lose_one, change_body)
    by_id = java.call("view", topic=topic, offset_id=answers[3]["offsetMsgId"])
    prove(exactly(["asked-3"]), by_id, lose_one, change_body)


def test_java_query_by_key_keeps_to_time_and_number(java: JavaDriver, topic: str) -> None:
    java.call("produce", topic=topic, count=2, queue=0, keys="key", interval_ms=2500)
    stored = sorted(event["storeTimestamp"] for event in messages(_pull(java, topic)))
    # The index knows whole seconds; a broker may round to either side.
    late = java.call("key", topic=topic, key="keyall", begin_ms=stored[1] - 1200)
    prove(exactly(["body-1"]), late, lose_one, invent_one)
    early = java.call("key", topic=topic, key="keyall", end_ms=stored[0] + 1200)
    prove(exactly(["body-0"]), early, lose_one, invent_one)
    few = java.call("key", topic=topic, key="keyall", max=1)
    prove(lambda events: _has_count(events, 1), few, lose_one, repeat_one)


def _has_count(events: Events, count: int) -> None:
    assert len(messages(events)) == count


def test_java_client_with_binary_headers_sends_and_consumes(
    pair: Pair, java: JavaDriver, topic: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    options = ["-Drocketmq.serialize.type=ROCKETMQ"]
    directory = tmp_path_factory.mktemp("binary")
    with JavaDriver(java.version, directory, jvm_options=options, namesrv=pair.namesrv.address, poll_ms=1000) as binary:
        prove(all_sent_ok(8), binary.call("produce", topic=topic, count=8, queues=4), lose_one, fail_one)
        read = binary.call("push", topic=topic, group=f"binary{next(_numbers)}", count=8)
        prove(exactly(_expected("body", 8)), read, lose_one, repeat_one)
