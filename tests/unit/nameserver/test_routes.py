"""Unit tests of the route table."""

import pytest

from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import RemoteError
from tandemq.nameserver import brokers, topics
from tandemq.nameserver.broker_data import BrokerRegistration, TopicQueues, Version
from tandemq.nameserver.routes import RouteTable
from tests.spec import spec

EXPIRY_MS = 120_000
QUEUES = TopicQueues(6, 4, 4)


def told(
    name: str = "b",
    broker_id: int = 0,
    address: str = "h:1",
    *,
    cluster: str = "c",
    version: Version = Version(1),  # noqa: B008  # a tuple
    topics: dict[str, TopicQueues] | None = None,
    acting_master: bool = False,
    timeout_ms: int | None = None,
    weight: int | None = None,
    zone: str | None = None,
    mode: str = "",
) -> BrokerRegistration:
    return BrokerRegistration(
        cluster=cluster,
        broker_name=name,
        broker_id=broker_id,
        address=address,
        ha_address=f"ha-{address}",
        version=version,
        topics={"t": QUEUES} if topics is None else topics,
        acting_master=acting_master,
        timeout_ms=timeout_ms,
        weight=weight,
        zone=zone,
        mode=mode,
    )


def table() -> RouteTable:
    return RouteTable(EXPIRY_MS)


def permissions(found: RouteTable, topic: str = "t") -> bytes | None:
    return found.route(topic, strict=False)


@spec("R01")
def test_brokers_of_one_name_form_one_group() -> None:
    found = table()
    for broker_id in (0, 1, 2):
        found.register(told(broker_id=broker_id, address=f"h:{broker_id}"), broker_id, 0)
    assert found.addresses("c", "b") == {0: "h:0", 1: "h:1", 2: "h:2"}
    assert found.clusters()["clusterAddrTable"] == {"c": ["b"]}


def test_only_slaves_get_the_address_of_their_master() -> None:
    found = table()
    assert found.register(told(broker_id=1, address="h:2"), 2, 0).address == ""
    assert found.register(told(), 1, 0).address == ""
    place = found.register(told(broker_id=1, address="h:2"), 2, 0)
    assert (place.address, place.ha_address) == ("h:1", "ha-h:1")


@spec("R01")
def test_second_broker_with_the_same_id_is_refused_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    found = table()
    found.register(told(), 1, 0)
    with pytest.raises(RemoteError, match=r"id 0 at h:9 is refused.*registered at h:1"):
        found.register(told(address="h:9", topics={"other": QUEUES}), 2, 30_000)
    assert found.addresses("c", "b") == {0: "h:1"}
    assert found.topics() == ["t"]
    assert any(record.levelname == "ERROR" and "h:9" in record.getMessage() for record in caplog.records)


def test_broker_can_register_elsewhere_once_its_connection_is_closed() -> None:
    found = table()
    found.register(told(), 1, 0)
    found.link_closed(1, "killed")
    found.register(told(address="h:9"), 2, 1)
    assert found.addresses("c", "b") == {0: "h:9"}


def test_broker_can_register_elsewhere_when_the_old_one_was_silent() -> None:
    found = table()
    found.register(told(), 1, 0)
    with pytest.raises(RemoteError):
        found.register(told(address="h:9"), 2, 72_000)
    found.register(told(address="h:9"), 2, 72_001)
    assert found.addresses("c", "b") == {0: "h:9"}
    assert len(found._brokers._members) == 1


def test_broker_can_change_its_address_on_its_own_connection() -> None:
    found = table()
    found.register(told(), 1, 0)
    found.register(told(address="h:9"), 1, 1)
    assert found.addresses("c", "b") == {0: "h:9"}


def test_larger_state_version_wins_and_a_smaller_one_never_does() -> None:
    found = table()
    found.register(told(version=Version(1, 5)), 1, 0)
    found.register(told(address="h:9", version=Version(1, 6)), 2, 1)
    assert found.addresses("c", "b") == {0: "h:9"}
    with pytest.raises(RemoteError):
        found.register(told(version=Version(1, 5)), 3, EXPIRY_MS)


