"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue: what ends, what comes back, what is refused."""

from tandemq.model.pop import INVISIBLE_MS_MAX
from tandemq.proxy.acknowledging import ENTRIES_MAX
from tandemq.proxy.protocol import messaging_pb2 as pb
from tests.unit.proxy.cluster import Client, ProxyCluster, ack_request, code, message, resource

LATER_MS = 40_000
"""After it a message with the invisible time of 30 s has come back."""


def received(*bodies: bytes, **more: int) -> tuple[ProxyCluster, Client, list[pb.Message]]:
    """Return a cluster, a client, and the messages that it has received."""
    cluster = ProxyCluster()
    cluster.topic("T")
    client = cluster.client()
    for body in bodies:
        client.send(message("T", body))
    found = client.receive("G", "T", **more)
    assert len(found.messages) == len(bodies)
    return cluster, client, found.messages


def with_handle(handle: str) -> pb.Message:
    return message("T", receipt_handle=handle)


def outcomes(response: pb.AckMessageResponse) -> list[str]:
    return [code(entry.status) for entry in response.entries]


def test_acknowledged_messages_do_not_come_back() -> None:
    cluster, client, messages = received(b"1", b"2", b"3")
    (kept,) = (each for each in messages if each.body == b"2")
    response = client.ack("G", "T", [each for each in messages if each is not kept])
    assert code(response.status) == "OK" and outcomes(response) == ["OK", "OK"]
    cluster.run(LATER_MS)
    assert client.receive("G", "T").bodies == [b"2"]


def test_any_client_and_any_proxy_can_acknowledge() -> None:
    cluster = ProxyCluster(proxies=2)
    cluster.topic("T")
    client, other = cluster.client(), cluster.client("c-2", proxy=1)
    client.send(message("T"))
    messages = client.receive("G", "T").messages
    cluster.proxy.kill()
    assert outcomes(other.ack("G", "T", messages)) == ["OK"]
    cluster.run(LATER_MS)
    assert other.receive("G", "T").code == "MESSAGE_NOT_FOUND"


def test_each_entry_has_its_outcome() -> None:
    _, client, messages = received(b"1", b"2")
    given = [messages[0], with_handle("x"), messages[1]]
    response = client.ack("G", "T", given)
    assert code(response.status) == "MULTIPLE_RESULTS"
    assert outcomes(response) == ["OK", "INVALID_RECEIPT_HANDLE", "OK"]
    assert [entry.receipt_handle for entry in response.entries] == [m.system_properties.receipt_handle for m in given]
    assert [entry.message_id for entry in response.entries] == [m.system_properties.message_id for m in given]
    assert outcomes(client.ack("G", "T", messages)) == ["OK", "OK"], "a repeated one does no harm"


def test_requests_that_name_nothing_valid_are_refused() -> None:
    _, client, messages = received(b"1")
    cases = {
        "BAD_REQUEST": [ack_request("G", "T", []), ack_request("G", "T", messages * (ENTRIES_MAX + 1))],
        "ILLEGAL_TOPIC": [ack_request("G", "", messages), ack_request("G", "rmq_sys_x", messages)],
        "ILLEGAL_CONSUMER_GROUP": [ack_request("", "T", messages), ack_request("a b", "T", messages)],
    }
    for expected, requests in cases.items():
        for request in requests:
            response = client.call("AckMessage", request, pb.AckMessageResponse)
            assert code(response.status) == expected and not response.entries


def test_an_expired_handle_is_invalid() -> None:
    cluster, client, messages = received(b"1", invisible_ms=10_000)
    cluster.run(10_500)
    assert outcomes(client.ack("G", "T", messages)) == ["INVALID_RECEIPT_HANDLE"]
    changed = client.change("G", "T", messages[0], 1_000)
    assert code(changed.status) == "INVALID_RECEIPT_HANDLE"
    assert changed.status.message.startswith("INVALID_RECEIPT_HANDLE: it has expired "), (
        "applications look for the word"
    )
    assert client.receive("G", "T", poll_ms=5_000).bodies == [b"1"]


