"""ReceiveMessage: which messages come, in which form, when, and what becomes of those that a client does not take."""

from random import Random

import pytest

from tandemq.broker.features.pulls import processor as pulls
from tandemq.config.settings import ProxyConfig
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import encode_properties
from tandemq.model.pop import INVISIBLE_MS_MAX
from tandemq.proxy import receiving
from tandemq.proxy.protocol import messaging_pb2 as pb
from tandemq.proxy.receiving import parse_pop
from tandemq.proxy.status import CallRefused
from tests.spec import spec
from tests.unit.proxy.cluster import Client, ProxyCluster, code, message, receive_request, resource

INVISIBLE_MS_MIN = ProxyConfig().invisible_ms_min


def begun(*bodies: bytes, groups: int = 1, tag: str = "") -> tuple[ProxyCluster, Client]:
    """Return a cluster with a topic of some messages, and a client."""
    cluster = ProxyCluster(groups=groups)
    cluster.topic("T")
    client = cluster.client()
    for body in bodies:
        assert code(client.send(message("T", body, tag=tag)).status) == "OK"
    return cluster, client


def stored_by_remoting(cluster: ProxyCluster, topic: str, body: bytes, born_ms: int = 0, **properties: str) -> None:
    """Store a message of a client that speaks remoting."""
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": str(born_ms), "h": "0"}
    fields |= {"i": encode_properties(properties), "j": "0", "k": "false", "m": "false"}
    answer = cluster.ask(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=body))
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def test_the_answer_is_a_status_the_messages_and_the_time() -> None:
    _, client = begun(b"1", b"2", b"3")
    found = client.receive("G", "T")
    assert found.kinds == ["status", *["message"] * 3, "delivery_timestamp"]
    assert found.code == "OK" and sorted(found.bodies) == [b"1", b"2", b"3"]
    for each in found.messages:
        assert each.topic == resource("T")
        assert each.system_properties.delivery_attempt == 1
        assert len(each.system_properties.receipt_handle.split(" ")) == 9
    nothing = client.receive("G", "T")
    assert nothing.kinds == ["status", "delivery_timestamp"] and nothing.code == "MESSAGE_NOT_FOUND"


def test_invalid_requests_are_refused() -> None:
    cluster, client = begun(b"1")
    cases = {
        "ILLEGAL_TOPIC": [receive_request("G", name) for name in ("", "a b", "rmq_sys_x", "TBW102", "t" * 128)],
        "ILLEGAL_CONSUMER_GROUP": [receive_request(name, "T") for name in ("", "a b", "CID_RMQ_SYS_TRANS", "g" * 256)],
        "ILLEGAL_INVISIBLE_TIME": [
            receive_request("G", "T", invisible_ms=ms)
            for ms in (None, 0, -1, INVISIBLE_MS_MIN - 1, INVISIBLE_MS_MAX + 1)
        ],
        "ILLEGAL_FILTER_EXPRESSION": [receive_request("G", "T", expression="a = ", kind=pb.FilterType.SQL)],
        "TOPIC_NOT_FOUND": [receive_request("G", "Absent")],
        "BAD_REQUEST": [receive_request("G", "T", broker="broker-z")],
    }
    forged = receive_request("G", "T")
    forged.invisible_duration.seconds = (1 << 63) - 1
    cases["ILLEGAL_INVISIBLE_TIME"].append(forged)
    for expected, requests in cases.items():
        for request in requests:
            call = client.start("ReceiveMessage", request)
            cluster.until(lambda call=call: call.status is not None)  # type: ignore[misc]
            responses = [pb.ReceiveMessageResponse.FromString(data) for data in call.messages]
            assert [response.WhichOneof("content") for response in responses] == ["status", "delivery_timestamp"]
            assert code(responses[0].status) == expected, (str(request), responses[0].status.message)
    assert cluster.client("").receive("G", "T").code == "CLIENT_ID_REQUIRED"
    assert client.receive("G", "T").bodies == [b"1"]


def test_the_shortest_invisible_time_is_a_setting() -> None:
    cluster = ProxyCluster(proxy={"invisible_ms_min": 3})
    cluster.topic("T")
    client = cluster.client()
    assert client.receive("G", "T", invisible_ms=2).code == "ILLEGAL_INVISIBLE_TIME"
    assert client.receive("G", "T", invisible_ms=3).code == "MESSAGE_NOT_FOUND"