def test_slave_that_becomes_master_has_only_one_entry() -> None:
    found = table()
    found.register(told(broker_id=1, address="h:2"), 2, 0)
    found.register(told(broker_id=0, address="h:2"), 2, 1)
    assert found.addresses("c", "b") == {0: "h:2"}
    assert len(found._brokers._members) == 1


def test_address_of_a_present_broker_cannot_be_used_by_another_name() -> None:
    found = table()
    found.register(told(), 1, 0)
    with pytest.raises(RemoteError, match="is registered at h:1"):
        found.register(told(name="other"), 2, 1)
    found.link_closed(1, "gone")
    found.register(told(name="other"), 2, 1)
    assert found.clusters()["clusterAddrTable"] == {"c": ["other"]}


def test_group_cannot_be_in_two_clusters() -> None:
    found = table()
    found.register(told(), 1, 0)
    with pytest.raises(RemoteError, match="belongs to cluster c"):
        found.register(told(broker_id=1, address="h:2", cluster="other"), 2, 1)
    found.register(told(cluster="other"), 1, 2)
    assert found.clusters()["clusterAddrTable"] == {"other": ["b"]}


def test_topics_are_merged_not_replaced() -> None:
    found = table()
    found.register(told(topics={"a": QUEUES, "b": QUEUES}), 1, 0)
    found.register(told(topics={"c": QUEUES}, version=Version(2)), 1, 1)
    assert found.topics() == ["a", "b", "c"]


def test_late_topics_are_accepted_with_a_known_version() -> None:
    found = table()
    found.register(told(topics={"new": QUEUES}, version=Version(2)), 1, 0)
    found.register(told(topics={"new": QUEUES, "old": QUEUES}, version=Version(2)), 1, 1)
    assert found.topics() == ["new", "old"]


def test_missed_change_of_a_topic_is_accepted_with_a_known_version() -> None:
    found = table()
    found.register(told(topics={"a": QUEUES, "b": QUEUES}), 1, 0)
    found.register(told(topics={"b": TopicQueues(6, 9, 9)}, version=Version(3)), 1, 1)
    found.register(told(topics={"a": TopicQueues(6, 8, 8), "b": TopicQueues(6, 9, 9)}, version=Version(3)), 1, 2)
    assert b'"readQueueNums":8' in (found.route("a", strict=False) or b"")
    assert b'"readQueueNums":9' in (found.route("b", strict=False) or b"")


def test_topics_of_a_slave_count_only_while_there_is_no_master() -> None:
    found = table()
    found.register(told(topics={"a": QUEUES}), 1, 0)
    found.register(told(broker_id=1, address="h:2", topics={"b": QUEUES}), 2, 0)
    assert found.topics() == ["a"]
    found.link_closed(1, "killed")
    assert found.topics() == ["a"]
    found.register(told(broker_id=1, address="h:2", topics={"b": QUEUES}), 2, 1)
    assert found.topics() == ["a", "b"]


def test_route_exists_until_the_last_member_is_removed() -> None:
    found = table()
    found.register(told(), 1, 0)
    found.register(told(broker_id=1, address="h:2"), 2, 0)
    found.link_closed(1, "killed")
    route = found.route("t", strict=False)
    assert route is not None
    assert b'"brokerAddrs":{1:"h:2"}' in route
    found.unregister("b", "h:2")
    assert found.route("t", strict=False) is None
    assert found.topics() == []
    assert found.clusters() == {"brokerAddrTable": {}, "clusterAddrTable": {}}


def test_close_of_a_former_connection_removes_no_broker() -> None:
    found = table()
    found.register(told(), 1, 0)
    found.register(told(), 2, 1)
    found.link_closed(1, "reconnected")
    assert len(found._brokers._members) == 1
    found.link_closed(2, "gone")
    assert found.hosts() == set()


