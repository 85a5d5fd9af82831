"""Transactions: half messages, their ends at any proxy, and the checks of those that nobody has ended."""

from random import Random

from tandemq.proxy.protocol import messaging_pb2 as pb
from tests.unit.proxy.cluster import Client, ProxyCluster, code, duration, message

HALF = pb.MessageType.TRANSACTION
COMMIT, ROLLBACK = pb.TransactionResolution.COMMIT, pb.TransactionResolution.ROLLBACK
CHECK = pb.TransactionSource.SOURCE_SERVER_CHECK


def begun(topic: str = "X", proxies: int = 1) -> tuple[ProxyCluster, Client]:
    cluster = ProxyCluster(proxies=proxies, transaction_timeout_ms=2_000, transaction_check_interval_ms=3_000)
    cluster.topic(topic, kind="TRANSACTION")
    return cluster, cluster.client()


def half(client: Client, body: bytes = b"1", topic: str = "X") -> str:
    """Send a half message and return the id of its transaction."""
    response = client.send(message(topic, body, message_type=HALF, user={"a": "b"}, tag="t"))
    assert code(response.status) == "OK" and response.entries[0].transaction_id
    return response.entries[0].transaction_id


def test_a_half_message_is_invisible_until_it_is_committed() -> None:
    cluster, client = begun()
    transaction = half(client)
    cluster.run(1_000)
    assert client.receive("G", "X").code == "MESSAGE_NOT_FOUND"
    assert code(client.end_transaction("X", transaction, COMMIT).status) == "OK"
    (found,) = client.receive("G", "X", poll_ms=2_000).messages
    assert found.body == b"1" and found.user_properties == {"a": "b"}
    assert found.system_properties.tag == "t" and found.system_properties.message_type == HALF


def test_a_message_that_is_rolled_back_never_comes() -> None:
    cluster, client = begun()
    stream = client.produce("X")
    assert code(client.end_transaction("X", half(client), ROLLBACK).status) == "OK"
    cluster.run(20_000)
    assert client.receive("G", "X").code == "MESSAGE_NOT_FOUND" and not stream.checks


def test_any_proxy_can_end_a_transaction_also_after_a_restart() -> None:
    cluster, client = begun(proxies=2)
    first, second, third = half(client), half(client), half(client)
    other = cluster.client("c-2", proxy=1)
    assert code(other.end_transaction("X", first, COMMIT).status) == "OK"
    cluster.proxy.kill()
    assert code(other.end_transaction("X", second, COMMIT).status) == "OK"
    cluster.proxy.start()
    assert code(cluster.client().end_transaction("X", third, COMMIT).status) == "OK"
    cluster.run(1_000)
    assert len(other.receive("G", "X").messages) == 3


def test_invalid_ends_are_refused() -> None:
    cluster, client = begun()
    transaction = half(client)
    offset, log_offset, broker = transaction.split("-", 2)
    big = 1 << 63
    cases = {
        "INVALID_TRANSACTION_ID": [
            *("", " ", "x", "1-2", "1-2-", "-1-2-broker-a", f"{offset}-x-{broker}", f"{'9' * 20}-0-{broker}"),
            *(f"{big}-{log_offset}-{broker}", f"{offset}-{big}-{broker}", f"1-2-{'b' * 500}"),
        ],
        "BAD_REQUEST": [f"{offset}-{log_offset}-broker-z"],
    }
    for expected, texts in cases.items():
        for text in texts:
            assert code(client.end_transaction("X", text, COMMIT).status) == expected, text
    none = pb.TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
    assert code(client.end_transaction("X", transaction, none).status) == "BAD_REQUEST"
    assert code(client.end_transaction("rmq_sys_x", transaction, COMMIT).status) == "ILLEGAL_TOPIC"
    for text in (f"{offset}-{int(log_offset) + 1}-{broker}", f"{int(offset) + 1}-{log_offset}-{broker}"):
        assert code(client.end_transaction("X", text, COMMIT).status) not in ("OK", "PROXY_TIMEOUT"), text
    cluster.run(1_000)
    assert client.receive("G", "X").code == "MESSAGE_NOT_FOUND"


def test_a_transaction_of_another_topic_is_not_ended() -> None:
    cluster, client = begun()
    cluster.topic("Y", kind="TRANSACTION")
    transaction = half(client)
    assert code(client.end_transaction("Y", transaction, COMMIT).status) != "OK"
    cluster.run(1_000)
    assert client.receive("G", "X").code == client.receive("G", "Y").code == "MESSAGE_NOT_FOUND"


