"""SendMessage and RecallMessage: what brokers get, queues of message groups, outcomes of several messages."""

import gzip
from collections import Counter
from random import Random

from tandemq.model.message import SendStatus
from tandemq.proxy.messages import BODY_BYTES_MAX
from tandemq.proxy.protocol import messaging_pb2 as pb
from tandemq.proxy.sending import BODIES_BYTES_MAX, MESSAGES_MAX, queue_index
from tandemq.proxy.status import OF_SENDS
from tests.spec import spec
from tests.unit.proxy.cluster import ProxyCluster, code, message, resource


def outcomes(response: pb.SendMessageResponse) -> list[str]:
    return [code(entry.status) for entry in response.entries]


def test_a_message_is_stored_with_its_id_and_the_client_as_born_host() -> None:
    cluster = ProxyCluster()
    cluster.topic("T")
    given = message("T", b"hello", tag="t", keys=["k"], user={"a": "b"})
    response = cluster.client().send(given)
    assert code(response.status) == "OK" and len(response.entries) == 1
    entry = response.entries[0]
    assert (code(entry.status), entry.message_id) == ("OK", given.system_properties.message_id)
    (stored,) = cluster.stored("T")
    assert stored.body == b"hello" and stored.unique_key == entry.message_id
    assert (stored.tags, stored.keys, stored.properties["a"]) == ("t", ["k"], "b")
    assert stored.queue_offset == entry.offset == 0
    assert stored.properties["__BORNHOST"] == "10.0.8.1"


def test_requests_that_no_broker_needs_to_see_are_refused() -> None:
    cluster = ProxyCluster()
    cluster.topic("T")
    client = cluster.client()
    cases: dict[str, list[list[pb.Message]]] = {
        "MESSAGE_CORRUPTED": [[], [message("T"), message("U")], [message("T")] * (MESSAGES_MAX + 1)],
        "ILLEGAL_TOPIC": [
            [message("")],
            [message("a b")],
            [message("a" * 128)],
            [message("T"), message("TBW102")],
            *([message(name)] for name in ("TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_x")),
        ],
        "TOPIC_NOT_FOUND": [[message("Absent")], [message("ns%T")]],
        "MESSAGE_BODY_EMPTY": [[message("T", b"")]],
        "ILLEGAL_MESSAGE_ID": [[message("T"), message("T", message_id=" ")]],
    }
    for expected, requests in cases.items():
        for messages in requests:
            response = client.send(*messages)
            assert code(response.status) == expected and response.status.message, messages[:2]
            assert not response.entries
    assert not cluster.stored("T")
    assert code(cluster.client("").send(message("T")).status) == "CLIENT_ID_REQUIRED"
    assert code(cluster.client("c" * 513).send(message("T")).status) == "CLIENT_ID_REQUIRED"


def test_messages_must_have_the_type_of_their_topic() -> None:
    cluster = ProxyCluster(mixed_message_type=True)
    at_ms = cluster.wall_ms + 5_000
    kinds = {"": "NORMAL", "NORMAL": "NORMAL", "FIFO": "FIFO", "DELAY": "DELAY", "TRANSACTION": "TRANSACTION"}
    accepted = {name: {kind} for name, kind in kinds.items()} | {"MIXED": {"NORMAL", "FIFO", "DELAY", "TRANSACTION"}}
    client = cluster.client()
    for attribute, takes in accepted.items():
        topic = f"T-{attribute}"
        cluster.topic(topic, kind=attribute)
        given = {
            "NORMAL": message(topic),
            "FIFO": message(topic, message_group="g"),
            "DELAY": message(topic, delivery_ms=at_ms),
            "PRIORITY": message(topic, priority=3),
            "TRANSACTION": message(topic, message_type=pb.MessageType.TRANSACTION),
        }
        for kind, each in given.items():
            expected = "OK" if kind in takes else "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
            assert code(client.send(each).status) == expected, (attribute, kind)


