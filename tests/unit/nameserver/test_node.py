"""The name server as its peers see it: bytes in, bytes out."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandemq.boundary import Closed, LinkKind, Opened, Turn
from tandemq.codec.remoting.fastjson import loads
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command
from tandemq.config.settings import NameServerConfig
from tandemq.errors import DiskFull
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import FLAG_ONEWAY, FLAG_RESPONSE, Command
from tandemq.nameserver import connections as module
from tests.spec import spec
from tests.unit.nameserver.driver import Driver, FakeOutbox, answers_in, dumps, golden, registration, topic

BROKER, CLIENT = 1, 2


@pytest.fixture
def server(tmp_path: Path) -> Driver:
    driver = Driver(tmp_path)
    driver.open(BROKER)
    driver.open(CLIENT)
    return driver


# --- routes


@spec("R01")
def test_route_names_one_group_with_all_its_members(server: Driver) -> None:
    for broker_id in (0, 1, 2):
        server.open(10 + broker_id)
        server.register(10 + broker_id, broker_id=broker_id, address=f"10.0.0.{broker_id}:10911")
    route = server.route(CLIENT, "TopicA")
    (broker,) = route["brokerDatas"]
    assert broker == {
        "brokerAddrs": {"0": "10.0.0.0:10911", "1": "10.0.0.1:10911", "2": "10.0.0.2:10911"},
        "brokerName": "broker-a",
        "cluster": "DefaultCluster",
        "enableActingMaster": False,
    }
    assert [queue["brokerName"] for queue in route["queueDatas"]] == ["broker-a"]


@spec("R01")
def test_double_id_is_refused_with_a_remark_that_names_both(server: Driver) -> None:
    server.register(BROKER)
    server.open(3)
    answer = server.register(3, address="10.0.0.9:10911")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "10.0.0.9:10911 is refused" in (answer.remark or "")
    assert "registered at 10.0.0.1:10911" in (answer.remark or "")
    assert server.route(CLIENT, "TopicA")["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:10911"}


def test_killed_broker_registers_elsewhere_in_the_turn_its_connection_closes(server: Driver) -> None:
    server.register(BROKER)
    again = encode_command(registration(address="10.0.0.1:20911"))
    opened = Opened(9, LinkKind.REMOTING, "10.0.0.1:9")
    turn = server.node.turn([(9, again)], [opened, Closed(BROKER, "reset")], server.now)
    assert [answer.code for answer in answers_in(turn, 9)] == [ResponseCode.SUCCESS]
    assert server.route(CLIENT, "TopicA")["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:20911"}


def test_closed_connection_of_a_broker_removes_it_from_the_routes_at_once(server: Driver) -> None:
    server.register(BROKER)
    server.close(BROKER)
    assert server.route(CLIENT, "TopicA") is None


def test_requests_sent_before_a_close_are_executed(server: Driver) -> None:
    put = Command(RequestCode.PUT_KV_CONFIG, flag=FLAG_ONEWAY, fields={"namespace": "n", "key": "k", "value": "v"})
    turn = server.node.turn([(BROKER, encode_command(put))], [Closed(BROKER, "done")], server.now)
    assert not turn.sends
    assert server.call(CLIENT, RequestCode.GET_KV_CONFIG, namespace="n", key="k").fields == {"value": "v"}


@pytest.mark.parametrize(
    ("version", "strict_only", "key"),
    [
        (400, "false", b'{0:"'),
        (401, "false", b'{"0":"'),
        (317, "true", b'{"0":"'),
        (317, "1", b'{0:"'),
        (479, "false", b'{"0":"'),
    ],
)
def test_dialect_of_a_route_follows_the_version_of_the_client(
    server: Driver, version: int, strict_only: str, key: bytes
) -> None:
    server.register(BROKER)
    fields = {"topic": "TopicA", "acceptStandardJsonOnly": strict_only}
    answer = server.ask(CLIENT, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields=fields, version=version))
    assert b'"brokerAddrs":' + key in answer.body
    assert loads(answer.body)["queueDatas"][0]["writeQueueNums"] == 4


def test_order_configuration_is_in_routes_if_enabled_and_in_responses_to_brokers(tmp_path: Path) -> None:
    server = Driver(tmp_path, NameServerConfig(order_message_enable=True))
    server.open(BROKER)
    server.call(BROKER, RequestCode.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="TopicA", value="broker-a:4")
    assert json.loads(server.register(BROKER).body) == {"table": {"TopicA": "broker-a:4"}}
    assert server.route(BROKER, "TopicA")["orderTopicConf"] == "broker-a:4"
    assert "orderTopicConf" not in server.route(BROKER, "TBW102")


def test_slave_learns_its_masters_addresses_by_registering(server: Driver) -> None:
    server.register(BROKER)
    server.open(3)
    answer = server.register(3, broker_id=1, address="10.0.0.2:10911")
    assert answer.fields == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}
    assert server.register(BROKER).fields == {}


def test_filter_servers_zone_and_static_topics_are_passed_on(server: Driver) -> None:
    mapping = {"topic": "TopicA", "bname": "broker-a", "totalQueues": 4, "epoch": 1, "currIdMap": {"0": 1}}
    server.register(BROKER, filter_servers=("10.0.0.1:7",), mappings={"TopicA": mapping}, __ZONE_NAME="z")
    route = server.route(CLIENT, "TopicA")
    assert route["filterServerTable"] == {"10.0.0.1:10911": ["10.0.0.1:7"]}
    assert route["brokerDatas"][0]["zoneName"] == "z"
    assert route["topicQueueMappingByBroker"]["broker-a"]["currIdMap"] == {"0": 1}
    assert server.route(CLIENT, "TBW102").keys() & {"topicQueueMappingByBroker"} == set()


# --- what Java says, and what Java hears


@pytest.mark.parametrize(("broker", "client"), [("4.9.7", "4.9.8"), ("5.3.3", "5.3.3")])
def test_java_broker_registers_and_java_client_gets_the_route_of_javas_name_server(
    server: Driver, broker: str, client: str
) -> None:
    (answer,), _ = server.raw(BROKER, golden(f"broker-{broker}-103-register_broker"))
    assert answer.code == ResponseCode.SUCCESS
    for name in ("105-get_routeinfo_by_topic", "106-get_broker_cluster_info"):
        (frame,) = FrameDecoder().feed(golden(f"client-{client}-{name}-answer"))
        java = loads(decode_command(frame).body)
        request = decode_command(FrameDecoder().feed(golden(f"client-{client}-{name}"))[0])
        if name.startswith("105") and java["queueDatas"]:
            # The golden topic was made after the golden registration; tell of it as brokers do, alone.
            queues = java["queueDatas"][0]
            made = topic(request.fields["topic"], queues["readQueueNums"], queues["perm"])
            assert server.register(BROKER, address="127.0.0.1:10911", topics=(made,), counter=9).code == 0
        ours = loads(server.ask(CLIENT, request).body)
        assert ours == _with_acting_master(java)
    (answer,), _ = server.raw(BROKER, golden(f"broker-{broker}-104-unregister_broker"))
    assert answer.code == ResponseCode.SUCCESS
    assert server.node.broker_hosts() == set()


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_route_for_old_clients_is_java_s_byte_for_byte(server: Driver, version: str) -> None:
    (frame,) = FrameDecoder().feed(golden(f"namesrv-{version}-105-get_routeinfo_by_topic-old-answer"))
    java = decode_command(frame).body
    route = loads(java)
    server.raw(BROKER, golden(f"broker-{version}-103-register_broker"))
    queues = route["queueDatas"][0]
    made = topic("Golden", queues["readQueueNums"], queues["perm"])
    server.register(BROKER, address=route["brokerDatas"][0]["brokerAddrs"]["0"], topics=(made,), counter=9)
    request = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": "Golden"}, version=317)
    ours = server.ask(CLIENT, request).body
    assert (ours if b"enableActingMaster" in java else ours.replace(b',"enableActingMaster":false', b"")) == java


def _with_acting_master(body: object) -> object:
    """4.9 omits enableActingMaster; some clients need it, and the others ignore it."""
    if isinstance(body, dict):
        told = {key: _with_acting_master(value) for key, value in body.items()}
        return {"enableActingMaster": False} | told if "brokerAddrs" in body else told
    return [_with_acting_master(item) for item in body] if isinstance(body, list) else body


def test_binary_request_gets_a_binary_response(server: Driver) -> None:
    server.register(BROKER)
    (answer,), _ = server.raw(CLIENT, golden("client-4.9.8-binary-105-get_routeinfo_by_topic"))
    assert answer.binary
    assert json.loads(answer.body)["queueDatas"][0]["perm"] == 7


# --- brokers


def test_unregistered_broker_is_removed_and_unregistering_again_does_nothing(server: Driver) -> None:
    server.register(BROKER)
    fields = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "c", "brokerId": "0"}
    for _ in range(2):
        assert server.ask(CLIENT, Command(RequestCode.UNREGISTER_BROKER, fields=fields)).code == ResponseCode.SUCCESS
    assert server.route(CLIENT, "TopicA") is None


def test_data_version_query_says_whether_to_register_and_keeps_the_broker_alive(server: Driver) -> None:
    fields = {
        "brokerName": "broker-a",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "DefaultCluster",
        "brokerId": "0",
    }
    same = dumps({"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000})
    ask = Command(RequestCode.QUERY_DATA_VERSION, fields=fields, body=same)
    unknown = server.ask(BROKER, ask)
    assert (unknown.fields, unknown.body) == ({"changed": "true"}, b"")
    server.register(BROKER)
    for _ in range(3):
        server.pass_time(90_000)
        answer = server.ask(BROKER, ask)
        assert answer.fields == {"changed": "false"}
        assert json.loads(answer.body) == json.loads(same)
        server.ask(CLIENT, Command(999))
    ask.body = dumps({"counter": 2, "timestamp": 1_700_000_000_000})
    assert server.ask(BROKER, ask).fields == {"changed": "true"}


@spec("G03")
def test_silent_broker_is_removed_and_its_connection_closed_after_exactly_120_s(tmp_path: Path) -> None:
    server = Driver(tmp_path, NameServerConfig(connection_idle_ms=600_000))
    server.open(BROKER)
    server.open(CLIENT)
    server.register(BROKER)
    assert not server.pass_time(120_000).closes
    assert server.route(CLIENT, "TopicA") is not None
    closes = server.pass_time(5_000).closes
    assert [link for link, _ in closes] == [BROKER]
    assert server.route(CLIENT, "TopicA") is None


def test_heartbeat_keeps_a_broker_with_its_own_timeout(server: Driver) -> None:
    server.register(BROKER, heartbeatTimeoutMillis="10000")
    for _ in range(4):
        server.pass_time(9_000)
        beat = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "DefaultCluster"}
        assert server.ask(BROKER, Command(RequestCode.BROKER_HEARTBEAT, fields=beat)).code == ResponseCode.SUCCESS
    assert server.node.broker_hosts() == {"10.0.0.1"}
    server.pass_time(16_000)
    assert server.node.broker_hosts() == set()


def test_member_group_lists_the_live_members(server: Driver) -> None:
    server.register(BROKER)
    answer = server.call(CLIENT, 901, clusterName="DefaultCluster", brokerName="broker-a")
    assert answer.body == (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"broker-a","cluster":"DefaultCluster"}}'
    )
    assert b'"brokerAddrs":{}' in server.call(CLIENT, 901, clusterName="x", brokerName="y").body


# --- topics


def test_topic_lists(server: Driver) -> None:
    server.register(BROKER, topics=(topic("Unit", flag=1), topic("Sub", flag=2), topic("Plain")))

    def listed(code: int, **fields: str) -> object:
        answer = server.ask(CLIENT, Command(code, fields=fields))
        assert answer.code == ResponseCode.SUCCESS
        return json.loads(answer.body)

    assert listed(206) == {"topicList": ["Plain", "Sub", "Unit"]}
    assert listed(224, cluster="DefaultCluster") == {"topicList": ["Plain", "Sub", "Unit"]}
    assert listed(224, cluster="other") == {"topicList": []}
    assert listed(304) == {"brokerAddr": "10.0.0.1:10911", "topicList": ["DefaultCluster", "broker-a"]}
    assert listed(311) == {"topicList": ["Unit"]}
    assert listed(312) == {"topicList": ["Sub"]}
    assert listed(313) == {"topicList": ["Sub"]}
    assert server.call(CLIENT, 216, topic="Sub", clusterName="other").code == ResponseCode.SUCCESS
    assert server.call(CLIENT, 216, topic="Unit", clusterName="DefaultCluster").code == ResponseCode.SUCCESS
    assert server.call(CLIENT, 216, topic="Plain").code == ResponseCode.SUCCESS
    assert listed(206) == {"topicList": ["Sub"]}


def test_system_topics_of_an_empty_name_server(server: Driver) -> None:
    assert json.loads(server.call(CLIENT, 304).body) == {"topicList": []}


def test_single_topic_is_registered(server: Driver) -> None:
    server.register(BROKER)
    queues = {"brokerName": "broker-a", "perm": 6, "readQueueNums": 3, "writeQueueNums": 2, "topicSysFlag": 0}
    assert server.call(BROKER, 217, dumps({"queueDatas": [queues]}), topic="One").code == ResponseCode.SUCCESS
    assert server.route(CLIENT, "One")["queueDatas"] == [queues]


def test_wiped_write_permission_is_visible_to_clients_and_can_be_restored(server: Driver) -> None:
    server.register(BROKER)
    assert server.call(CLIENT, 205, brokerName="broker-a").fields == {"wipeTopicCount": "2"}
    assert server.route(CLIENT, "TopicA")["queueDatas"][0]["perm"] == 4
    assert server.call(CLIENT, 327, brokerName="broker-a").fields == {"addTopicCount": "2"}
    assert server.route(CLIENT, "TopicA")["queueDatas"][0]["perm"] == 6
    assert server.call(CLIENT, 205, brokerName="nobody").fields == {"wipeTopicCount": "0"}


# --- key-value configuration and settings


def test_key_values_over_the_wire(server: Driver) -> None:
    assert server.call(CLIENT, 101, namespace="n", key="k").code == ResponseCode.QUERY_NOT_FOUND
    assert server.call(CLIENT, 219, namespace="n").code == ResponseCode.QUERY_NOT_FOUND
    assert server.call(CLIENT, 100, namespace="n", key="k", value="v").code == ResponseCode.SUCCESS
    assert json.loads(server.call(CLIENT, 219, namespace="n").body) == {"table": {"k": "v"}}
    assert server.call(CLIENT, 102, namespace="n", key="k").code == ResponseCode.SUCCESS
    assert server.call(CLIENT, 101, namespace="n", key="k").code == ResponseCode.QUERY_NOT_FOUND


def test_full_disk_is_reported_to_the_operator(server: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, data: bytes) -> None:
        raise DiskFull(f"{path}: no space for {len(data)} bytes")

    monkeypatch.setattr(server.node.processor._kv_config._disk, "replace", full)
    answer = server.call(CLIENT, 100, namespace="n", key="k", value="v")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "no space" in (answer.remark or "")
    assert server.call(CLIENT, 101, namespace="n", key="k").code == ResponseCode.QUERY_NOT_FOUND


def test_settings_are_shown_and_changed(tmp_path: Path) -> None:
    server = Driver(tmp_path, NameServerConfig(connection_idle_ms=600_000, config_black_list=()))
    server.open(BROKER)
    server.open(CLIENT)
    assert b"brokerExpiry=120000\n" in server.call(CLIENT, 319).body
    server.register(BROKER)
    assert server.call(CLIENT, 318, b"brokerExpiry=10000\n").code == ResponseCode.SUCCESS
    server.pass_time(20_000)
    assert server.node.broker_hosts() == set()


@pytest.mark.parametrize(
    "body",
    [
        b"kvConfigPath=/x",
        b"configStorePath=/x",
        b"configBlackList=a",
        b"rocketmqHome=/x",
        b"listenPort=1",
        b"nobodyKnows=1",
        b"brokerExpiry=soon",
        b"brokerExpiry=20000",
        b"brokerExpiry=0",
        b"brokerExpiry=1",
        b"maxConnections=1",
        b"serverChannelMaxIdleTimeMillis=1",
        b"waitSecondsForService=1",
    ],
)
def test_settings_that_cannot_be_changed_are_refused(server: Driver, body: bytes) -> None:
    answer = server.call(CLIENT, 318, body)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert body.split(b"=")[0].decode() in (answer.remark or "")
    assert server.node.config == NameServerConfig()


# --- bad input


def test_unknown_code_is_answered_with_its_number(server: Driver) -> None:
    answer = server.ask(CLIENT, Command(4711))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "4711" in (answer.remark or "")


@pytest.mark.parametrize("code", [100, 101, 102, 103, 104, 105, 205, 216, 217, 219, 224, 322, 327, 901, 904])
def test_request_with_missing_fields_is_answered_with_their_names(server: Driver, code: int) -> None:
    answer = server.ask(CLIENT, Command(code))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "is missing" in (answer.remark or "")


def test_one_way_requests_and_responses_are_not_answered(server: Driver) -> None:
    for flag in (FLAG_ONEWAY, FLAG_RESPONSE):
        for code in (105, 4711):
            answers, turn = server.raw(CLIENT, encode_command(Command(code, flag=flag)))
            assert not answers
            assert not turn.closes


def test_many_requests_in_one_read_are_answered_in_order(server: Driver) -> None:
    data = b"".join(encode_command(Command(206, opaque=number)) for number in range(50))
    answers, _ = server.raw(CLIENT, data)
    assert [answer.opaque for answer in answers] == list(range(50))


def test_garbage_closes_only_its_connection(server: Driver) -> None:
    server.register(BROKER)
    good = encode_command(Command(206, opaque=1))
    answers, turn = server.raw(CLIENT, good + b"GET / HTTP/1.1\r\n\r\n" + good)
    assert [answer.opaque for answer in answers] == [1]
    assert [link for link, _ in turn.closes] == [CLIENT]
    answers, turn = server.raw(CLIENT, good)
    assert not answers
    assert not turn.closes
    assert server.close(CLIENT).closes == []
    assert server.route(BROKER, "TopicA") is not None


def test_broker_that_sends_garbage_is_removed(server: Driver) -> None:
    server.register(BROKER)
    server.raw(BROKER, b"\xff" * 100)
    assert server.route(CLIENT, "TopicA") is None


@spec("G03")
def test_only_idle_connections_are_closed_after_120_s(server: Driver) -> None:
    for _ in range(4):
        server.pass_time(30_000)
        server.call(BROKER, 206)
    closes = server.pass_time(5_000).closes
    assert [link for link, _ in closes] == [CLIENT]
    assert len(server.node._connections) == 1
    server.close(BROKER)
    server.pass_time(60_000)
    assert server.node.deadline_ms() is None


def test_connections_beyond_the_limit_are_closed(tmp_path: Path) -> None:
    server = Driver(tmp_path, NameServerConfig(connections_max=2))
    assert not server.open(1).closes
    assert not server.open(2).closes
    assert [link for link, _ in server.open(3).closes] == [3]
    server.close(1)
    assert not server.open(4).closes


def test_connection_that_does_not_read_its_responses_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = FakeOutbox()
    server = Driver(tmp_path, outbox=outbox)
    server.open(CLIENT)
    monkeypatch.setattr(module, "BACKLOG_BYTES_MAX", 10_000)
    _, turn = server.raw(CLIENT, encode_command(Command(206)) * 1_000)
    assert [link for link, _ in turn.closes] == [CLIENT]
    assert sum(map(len, turn.sends[CLIENT])) <= 10_000
    server.open(BROKER)
    assert server.call(BROKER, 206).code == ResponseCode.SUCCESS
    outbox.waiting = 9_990
    _, turn = server.raw(BROKER, encode_command(Command(206)))
    assert [link for link, _ in turn.closes] == [BROKER]


def test_connection_that_reads_its_responses_is_never_closed(server: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKLOG_BYTES_MAX", 1_000)
    for _ in range(50):
        assert server.call(CLIENT, 206).code == ResponseCode.SUCCESS


def test_frame_over_the_limit_is_never_buffered(tmp_path: Path) -> None:
    server = Driver(tmp_path, NameServerConfig(frame_bytes_max=1_024))
    server.open(CLIENT)
    _, turn = server.raw(CLIENT, (2_000).to_bytes(4, "big") + (10).to_bytes(4, "big"))
    assert [link for link, _ in turn.closes] == [CLIENT]


REQUESTS = [
    golden(name)
    for name in (
        "broker-4.9.7-103-register_broker",
        "broker-5.3.3-103-register_broker",
        "broker-5.3.3-104-unregister_broker",
        "client-4.9.8-105-get_routeinfo_by_topic",
        "client-5.3.3-binary-105-get_routeinfo_by_topic",
    )
] + [encode_command(registration(compress=True)), encode_command(Command(318, body=b"brokerExpiry=5"))]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.builds(
                lambda data, position, byte: (
                    data[: position % len(data)] + bytes([byte]) + data[position % len(data) + 1 :]
                ),
                st.sampled_from(REQUESTS),
                st.integers(0, 1 << 16),
                st.integers(0, 255),
            ),
            st.builds(lambda data, cut: data[: cut % len(data)], st.sampled_from(REQUESTS), st.integers(0, 1 << 16)),
        ),
        max_size=4,
    ),
    cut=st.integers(1, 500),
)
def test_any_bytes_are_answered_or_close_only_their_connection(tmp_path: Path, pieces: list[bytes], cut: int) -> None:
    server = Driver(tmp_path)
    server.open(1)
    server.open(2)
    server.register(2, name="other", address="10.0.0.7:1")
    data = b"".join(pieces)
    for start in range(0, len(data), cut):
        server.raw(1, data[start : start + cut])
    assert len(server.node._connections) in (1, 2)
    assert server.route(2, "TopicA") is not None


texts = st.text(max_size=20)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    code=st.sampled_from(
        [100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 318, 319, 322, 327, 901, 904, 4711]
    ),
    fields=st.dictionaries(
        st.sampled_from(
            [
                "topic",
                "brokerName",
                "brokerAddr",
                "clusterName",
                "brokerId",
                "namespace",
                "key",
                "value",
                "cluster",
                "bodyCrc32",
                "compressed",
                "heartbeatTimeoutMillis",
                "__ZONE_NAME",
                "haServerAddr",
            ]
        ),
        texts | st.integers().map(str),
    ),
    body=st.binary(max_size=50),
    binary=st.booleans(),
    version=st.integers(-(1 << 15), (1 << 15) - 1),
)
def test_any_request_is_answered(
    tmp_path: Path, code: int, fields: dict[str, str], body: bytes, binary: bool, version: int
) -> None:
    server = Driver(tmp_path)
    server.open(1)
    answer = server.ask(1, Command(code, fields=fields, body=body, binary=binary, version=version))
    assert answer.code == ResponseCode.SUCCESS or answer.remark


def test_invalid_unicode_does_not_stop_the_server(server: Driver) -> None:
    header = b'{"code":105,"opaque":1,"extFields":{"topic":"\\ud800"}}'
    frame = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    answers, turn = server.raw(CLIENT, frame)
    assert answers or turn.closes
    body = b"{'topicConfigSerializeWrapper':{'topicConfigTable':{'\\ud800':{'perm':6}}}}"
    request = registration()
    request.body, request.fields["bodyCrc32"] = body, "0"
    assert server.ask(BROKER, request).code == ResponseCode.SUCCESS
    assert json.loads(server.call(BROKER, 206).body) == {"topicList": []}
    mapping = b'"topicQueueMappingInfoMap":{"t":{"topic":"t","bname":"b","dirty":"\\ud800"}}'
    request.body = b"{'topicConfigSerializeWrapper':{%b}}" % mapping
    assert server.ask(BROKER, request).code == ResponseCode.SYSTEM_ERROR


def test_error_of_ours_ends_one_connection_only(server: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(server.node.processor, "process", fail)
    _, turn = server.raw(CLIENT, encode_command(Command(105, 1, fields={"topic": "T"})))
    assert turn.closes == [(CLIENT, "an error of ours")]
    monkeypatch.undo()
    assert json.loads(server.call(BROKER, 206).body) == {"topicList": []}


# --- who has the smallest id


def told_min_ids(turn: Turn, link: int) -> list[dict[str, str]]:
    frames = FrameDecoder().feed(b"".join(turn.sends.get(link, [])))
    found = [decode_command(frame) for frame in frames]
    return [c.fields for c in found if c.code == RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE and c.is_oneway]


def test_members_are_notified_of_the_smallest_id_when_a_member_joins_or_leaves(tmp_path: Path) -> None:
    server = Driver(tmp_path, NameServerConfig(notify_min_id=True))
    for broker_id in (0, 1, 2):
        server.open(10 + broker_id)
        server.register(10 + broker_id, broker_id=broker_id, address=f"10.0.0.{broker_id}:10911")
    turn = server.node.turn([], [Closed(10, "killed")], server.now)
    expected = {
        "brokerName": "broker-a",
        "minBrokerId": "1",
        "minBrokerAddr": "10.0.0.1:10911",
        "offlineBrokerAddr": "10.0.0.0:10911",
    }
    assert told_min_ids(turn, 11) == [expected]
    assert told_min_ids(turn, 12) == [expected]
    again = encode_command(registration(address="10.0.0.0:10911"))
    opened = Opened(20, LinkKind.REMOTING, "10.0.0.0:9")
    turn = server.node.turn([(20, again)], [opened], server.now)
    assert told_min_ids(turn, 20) == []
    for link in (11, 12):
        (told,) = told_min_ids(turn, link)
        assert (told["minBrokerId"], told["minBrokerAddr"]) == ("0", "10.0.0.0:10911")
        assert told["haBrokerAddr"]
        assert "offlineBrokerAddr" not in told
    turn = server.node.turn([], [Closed(12, "killed")], server.now)
    assert not turn.sends


def test_smallest_ids_are_not_notified_by_default(server: Driver) -> None:
    server.register(BROKER)
    server.open(3)
    server.register(3, broker_id=1, address="10.0.0.9:10911")
    turn = server.node.turn([], [Closed(BROKER, "killed")], server.now)
    assert not turn.sends


def version_of(server: Driver) -> str:
    return server.ask(CLIENT, Command(RequestCode.TANDEM_ROUTES_VERSION)).fields["version"]


def test_version_of_routes_changes_with_them_and_only_then(server: Driver) -> None:
    seen = [version_of(server)]
    server.register(BROKER)
    seen.append(version_of(server))
    assert version_of(server) == seen[-1]
    server.register(BROKER)
    assert version_of(server) == seen[-1], "a sign of life changes nothing"
    server.register(BROKER, address="10.0.0.7:10911")
    seen.append(version_of(server))
    assert len(set(seen)) == 3
