"""QueryRoute and QueryAssignment: queues, permissions, types, addresses."""

from collections import Counter

from tandemq.proxy.protocol import messaging_pb2 as pb
from tests.unit.proxy.cluster import Client, ProxyCluster, code, message, resource

ENDPOINTS = pb.Endpoints(scheme=pb.AddressScheme.DOMAIN_NAME, addresses=[pb.Address(host="proxy.example", port=8081)])


def route(client: Client, topic: str, endpoints: pb.Endpoints = ENDPOINTS) -> pb.QueryRouteResponse:
    request = pb.QueryRouteRequest(topic=resource(topic), endpoints=endpoints)
    return client.call("QueryRoute", request, pb.QueryRouteResponse)


def assignment(client: Client, topic: str, group: str = "G") -> pb.QueryAssignmentResponse:
    request = pb.QueryAssignmentRequest(topic=resource(topic), group=resource(group), endpoints=ENDPOINTS)
    return client.call("QueryAssignment", request, pb.QueryAssignmentResponse)


def test_a_route_lists_all_queues_at_the_address_that_the_client_asked() -> None:
    cluster = ProxyCluster(groups=2)
    cluster.topic("T", queues=3)
    response = route(cluster.client(), "T")
    assert code(response.status) == "OK"
    found = [(queue.broker.name, queue.id) for queue in response.message_queues]
    assert found == [(name, number) for number in range(3) for name in ("broker-a", "broker-b")]
    for queue in response.message_queues:
        assert queue.topic == resource("T") and queue.broker.endpoints == ENDPOINTS and queue.broker.id == 0
        assert queue.permission == pb.Permission.READ_WRITE
        assert list(queue.accept_message_types) == [pb.MessageType.NORMAL]


def test_queues_have_the_types_of_their_topic() -> None:
    cluster = ProxyCluster(mixed_message_type=True)
    client = cluster.client()
    cases = {kind: [pb.MessageType.Value(kind)] for kind in ("NORMAL", "FIFO", "DELAY", "TRANSACTION")}
    cases["MIXED"] = [1, 2, 3, 4]
    for kind, types in cases.items():
        cluster.topic(kind, kind=kind, queues=1)
        (queue,) = route(client, kind).message_queues
        assert list(queue.accept_message_types) == types


def test_queues_have_the_permissions_of_their_topic() -> None:
    cluster = ProxyCluster()
    client = cluster.client()
    for perm, permission in ((4, pb.Permission.READ), (2, pb.Permission.WRITE), (6, pb.Permission.READ_WRITE)):
        cluster.topic(f"P{perm}", perm=perm)
        found = Counter(queue.permission for queue in route(client, f"P{perm}").message_queues)
        assert found == {permission: 4}


def test_routes_of_other_names_are_refused() -> None:
    client = ProxyCluster().client()
    cases = {"ILLEGAL_TOPIC": ["", " ", "a b", "t" * 128, "TBW102", "rmq_sys_x"], "TOPIC_NOT_FOUND": ["Absent", "ns%T"]}
    for expected, names in cases.items():
        for name in names:
            assert code(route(client, name).status) == code(assignment(client, name).status) == expected, name


def test_a_new_topic_is_found_at_once() -> None:
    cluster = ProxyCluster()
    client = cluster.client()
    assert code(route(client, "T").status) == "TOPIC_NOT_FOUND"
    cluster.topic("T")
    assert code(route(client, "T").status) == "OK"


def test_a_topic_that_was_deleted_is_not_found_after_20s() -> None:
    cluster = ProxyCluster()
    cluster.topic("T")
    client = cluster.client()
    assert code(route(client, "T").status) == "OK"
    cluster.delete_topic("T")
    cluster.run(20_000)
    assert code(route(client, "T").status) == "TOPIC_NOT_FOUND"
    assert code(client.send(message("T")).status) == "TOPIC_NOT_FOUND"


def test_endpoints_of_any_size_are_not_repeated_for_each_queue() -> None:
    cluster = ProxyCluster()
    cluster.topic("T", queues=1_000)
    large = pb.Endpoints(addresses=[pb.Address(host="h" * 100, port=1)] * 50)
    for endpoints in (large, pb.Endpoints(addresses=[pb.Address(host="h" * 60_000)])):
        response = route(cluster.client(), "T", endpoints)
        assert code(response.status) == "ILLEGAL_ACCESS_POINT" and not response.message_queues


def test_a_member_receives_from_each_broker_group() -> None:
    cluster = ProxyCluster(groups=2)
    cluster.topic("T")
    response = assignment(cluster.client(), "T")
    assert code(response.status) == "OK"
    found = [each.message_queue for each in response.assignments]
    assert [(queue.broker.name, queue.id) for queue in found] == [("broker-a", -1), ("broker-b", -1)]
    assert all(queue.broker.endpoints == ENDPOINTS and queue.topic == resource("T") for queue in found)


def test_a_member_of_an_ordered_group_receives_from_each_queue() -> None:
    cluster = ProxyCluster(groups=2)
    cluster.topic("F", kind="FIFO", queues=2)
    cluster.group("G", is_ordered=True)
    found = [each.message_queue for each in assignment(cluster.client(), "F").assignments]
    assert [(queue.broker.name, queue.id) for queue in found] == [
        (name, number) for name in ("broker-a", "broker-b") for number in range(2)
    ]


def test_a_topic_that_may_not_be_read_has_no_assignment() -> None:
    cluster = ProxyCluster()
    cluster.topic("W", perm=2)
    assert code(assignment(cluster.client(), "W").status) == "FORBIDDEN"


def test_assignments_need_a_group() -> None:
    cluster = ProxyCluster()
    cluster.topic("T")
    client = cluster.client()
    for group in ("", "a b", "g" * 256):
        assert code(assignment(client, "T", group).status) == "ILLEGAL_CONSUMER_GROUP", group


def test_routes_and_assignments_stay_while_a_master_is_away() -> None:
    cluster = ProxyCluster(groups=2)
    cluster.topic("T")
    client = cluster.client()
    before, assigned = route(client, "T"), assignment(client, "T")
    cluster.brokers[1].kill()
    assert route(client, "T") == before and assignment(client, "T") == assigned