@pytest.mark.parametrize(("ms", "word"), [(INVISIBLE_MS_MIN - 1, "small"), (INVISIBLE_MS_MAX + 1, "large")])
def test_an_invisible_time_out_of_bounds_is_told_with_the_bounds(ms: int, word: str) -> None:
    with pytest.raises(CallRefused) as refused:
        parse_pop(receive_request("G", "T", invisible_ms=ms), INVISIBLE_MS_MIN)
    assert str(refused.value) == f"the invisibleTime is too {word}: {ms}, not 10000 to 43200000 ms"


def test_odd_values_of_a_request_count_as_the_nearest_valid_ones() -> None:
    _, client = begun(*[b"%d" % number for number in range(40)])
    for batch, expected in ((0, 1), (-5, 1), (3, 3), (1_000_000, 32)):
        found = client.receive("G", "T", batch=batch)
        assert len(found.messages) == expected, batch
    forged = receive_request("H", "T")
    forged.long_polling_timeout.seconds = -(1 << 63)
    assert client.start("ReceiveMessage", forged).status is None


def test_a_poll_waits_until_a_message_arrives() -> None:
    cluster, client = begun()
    waiting = client.receiving("G", "T", poll_ms=10_000)
    cluster.run(4_000)
    assert waiting.call.status is None and not waiting.kinds
    other = cluster.client("c-2")
    other.send(message("T", b"now"))
    cluster.until(lambda: waiting.call.status is not None, 300)
    assert waiting.bodies == [b"now"] and waiting.code == "OK"