def test_forged_handles_are_invalid_and_end_nothing() -> None:
    cluster, client, messages = received(b"1")
    handle = messages[0].system_properties.receipt_handle
    start, pop, invisible, revive, kind, broker, queue, offset, log = handle.split(" ")
    forged = {
        "INVALID_RECEIPT_HANDLE": [
            "",
            " " * 8,
            "x" * 2_000,
            f"{start} {pop} {invisible} {revive} {kind} {broker} {queue}",
            f"{start} {pop} {invisible} {revive} 3 {broker} {queue} {offset} {log}",
            f"{start} {pop} {invisible} {revive} {kind} {broker} {queue} {offset} -1",
            f"{start} {pop} {invisible} {revive} {kind} {broker} {queue} {offset} {'9' * 30}",
            f"{start} {pop} {invisible} {revive} {kind} {broker} 77 {offset} {log}",
            f"{start} {pop} {invisible} {revive} {kind} {broker} {queue} 77 {log}",
            f"{start} {pop} {invisible} {revive} {kind} {broker} {queue} {(1 << 63) - 1} {log}",
        ],
        "BAD_REQUEST": [
            f"{start} {pop} {invisible} {revive} {kind} broker-z {queue} {offset} {log}",
            f"{start} {pop} {invisible} {revive} {kind} {'b' * 900} {queue} {offset} {log}",
        ],
        "INTERNAL_SERVER_ERROR": [
            f"{start} {pop} {invisible} 77 {kind} {broker} {queue} {offset} {log}",
            f"{start} {'9' * 19} {'9' * 19} {revive} {kind} {broker} {queue} {offset} {log}",
            f"{start} {pop} {10**15} {revive} {kind} {broker} {queue} {offset} {log}",
            f"{start} {pop} {invisible} {revive} {kind} {broker} {queue} {'9' * 19} {log}",
        ],
    }
    for expected, texts in forged.items():
        for text in texts:
            assert outcomes(client.ack("G", "T", [with_handle(text)])) == [expected], text
            assert code(client.change("G", "T", with_handle(text), 1_000).status) == expected, text
    assert code(client.send(message("T", b"2")).status) == "OK", "the connection to the broker is sound"
    cluster.run(LATER_MS)
    assert sorted(client.receive("G", "T").bodies) == [b"1", b"2"]


def test_another_groups_acknowledgement_ends_nothing() -> None:
    cluster, client, messages = received(b"1")
    client.ack("H", "T", messages)
    client.ack("G", "T", [with_handle(messages[0].system_properties.receipt_handle.replace(" 0 broker", " 1 broker"))])
    cluster.run(LATER_MS)
    assert client.receive("G", "T").bodies == [b"1"]


def test_a_changed_invisible_time_counts_from_now_and_replaces_the_handle() -> None:
    cluster, client, messages = received(b"1")
    cluster.run(20_000)
    response = client.change("G", "T", messages[0], 60_000)
    assert code(response.status) == "OK"
    old = messages[0].system_properties.receipt_handle
    assert response.receipt_handle != old and response.receipt_handle.split(" ")[8] == old.split(" ")[8]
    cluster.run(50_000)
    assert client.receive("G", "T").code == "MESSAGE_NOT_FOUND"
    changed = with_handle(response.receipt_handle)
    assert outcomes(client.ack("G", "T", [changed])) == ["OK"]
    cluster.run(60_000)
    assert client.receive("G", "T").code == "MESSAGE_NOT_FOUND"


def test_the_old_handle_of_a_changed_message_ends_nothing() -> None:
    _, client, messages = received(b"1")
    assert code(client.change("G", "T", messages[0], 10_000).status) == "OK"
    client.ack("G", "T", messages)
    assert client.receive("G", "T", poll_ms=15_000).bodies == [b"1"]


def test_a_message_comes_back_at_once_if_its_time_is_changed_to_0() -> None:
    _, client, messages = received(b"1")
    assert code(client.change("G", "T", messages[0], 0).status) == "OK"
    again = client.receive("G", "T", poll_ms=3_000)
    assert again.bodies == [b"1"] and again.messages[0].system_properties.delivery_attempt == 2


def test_a_message_that_is_put_off_comes_back_without_one_more_attempt() -> None:
    _, client, messages = received(b"1")
    request = pb.ChangeInvisibleDurationRequest(group=resource("G"), topic=resource("T"), suspend=True)
    request.receipt_handle = messages[0].system_properties.receipt_handle
    request.invisible_duration.seconds = 1
    response = client.call("ChangeInvisibleDuration", request, pb.ChangeInvisibleDurationResponse)
    assert code(response.status) == "OK"
    again = client.receive("G", "T", poll_ms=5_000)
    assert again.bodies == [b"1"] and again.messages[0].system_properties.delivery_attempt == 1