def test_a_changed_type_is_known_after_20s() -> None:
    cluster = ProxyCluster()
    cluster.topic("T")
    client = cluster.client()
    assert code(client.send(message("T")).status) == "OK"
    cluster.topic("T", kind="FIFO")
    cluster.run(20_000)
    assert code(client.send(message("T")).status) == "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
    assert code(client.send(message("T", message_group="g")).status) == "OK"


def test_a_topic_with_a_namespace_is_one_of_its_own() -> None:
    cluster = ProxyCluster()
    cluster.topic("ns%T")
    assert code(cluster.client().send(message("ns%T")).status) == "OK"
    assert len(cluster.stored("ns%T")) == 1


def test_message_groups_have_the_queues_that_java_chooses() -> None:
    """Values of Guava's Hashing.consistentHash(name.hashCode(), n), those of its own tests first."""
    known = [0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83]
    assert [queue_index(chr(point), 100) for point in range(20)] == known
    assert [queue_index(chr(point), 100_001) for point in (2, 2201, 2202)] == [80_343, 22_152, 15_018]
    assert [queue_index("polygenelubricants", count) for count in (1, 2, 4, 8, 16, 100)] == [0, 1, 2, 2, 2, 58]
    assert [queue_index("user-7", count) for count in (1, 2, 4, 8, 16, 100)] == [0, 1, 3, 3, 3, 36]


def test_messages_of_a_group_lie_in_one_queue_in_the_order_of_their_sends() -> None:
    cluster = ProxyCluster(groups=2)
    cluster.topic("F", kind="FIFO", queues=4)
    client = cluster.client()
    for number in range(12):
        assert code(client.send(message("F", b"%d" % number, message_group=f"g{number % 4}")).status) == "OK"
    bodies: dict[str, list[bytes]] = {}
    for broker in (0, 1):
        for stored in cluster.stored("F", broker):
            group = stored.properties["__SHARDINGKEY"]
            assert broker * 4 + stored.queue_id == queue_index(group, 8), group
            bodies.setdefault(group, []).append(stored.body)
    assert bodies["g1"] == [b"1", b"5", b"9"] and sum(map(len, bodies.values())) == 12


def test_several_messages_of_a_request_have_their_own_outcomes() -> None:
    cluster = ProxyCluster()
    cluster.topic("T")
    client = cluster.client()
    messages = [message("T", b"%d" % number) for number in range(10)]
    response = client.send(*messages)
    assert code(response.status) == "OK" and outcomes(response) == ["OK"] * 10
    ids = [each.system_properties.message_id for each in messages]
    assert [entry.message_id for entry in response.entries] == ids
    assert sorted(stored.unique_key for stored in cluster.stored("T")) == sorted(ids)
    queues = Counter(stored.queue_id for stored in cluster.stored("T"))
    assert len(queues) == 4, "they are spread over the queues"
    cluster.topic("F", kind="FIFO")
    response = client.send(*[message("F", b"%d" % number, message_group="g") for number in range(5)])
    assert outcomes(response) == ["OK"] * 5
    assert [stored.body for stored in cluster.stored("F")] == [b"0", b"1", b"2", b"3", b"4"]


def test_messages_behind_a_failed_one_of_their_group_are_not_sent() -> None:
    cluster = ProxyCluster(message_bytes_max=100_000)
    cluster.topic("F", kind="FIFO")
    bodies = {"a": [b"0", Random(1).randbytes(200_000), b"2"], "b": [b"3"]}
    messages = [message("F", body, message_group=group) for group, some in bodies.items() for body in some]
    response = cluster.client().send(*messages)
    assert outcomes(response) == ["OK", "MESSAGE_BODY_TOO_LARGE", "MESSAGE_BODY_TOO_LARGE", "OK"]
    assert code(response.status) == "MULTIPLE_RESULTS"
    assert sorted(stored.body for stored in cluster.stored("F")) == [b"0", b"3"]