def test_polls_share_the_connection_to_the_broker_and_none_waits_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their answers together are more than the broker sends on one connection in a turn."""
    monkeypatch.setattr(pulls, "LINK_BYTES_MAX", 200_000)
    cluster, client = begun(*[Random(number).randbytes(20_000) for number in range(60)])
    found = [client.receiving("G", "T", batch=4, poll_ms=20_000) for _ in range(12)]
    cluster.run(1_000)
    assert [len(each.messages) for each in found] == [4] * 12


def test_a_poll_ends_at_its_time_or_just_before_the_clients_deadline() -> None:
    cluster, client = begun()
    for asked_ms, timeout_ms, expected_ms in (
        (2_000, 0, 2_000),
        (None, 0, 15_000),
        (60_000, 0, 20_000),
        (20_000, 6_000, 5_500),
    ):
        start_us = cluster.world.now_us
        found = client.receive("G", "T", poll_ms=asked_ms, timeout_ms=timeout_ms)
        took_ms = (cluster.world.now_us - start_us) // 1000
        assert found.code == "MESSAGE_NOT_FOUND" and expected_ms - 50 <= took_ms <= expected_ms + 300, asked_ms


def test_a_client_gets_the_tags_that_it_asks_for() -> None:
    cluster, client = begun()
    for tag in ("a", "b", "c", ""):
        client.send(message("T", tag.encode() or b"none", tag=tag))
    assert sorted(client.receive("G", "T", expression="a || c").bodies) == [b"a", b"c"]
    assert sorted(client.receive("H", "T", expression="").bodies) == [b"a", b"b", b"c", b"none"]
    assert client.receive("I", "T", expression="x").code == "MESSAGE_NOT_FOUND"
    cluster.run(40_000)
    assert sorted(client.receive("G", "T", expression="b").bodies) == [], "skipped messages do not come back"


def test_tags_with_the_same_hash_are_told_apart_and_do_not_come_again() -> None:
    """The broker compares hashes: "Aa" and "BB" have the same."""
    cluster, client = begun()
    client.send(message("T", b"1", tag="Aa"), message("T", b"2", tag="BB"))
    found = client.receive("G", "T", expression="Aa")
    assert found.bodies == [b"1"]
    client.ack("G", "T", found.messages)
    cluster.run(35_000)
    assert client.receive("G", "T", expression="Aa || BB").code == "MESSAGE_NOT_FOUND"


def test_a_client_gets_the_messages_that_its_sql_selects() -> None:
    _, client = begun()
    for number in range(4):
        client.send(message("T", b"%d" % number, user={"n": str(number)}, tag="t"))
    found = client.receive("G", "T", expression="n > 1 AND TAGS = 't'", kind=pb.FilterType.SQL)
    assert sorted(found.bodies) == [b"2", b"3"]


def test_a_client_that_names_no_broker_gets_the_messages_of_all() -> None:
    _, client = begun(*[b"%d" % number for number in range(16)], groups=2)
    first, second = client.receive("G", "T", broker=""), client.receive("G", "T", broker="")
    assert len(first.messages) == len(second.messages) == 8
    assert len({*first.bodies, *second.bodies}) == 16


def test_the_queue_that_a_client_names_does_not_matter() -> None:
    _, client = begun(*[b"%d" % number for number in range(8)])
    assert len(client.receive("G", "T", queue_id=3).messages) == 8


@spec("X02")
def test_messages_come_again_with_the_next_attempt() -> None:
    cluster, client = begun(b"1")
    first = client.receive("G", "T", invisible_ms=10_000)
    cluster.run(9_000)
    assert client.receive("G", "T").code == "MESSAGE_NOT_FOUND"
    again = client.receive("G", "T", poll_ms=10_000)
    assert again.bodies == [b"1"]
    one, two = first.messages[0].system_properties, again.messages[0].system_properties
    assert two.delivery_attempt == 2 and two.message_id == one.message_id and two.receipt_handle != one.receipt_handle
    assert again.messages[0].topic == resource("T")
    client.ack("G", "T", again.messages)
    cluster.run(60_000)
    assert client.receive("G", "T").code == "MESSAGE_NOT_FOUND"


@spec("X02")
def test_a_message_whose_attempts_are_used_up_is_a_dead_letter() -> None:
    cluster, client = begun(b"1")
    cluster.group("G", retries=1)
    for attempt in (1, 2):
        found = client.receive("G", "T", invisible_ms=10_000, poll_ms=20_000)
        assert [each.system_properties.delivery_attempt for each in found.messages] == [attempt]
    assert client.receive("G", "T", poll_ms=20_000).code == "MESSAGE_NOT_FOUND"
    assert [stored.body for stored in cluster.stored("%DLQ%G", queues=1)] == [b"1"]


def test_a_message_beyond_lowered_attempts_is_a_dead_letter_once_and_does_not_come_again() -> None:
    cluster, client = begun(b"1")
    cluster.group("G", retries=5)
    for _ in range(3):
        assert client.receive("G", "T", invisible_ms=10_000, poll_ms=20_000).bodies == [b"1"]
    cluster.run(12_000)  # it lies in the retry topic for the fourth time
    cluster.group("G", retries=1)
    cluster.run(21_000)
    assert client.receive("G", "T").code == "MESSAGE_NOT_FOUND"
    assert [stored.body for stored in cluster.stored("%DLQ%G", queues=1)] == [b"1"]
    cluster.run(60_000)
    assert client.receive("G", "T").code == "MESSAGE_NOT_FOUND"


def test_a_message_that_cannot_become_a_dead_letter_is_not_lost() -> None:
    cluster, client = begun(b"1")
    cluster.group("G", retries=5)
    for _ in range(3):
        assert client.receive("G", "T", invisible_ms=10_000, poll_ms=20_000).bodies == [b"1"]
    cluster.run(12_000)
    cluster.group("G", retries=1)
    cluster.run(21_000)
    cluster.topic("%DLQ%G", queues=1, perm=4)
    assert client.receive("G", "T").code == "MESSAGE_NOT_FOUND"
    assert not cluster.stored("%DLQ%G", queues=1)
    cluster.topic("%DLQ%G", queues=1, perm=6)
    cluster.run(35_000)
    client.receive("G", "T")
    cluster.run(1_000)
    assert [stored.body for stored in cluster.stored("%DLQ%G", queues=1)] == [b"1"]


def test_ordered_groups_get_one_batch_of_a_queue_at_a_time() -> None:
    cluster = ProxyCluster()
    cluster.topic("F", kind="FIFO", queues=2)
    cluster.group("G", is_ordered=True)
    client = cluster.client()
    for number in range(4):
        client.send(message("F", b"%d" % number, message_group="g"))
    first = client.receive("G", "F", batch=2, attempt_id="a-1")
    assert first.bodies == [b"0", b"1"]
    assert client.receive("G", "F", batch=2, attempt_id="a-2").code == "MESSAGE_NOT_FOUND"
    assert client.receive("G", "F", batch=2, attempt_id="a-1").bodies == [b"0", b"1"], "the same attempt"
    again = client.receive("G", "F", batch=2, attempt_id="a-1")
    assert [each.system_properties.delivery_attempt for each in again.messages] == [1, 1]
    client.ack("G", "F", again.messages)
    assert client.receive("G", "F", batch=2, attempt_id="a-3").bodies == [b"2", b"3"]
    cluster.run(31_000)
    late = client.receive("G", "F", batch=2, attempt_id="a-4")
    assert late.bodies == [b"2", b"3"]
    assert [each.system_properties.delivery_attempt for each in late.messages] == [2, 2]


# What remoting clients have stored.


def test_invented_handles_of_producers_do_not_count() -> None:
    cluster, client = begun()
    for number, text in enumerate(("x", "", "0 1 2 3 1 broker-a 0 0", "0 1 2 3 0 broker-b 9 9")):
        stored_by_remoting(cluster, "T", b"%d" % number, POP_CK=text)
    found = client.receive("G", "T")
    assert len(found.messages) == 4
    assert {code(entry.status) for entry in client.ack("G", "T", found.messages).entries} == {"OK"}
    cluster.run(60_000)
    assert client.receive("G", "T").code == "MESSAGE_NOT_FOUND"


def test_messages_of_remoting_clients_with_odd_values_are_received() -> None:
    cluster, client = begun()
    for born_ms in (-(1 << 63), (1 << 63) - 1):
        stored_by_remoting(cluster, "T", b"x", born_ms, BORN_TIMESTAMP="-9", KEYS=" ", TIMER_DEQUEUE_MS="x")
    assert client.receive("G", "T").bodies == [b"x", b"x"]


# Messages that a client does not take.


def test_messages_of_a_call_that_the_client_gave_up_come_to_others_soon() -> None:
    cluster, client = begun()
    waiting = client.receiving("G", "T", poll_ms=20_000)
    cluster.run(1_000)
    client.cancel(waiting.call)
    cluster.run(100)
    client.send(message("T", b"1"))
    other = cluster.client("c-2")
    assert other.receive("G", "T", poll_ms=5_000).bodies == [b"1"]
    assert cluster.broker.node is not None


@spec("X02")
def test_messages_of_a_lost_connection_come_to_others_soon() -> None:
    cluster, client = begun()
    waiting = client.receiving("G", "T", poll_ms=20_000, is_renewed=True)
    cluster.run(1_000)
    client.lose()
    other = cluster.client("c-2")
    other.send(message("T", b"1"))
    assert waiting.call.status == -1
    assert other.receive("G", "T", poll_ms=5_000).bodies == [b"1"]


def test_messages_that_are_lost_with_a_connection_come_to_others_soon() -> None:
    """The client connects again, and lives: its messages would be renewed for hours."""
    cluster, client = begun()
    client.consume("G", "T")
    waiting = client.receiving("G", "T", poll_ms=20_000, is_renewed=True)
    cluster.run(1_000)
    cluster.network.block(cluster.proxy.ip, client.process.ip)
    other = cluster.client("c-2")
    other.send(message("T", b"1"))
    cluster.run(100)
    assert waiting.call.status is None
    client.lose()
    cluster.network.heal()
    again = cluster.client(client.client_id)
    again.consume("G", "T")
    assert other.receive("G", "T", poll_ms=5_000).bodies == [b"1"]


def test_messages_that_have_arrived_stay_with_a_client_that_connects_again() -> None:
    cluster, client = begun(b"1")
    client.consume("G", "T")
    found = client.receive("G", "T", is_renewed=True)
    cluster.run(100)
    client.lose()
    again = cluster.client(client.client_id)
    again.consume("G", "T")
    cluster.run(50_000)
    other = cluster.client("c-2")
    assert other.receive("G", "T").code == "MESSAGE_NOT_FOUND"
    again.consume("G", "T")
    cluster.run(30_000)
    assert code(again.ack("G", "T", found.messages).status) == "OK"


def test_messages_that_a_client_does_not_read_come_to_others() -> None:
    bodies = [Random(number).randbytes(20_000) for number in range(3)]
    for is_renewed in (False, True):
        cluster, _ = begun(*bodies)
        slow = cluster.client("c-2", window=1_000)
        found = slow.receiving("G", "T", poll_ms=0, is_renewed=is_renewed)
        cluster.run(1_000)
        assert found.call.status is None and not found.messages
        slow.cancel(found.call)
        other = cluster.client("c-3")
        taken = [body for _ in bodies for body in other.receive("G", "T", poll_ms=3_000).bodies]
        assert sorted(taken) == sorted(bodies)


def test_messages_that_a_client_does_not_read_for_30s_come_to_others() -> None:
    cluster, _ = begun(Random(1).randbytes(20_000))
    slow = cluster.client("c-2", window=1_000)
    found = slow.receiving("G", "T", poll_ms=0, is_renewed=True)
    cluster.run(25_000)
    other = cluster.client("c-3")
    assert other.receive("G", "T").code == "MESSAGE_NOT_FOUND"
    assert len(other.receive("G", "T", poll_ms=20_000).messages) == 1
    assert found.call.status == -1


def test_messages_that_inflate_beyond_the_limit_come_in_further_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "BODIES_BYTES_MAX", 100_000)
    bodies = [b"%d" % number * 30_000 for number in range(8)]
    cluster, client = begun(*bodies)
    first = client.receive("G", "T", invisible_ms=60_000)
    assert len(first.messages) == 3
    cluster.run(3_000)
    rest = [body for _ in range(6) for body in client.receive("G", "T", poll_ms=5_000, invisible_ms=60_000).bodies]
    assert sorted([*first.bodies, *rest]) == bodies


# Failover.


def test_a_poll_at_a_master_that_has_just_started_gets_its_messages_at_once() -> None:
    """It arrives while the broker reads the checkpoints of its last pops."""
    cluster, client = begun(b"1")
    cluster.broker.restart_after(1_000)
    start_us = cluster.world.now_us
    found = client.receive("G", "T", poll_ms=20_000)
    assert found.bodies == [b"1"] and cluster.world.now_us - start_us < 2_500_000


def test_a_poll_outlives_a_restart_of_the_master() -> None:
    cluster, client = begun()
    waiting = client.receiving("G", "T", poll_ms=10_000)
    start_us = cluster.world.now_us
    cluster.run(3_000)
    cluster.broker.restart_after(2_000)
    other = cluster.client("c-2")
    cluster.run(4_000)
    assert waiting.call.status is None
    assert code(other.send(message("T", b"1")).status) == "OK"
    cluster.until(lambda: waiting.call.status is not None)
    assert waiting.bodies == [b"1"]
    cluster.broker.restart_after(2_000)
    start_us = cluster.world.now_us
    assert client.receive("G", "T", poll_ms=10_000).code == "MESSAGE_NOT_FOUND"
    assert cluster.world.now_us - start_us < 10_500_000, "a second attempt has the rest of the time"


@spec("X03")
def test_popped_messages_survive_a_restart_of_the_master() -> None:
    cluster, client = begun(b"1", b"2")
    found = client.receive("G", "T", invisible_ms=20_000)
    cluster.broker.restart_after(2_000)
    cluster.run(3_000)
    client.ack("G", "T", found.messages[:1])
    assert client.receive("G", "T", poll_ms=10_000).code == "MESSAGE_NOT_FOUND"
    assert client.receive("G", "T", poll_ms=20_000).bodies == [found.bodies[1]]


def test_a_poll_without_a_master_fails_after_its_tries() -> None:
    cluster, client = begun(b"1")
    cluster.broker.kill()
    start_us = cluster.world.now_us
    assert client.receive("G", "T", poll_ms=20_000).code == "PROXY_TIMEOUT"
    assert 4_500_000 < cluster.world.now_us - start_us < 11_000_000