def test_silent_broker_is_removed_after_its_own_or_the_default_timeout() -> None:
    found = table()
    found.register(told(), 1, 0)
    found.register(told(name="quick", address="h:2", timeout_ms=10_000), 2, 0)
    assert found.expire(10_000) == []
    assert found.expire(10_001) == [2]
    found.touch("c", "h:1", 60_000)
    assert found.expire(EXPIRY_MS + 60_000) == []
    assert found.expire(EXPIRY_MS + 60_001) == [1]
    assert found.hosts() == set()


def test_heartbeat_of_an_unregistered_broker_or_another_cluster_is_ignored() -> None:
    found = table()
    found.register(told(), 1, 0)
    assert found.touch("c", "h:9", 1) is None
    assert found.touch("other", "h:1", 1) is None
    assert found.touch("c", "h:1", 1) == Version(1)


def test_wiped_permission_lasts_until_a_changed_registration() -> None:
    found = table()
    found.register(told(topics={"t": TopicQueues(7, 4, 4)}), 1, 0)
    assert found.wipe_write_permission("b") == 1
    found.register(told(topics={"t": TopicQueues(7, 4, 4)}), 1, 1)
    assert b'"perm":5' in (permissions(found) or b"")
    found.register(told(topics={"t": TopicQueues(7, 4, 4)}, version=Version(2)), 1, 2)
    assert b'"perm":7' in (permissions(found) or b"")
    assert found.wipe_write_permission("b") == 1
    assert found.add_write_permission("b") == 1
    assert b'"perm":6' in (permissions(found) or b"")
    assert found.wipe_write_permission("nobody") == found.add_write_permission("nobody") == 0


def test_group_with_acting_master_is_not_writable_without_its_master() -> None:
    found = table()
    found.register(told(acting_master=True), 1, 0)
    found.register(told(broker_id=1, address="h:2", acting_master=True), 2, 0)
    found.link_closed(1, "killed")
    route = permissions(found) or b""
    assert b'"perm":4' in route
    assert b'"enableActingMaster":true' in route
    found.register(told(broker_id=1, address="h:2", acting_master=True, version=Version(2)), 2, 1)
    assert b'"perm":4' in (permissions(found) or b"")
    found.register(told(acting_master=True), 3, 2)
    assert b'"perm":6' in (permissions(found) or b"")


def test_topic_is_deleted_in_one_cluster_or_in_all() -> None:
    found = table()
    found.register(told(), 1, 0)
    found.register(told(name="x", address="h:2", cluster="other"), 2, 0)
    found.delete_topic("t", "nowhere")
    found.delete_topic("t", "other")
    assert found.topics_of_cluster("other") == []
    assert found.topics_of_cluster("c") == ["t"]
    found.delete_topic("t")
    found.delete_topic("t")
    assert found.topics() == []


def test_topic_is_added_on_known_brokers_only() -> None:
    found = table()
    found.register(told(), 1, 0)
    found.add_topic("single", {"b": QUEUES, "stranger": QUEUES})
    route = found.route("single", strict=False) or b""
    assert b'"brokerName":"b"' in route
    assert b"stranger" not in route


def test_topics_are_listed_by_system_flag() -> None:
    found = table()
    flags = {"none": 0, "unit": 1, "sub": 2, "both": 3}
    found.register(told(topics={name: TopicQueues(6, 4, 4, flag) for name, flag in flags.items()}), 1, 0)
    assert found.topics_with_flag(1) == ["both", "unit"]
    assert found.topics_with_flag(2) == ["both", "sub"]
    assert found.topics_with_flag(2, 1) == ["sub"]


def test_route_is_encoded_once_until_it_changes() -> None:
    found = table()
    found.register(told(), 1, 0)
    first = found.route("t", strict=True)
    found.register(told(), 1, 1)
    assert found.route("t", strict=True) is first
    found.register(told(topics={"t": TopicQueues(4, 4, 4)}, version=Version(2)), 1, 2)
    assert found.route("t", strict=True) != first