def test_invisible_times_beyond_12_hours_are_refused() -> None:
    _, client, messages = received(b"1")
    for ms in (-1, INVISIBLE_MS_MAX + 1):
        assert code(client.change("G", "T", messages[0], ms).status) == "ILLEGAL_INVISIBLE_TIME", ms
    request = pb.ChangeInvisibleDurationRequest(group=resource("G"), topic=resource("T"), receipt_handle="x")
    request.invisible_duration.seconds = (1 << 63) - 1
    response = client.call("ChangeInvisibleDuration", request, pb.ChangeInvisibleDurationResponse)
    assert code(response.status) == "ILLEGAL_INVISIBLE_TIME"
    assert code(client.change("G", "T", messages[0], INVISIBLE_MS_MAX).status) == "OK"


def forward(client: Client, group: str, topic: str, given: pb.Message) -> str:
    request = pb.ForwardMessageToDeadLetterQueueRequest(
        group=resource(group),
        topic=resource(topic),
        receipt_handle=given.system_properties.receipt_handle,
        message_id=given.system_properties.message_id,
        delivery_attempt=17,
        max_delivery_attempts=16,
    )
    name = "ForwardMessageToDeadLetterQueue"
    return code(client.call(name, request, pb.ForwardMessageToDeadLetterQueueResponse).status)


def test_a_forwarded_message_is_a_dead_letter_and_does_not_come_back() -> None:
    cluster, client, messages = received(b"1", b"2")
    assert forward(client, "G", "T", messages[0]) == "OK"
    (letter,) = cluster.stored("%DLQ%G", queues=1)
    assert letter.body == messages[0].body
    cluster.run(LATER_MS)
    again = client.receive("G", "T")
    assert again.bodies == [messages[1].body]
    assert forward(client, "G", "T", again.messages[0]) == "OK", "out of the retry topic"
    assert sorted(stored.body for stored in cluster.stored("%DLQ%G", queues=1)) == [b"1", b"2"]


def test_a_message_of_an_ordered_group_is_forwarded_and_its_queue_goes_on() -> None:
    cluster = ProxyCluster()
    cluster.topic("F", kind="FIFO", queues=1)
    cluster.group("G", is_ordered=True)
    client = cluster.client()
    for number in range(2):
        client.send(message("F", b"%d" % number, message_group="g"))
    (first,) = client.receive("G", "F", batch=1).messages
    assert forward(client, "G", "F", first) == "OK"
    assert client.receive("G", "F", batch=1).bodies == [b"1"]
    assert [stored.body for stored in cluster.stored("%DLQ%G", queues=1)] == [b"0"]


def test_what_cannot_be_forwarded_is_refused() -> None:
    cluster, client, messages = received(b"1")
    handle = messages[0].system_properties.receipt_handle
    for text in ("", "x", handle.rpartition(" ")[0], f"{handle.rpartition(' ')[0]} {'9' * 19}"):
        assert forward(client, "G", "T", with_handle(text)) == "INVALID_RECEIPT_HANDLE", text
    long = message("T", message_id="i" * 100_000, receipt_handle=handle)
    assert forward(client, "G", "T", long) == "BAD_REQUEST"
    assert not cluster.stored("%DLQ%G", queues=1)


def test_acknowledgements_wait_for_a_master_that_restarts() -> None:
    cluster, client, messages = received(b"1", b"2", b"3", invisible_ms=60_000)
    cluster.broker.restart_after(3_000)
    assert outcomes(client.ack("G", "T", messages[:1])) == ["OK"]
    cluster.broker.restart_after(3_000)
    assert code(client.change("G", "T", messages[1], 10_000).status) == "OK"
    cluster.broker.restart_after(3_000)
    assert forward(client, "G", "T", messages[2]) == "OK"
    again = client.receive("G", "T", poll_ms=20_000)
    assert again.bodies == [messages[1].body]
    client.ack("G", "T", again.messages)
    cluster.run(90_000)
    assert client.receive("G", "T").code == "MESSAGE_NOT_FOUND"
    assert len(cluster.stored("%DLQ%G", queues=1)) == 1


def test_many_acknowledgements_without_a_master_take_the_time_of_one() -> None:
    cluster, client, messages = received(*[b"%d" % number for number in range(8)])
    cluster.broker.kill()
    start_us = cluster.world.now_us
    response = client.ack("G", "T", messages)
    assert outcomes(response) == ["PROXY_TIMEOUT"] * 8
    assert cluster.world.now_us - start_us < 7_000_000