def test_large_bodies_reach_the_broker_compressed_and_consumers_as_they_were() -> None:
    cluster = ProxyCluster()
    cluster.topic("T")
    client = cluster.client()
    body = b"0123456789" * 20_000
    packed = message("T", gzip.compress(body), body_encoding=pb.Encoding.GZIP)
    for given in (message("T", body), packed):
        assert code(client.send(given).status) == "OK"
    assert {stored.body for stored in cluster.stored("T")} == {body}
    assert all(stored.size < 2_000 and stored.sys_flag & 1 for stored in cluster.stored("T"))
    assert client.receive("G", "T").bodies == [body, body]


def test_consumers_get_a_body_that_is_not_compressed_as_its_sender_says_as_it_was_sent() -> None:
    cluster = ProxyCluster()
    cluster.topic("T")
    client = cluster.client()
    body = b"0123456789" * 20_000
    assert code(client.send(message("T", body, body_encoding=pb.Encoding.GZIP)).status) == "OK"
    (found,) = client.receive("G", "T").messages
    assert found.body == body
    assert found.system_properties.body_encoding == pb.Encoding.GZIP
    assert not found.user_properties


def test_bodies_of_a_request_have_a_limit_together() -> None:
    """A request of some KiB could ask for GiB otherwise."""
    cluster = ProxyCluster()
    cluster.topic("T")
    packed = gzip.compress(bytes(BODY_BYTES_MAX))
    messages = [message("T", packed, body_encoding=pb.Encoding.GZIP) for _ in range(BODIES_BYTES_MAX // BODY_BYTES_MAX)]
    client = cluster.client()
    assert code(client.send(*messages).status) == "OK"
    assert code(client.send(*messages, messages[0]).status) == "MESSAGE_BODY_TOO_LARGE"


def test_a_timed_message_arrives_at_its_time_and_not_before() -> None:
    cluster = ProxyCluster()
    cluster.topic("D", kind="DELAY")
    client = cluster.client()
    at_ms = cluster.wall_ms + 10_000
    response = client.send(message("D", b"later", delivery_ms=at_ms))
    assert code(response.status) == "OK" and response.entries[0].recall_handle
    assert client.receive("G", "D").code == "MESSAGE_NOT_FOUND"
    found = client.receive("G", "D", poll_ms=20_000)
    assert found.bodies == [b"later"] and at_ms <= cluster.wall_ms < at_ms + 3_000
    system = found.messages[0].system_properties
    assert system.message_type == pb.MessageType.DELAY and system.delivery_timestamp.ToMilliseconds() == at_ms
    for past_ms in (cluster.wall_ms - 1000, 0, -1):
        assert code(client.send(message("D", b"now", delivery_ms=past_ms)).status) == "OK"
    assert client.receive("G", "D").bodies == [b"now"] * 3


def test_times_of_delivery_that_the_broker_does_not_keep_are_refused() -> None:
    cluster = ProxyCluster(timer_delay_max_s=3600)
    cluster.topic("D", kind="DELAY")
    client = cluster.client()
    for at_ms in (cluster.wall_ms + 3_700_000, 253_402_300_799_999):
        assert code(client.send(message("D", delivery_ms=at_ms)).status) == "ILLEGAL_DELIVERY_TIME", at_ms
    forged = message("D", delivery_ms=0)
    for seconds in ((1 << 63) - 1, 1 << 60):
        forged.system_properties.delivery_timestamp.seconds = seconds
        assert code(client.send(forged).status) == "ILLEGAL_DELIVERY_TIME", seconds
    forged.system_properties.delivery_timestamp.seconds = -(1 << 63)
    assert code(client.send(forged).status) in ("OK", "ILLEGAL_DELIVERY_TIME")


def test_a_timed_message_is_recalled() -> None:
    cluster = ProxyCluster()
    cluster.topic("D", kind="DELAY")
    client = cluster.client()
    given = message("D", b"never", delivery_ms=cluster.wall_ms + 10_000)
    handle = client.send(given).entries[0].recall_handle
    request = pb.RecallMessageRequest(topic=resource("D"), recall_handle=handle)
    response = client.call("RecallMessage", request, pb.RecallMessageResponse)
    assert (code(response.status), response.message_id) == ("OK", given.system_properties.message_id)
    cluster.run(12_000)
    assert client.receive("G", "D").code == "MESSAGE_NOT_FOUND"


def test_recalls_of_other_things_are_refused() -> None:
    cluster = ProxyCluster()
    cluster.topic("D", kind="DELAY")
    cluster.topic("E", kind="DELAY")
    client = cluster.client()
    handle = client.send(message("D", delivery_ms=cluster.wall_ms + 10_000)).entries[0].recall_handle
    cases = {"": "BAD_REQUEST", "x": "BAD_REQUEST", "ü" * 8: "BAD_REQUEST", "A" * 3_000: "BAD_REQUEST"}
    for text, expected in cases.items():
        request = pb.RecallMessageRequest(topic=resource("D"), recall_handle=text)
        assert code(client.call("RecallMessage", request, pb.RecallMessageResponse).status) == expected, text
    request = pb.RecallMessageRequest(topic=resource("E"), recall_handle=handle)
    assert code(client.call("RecallMessage", request, pb.RecallMessageResponse).status) == "BAD_REQUEST"
    request = pb.RecallMessageRequest(topic=resource("TBW102"), recall_handle=handle)
    assert code(client.call("RecallMessage", request, pb.RecallMessageResponse).status) == "ILLEGAL_TOPIC"


def test_a_topic_that_takes_no_messages_refuses_them() -> None:
    cluster = ProxyCluster()
    cluster.topic("R", perm=4)
    response = cluster.client().send(message("R"))
    assert code(response.status) in ("FORBIDDEN", "PROXY_TIMEOUT")


def test_a_message_stored_less_safely_is_no_success() -> None:
    assert set(OF_SENDS) == set(SendStatus) - {SendStatus.SEND_OK}
    cluster = ProxyCluster(role="SYNC_MASTER", in_sync_replicas=2)
    cluster.topic("T")
    response = cluster.client().send(message("T"))
    assert outcomes(response) == ["HA_NOT_AVAILABLE"] and code(response.status) == "HA_NOT_AVAILABLE"
    assert not response.entries[0].message_id


@spec("X03")
def test_one_brokers_death_costs_no_message() -> None:
    cluster = ProxyCluster(groups=2)
    cluster.topic("T")
    client = cluster.client()
    assert code(client.send(message("T")).status) == "OK"
    cluster.brokers[0].kill()
    for number in range(8):
        assert code(client.send(message("T", b"%d" % number)).status) == "OK", number
    assert len(cluster.stored("T", 1)) >= 8


def test_messages_wait_for_a_master_that_restarts() -> None:
    cluster = ProxyCluster()
    cluster.topic("T")
    cluster.topic("F", kind="FIFO")
    client = cluster.client()
    for given, ms in ((message("T"), 1_500), (message("F", message_group="g"), 3_500)):
        topic = given.topic.name
        assert code(client.send(given).status) == "OK"
        cluster.broker.restart_after(ms)
        start_us = cluster.world.now_us
        given.system_properties.message_id += "-2"
        assert code(client.send(given, timeout_ms=5_000).status) == "OK", topic
        assert cluster.world.now_us - start_us >= ms * 1000
        keys = [stored.unique_key for stored in cluster.stored(topic)]
        assert len(keys) == len(set(keys)) == 2


def test_a_group_without_a_master_times_out() -> None:
    cluster = ProxyCluster()
    cluster.topic("T")
    cluster.topic("F", kind="FIFO")
    client = cluster.client()
    client.send(message("T"))
    client.send(message("F", message_group="g"))
    cluster.broker.kill()
    for given, within_ms in ((message("T"), 5_000), (message("F", message_group="g"), 8_000)):
        start_us = cluster.world.now_us
        assert code(client.send(given, timeout_ms=0).status) == "PROXY_TIMEOUT"
        assert cluster.world.now_us - start_us < within_ms * 1000