def test_route_dialects_differ_only_in_keys() -> None:
    found = table()
    found.register(told(topics={"t": QUEUES}), 1, 0)
    found.register(told(name="b2", address="höst:2"), 2, 0)
    strict, java = found.route("t", strict=True) or b"", found.route("t", strict=False) or b""
    assert b'"brokerAddrs":{"0":"h:1"}' in strict
    assert b'"brokerAddrs":{0:"h:1"}' in java
    assert b'"h\\u00f6st:2"' in strict
    assert strict.isascii()
    assert b" " not in strict + java


def test_full_table_refuses_new_entries_and_keeps_the_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "TOPIC_PLACES_MAX", 3)
    monkeypatch.setattr(brokers, "BROKERS_MAX", 2)
    found = table()
    found.register(told(topics={"a": QUEUES, "b": QUEUES}), 1, 0)
    with pytest.raises(RemoteError, match="full"):
        found.register(told(topics={"c": QUEUES, "d": QUEUES}), 1, 0)
    with pytest.raises(RemoteError, match="full"):
        found.add_topic("e", {"b": QUEUES}) or found.add_topic("f", {"b": QUEUES})  # type: ignore[func-returns-value]
    found.register(told(broker_id=1, address="h:2", topics={}), 2, 0)
    with pytest.raises(RemoteError, match="full"):
        found.register(told(broker_id=2, address="h:3", topics={}), 3, 0)
    assert found.topics() == ["a", "b", "e"]


# --- what producers choose groups by


def brokers_told(found: RouteTable) -> list[dict[str, object]]:
    body = found.route("t", strict=True)
    assert body is not None
    return list(loads(body)["brokerDatas"])


def test_route_has_weight_zone_and_mode_of_the_master() -> None:
    found = table()
    found.register(told(weight=300, zone="east", mode="elect"), 1, 0)
    found.register(told(broker_id=1, address="h:2", weight=7, zone="west"), 2, 0)
    [group] = brokers_told(found)
    assert (group["weight"], group["zoneName"], group["failoverMode"]) == (300, "east", "elect")


def test_weight_of_a_new_master_is_used() -> None:
    found = table()
    found.register(told(weight=300), 1, 0)
    found.register(told(weight=200), 1, 0)
    assert brokers_told(found)[0]["weight"] == 200
    found.register(told(address="h:2", weight=50, version=Version(1, state_version=9)), 2, 0)
    assert brokers_told(found)[0]["weight"] == 50


def test_route_of_a_broker_without_attributes_is_unchanged() -> None:
    found = table()
    found.register(told(), 1, 0)
    assert set(brokers_told(found)[0]) == {"brokerAddrs", "brokerName", "cluster", "enableActingMaster"}


def test_list_is_encoded_once_until_a_topic_or_a_broker_changes() -> None:
    found = table()
    builds = 0

    def topics() -> dict[str, list[str]]:
        nonlocal builds
        builds += 1
        return {"topicList": found.topics()}

    def names() -> list[str]:
        body: dict[str, list[str]] = loads(found.encoded_list(("topics",), topics))
        return body["topicList"]

    assert names() == names() == []
    assert builds == 1
    found.register(told(), 1, 0)
    assert names() == names() == ["t"]
    assert builds == 2
    found.register(told(), 1, 10)
    assert names() == ["t"]
    assert builds == 2, "the same registration changes nothing"
    found.register(told(topics={"t": QUEUES, "u": QUEUES}, version=Version(2)), 1, 10)
    assert names() == ["t", "u"]
    found.delete_topic("u")
    assert names() == ["t"]
    found.add_topic("v", {"b": QUEUES})
    assert names() == ["t", "v"]
    found.wipe_write_permission("b")
    names()
    assert builds == 6
    found.unregister("b", "h:1")
    assert names() == []