def test_a_check_reaches_the_producer_and_its_answer_ends_the_transaction() -> None:
    cluster, client = begun()
    stream = client.produce("X")
    body = Random(1).randbytes(3_000) + bytes(9_000)
    half(client, body)
    took_ms = cluster.until(lambda: stream.checks)
    assert 1_500 <= took_ms <= 8_000
    (check,) = stream.checks
    assert check.message.body == body and check.message.topic.name == "X"
    assert check.message.user_properties == {"a": "b"} and check.message.system_properties.tag == "t"
    assert code(client.end_transaction("X", check.transaction_id, COMMIT, CHECK).status) == "OK"
    assert client.receive("G", "X", poll_ms=2_000).bodies == [body]
    cluster.run(10_000)
    assert len(stream.checks) == 1


def test_checks_go_on_until_the_producer_decides() -> None:
    cluster, client = begun()
    stream = client.produce("X")
    half(client)
    cluster.until(lambda: len(stream.checks) == 3)
    assert len({check.message.system_properties.message_id for check in stream.checks}) == 1
    assert code(client.end_transaction("X", stream.checks[-1].transaction_id, ROLLBACK, CHECK).status) == "OK"
    cluster.run(10_000)
    assert len(stream.checks) == 3 and client.receive("G", "X").code == "MESSAGE_NOT_FOUND"


def test_the_first_id_of_a_transaction_ends_it_after_checks_too() -> None:
    cluster, client = begun()
    stream = client.produce("X")
    transaction = half(client)
    cluster.until(lambda: len(stream.checks) == 2)
    assert code(client.end_transaction("X", transaction, COMMIT).status) == "OK"
    assert client.receive("G", "X", poll_ms=2_000).bodies == [b"1"]
    cluster.run(10_000)
    assert len(stream.checks) == 2 and client.receive("G", "X").code == "MESSAGE_NOT_FOUND"


def test_the_first_check_comes_when_the_client_wants_it() -> None:
    cluster, client = begun()
    stream = client.produce("X")
    client.send(message("X", message_type=HALF, orphaned_transaction_recovery_duration=duration(20_000)))
    cluster.run(18_000)
    assert not stream.checks
    cluster.until(lambda: stream.checks, 10_000)


def test_a_check_goes_to_a_producer_of_the_topic_and_to_no_other_client() -> None:
    cluster, client = begun()
    cluster.topic("Y", kind="TRANSACTION")
    first, second = client.produce("X", "Y"), cluster.client("c-2").produce("X")
    others = [cluster.client("c-3").produce("Y"), cluster.client("c-4").consume("G", "X")]
    for _ in range(6):
        half(client)
    cluster.until(lambda: len(first.checks) + len(second.checks) >= 6)
    assert not any(stream.checks for stream in others)


def test_a_check_finds_a_producer_that_has_connected_to_another_proxy() -> None:
    cluster, client = begun(proxies=2)
    client.produce("X")
    half(client)
    cluster.proxy.kill()
    stream = cluster.client(proxy=1).produce("X")
    cluster.until(lambda: stream.checks)
    assert stream.checks[0].message.body == b"1"


def test_a_proxy_without_producers_of_a_topic_leaves_its_checks_to_others() -> None:
    cluster, client = begun(proxies=2)
    stream = client.produce("X")
    client.end_transaction("X", half(client), ROLLBACK)
    stream.end()
    cluster.run(40_000)
    moved = cluster.client("c-2", proxy=1)
    other = moved.produce("X")
    for _ in range(10):
        half(moved)
    cluster.until(lambda: other.checks)
    cluster.run(500)
    assert len({check.message.system_properties.message_id for check in other.checks}) == 10, "at the first check"


def test_checks_survive_a_restart_of_the_master() -> None:
    cluster, client = begun()
    stream = client.produce("X")
    half(client)
    cluster.broker.restart_after(3_000)
    cluster.until(lambda: stream.checks, 60_000)
    assert code(client.end_transaction("X", stream.checks[0].transaction_id, COMMIT, CHECK).status) == "OK"
    assert client.receive("G", "X", poll_ms=2_000).bodies == [b"1"]


def test_a_producer_that_connects_while_there_is_no_master_is_asked_later() -> None:
    cluster, client = begun(proxies=2)
    half(client)
    client.lose()
    cluster.broker.kill()
    producer = cluster.client("c-2", proxy=1).produce("X")
    cluster.run(12_000)
    assert producer.call.status is None, "its settings were taken"
    cluster.broker.start()
    cluster.until(lambda: producer.checks)


def test_the_end_of_a_transaction_waits_for_a_master_that_restarts() -> None:
    cluster, client = begun()
    transaction = half(client)
    cluster.broker.restart_after(3_000)
    assert code(client.end_transaction("X", transaction, COMMIT).status) == "OK"
    assert client.receive("G", "X", poll_ms=5_000).bodies == [b"1"]


def test_a_topic_with_a_namespace_is_checked_as_the_client_knows_it() -> None:
    cluster, client = begun("ns%X")
    stream = client.produce("ns%X")
    half(client, topic="ns%X")
    cluster.until(lambda: stream.checks)
    topic = stream.checks[0].message.topic
    assert (topic.resource_namespace, topic.name) == ("ns", "X")
