"""Decoding of broker registrations in every dialect, and malformed ones."""

import zlib
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.codec.remoting.frame import FrameDecoder, decode_command
from tandemq.errors import ProtocolError
from tandemq.model.command import Command
from tandemq.nameserver import registration as module
from tandemq.nameserver.broker_data import TopicQueues, Version
from tandemq.nameserver.registration import (
    integer_field,
    name_field,
    read_queue_datas,
    read_registration,
    read_version,
)
from tests.unit.nameserver.driver import block, compressed_body, dumps, golden, registration, topic

DATA_VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 5}


def with_body(body: bytes, **fields: str) -> Command:
    request = registration()
    request.body = body
    request.fields |= {"bodyCrc32": "0", **fields}
    return request


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_registration_of_a_java_broker_is_decoded(version: str) -> None:
    (frame,) = FrameDecoder().feed(golden(f"broker-{version}-103-register_broker"))
    told = read_registration(decode_command(frame))
    assert (told.cluster, told.broker_name, told.broker_id) == ("DefaultCluster", "broker-a", 0)
    assert (told.address, told.ha_address) == ("127.0.0.1:10911", "127.0.0.1:10912")
    assert told.topics["TBW102"] == TopicQueues(7, 8, 8)
    assert told.topics["SCHEDULE_TOPIC_XXXX"].read_queue_nums == 18
    assert told.version.timestamp > 1_700_000_000_000


@pytest.mark.parametrize("version", [409, 479])
@pytest.mark.parametrize("honest", [True, False])
def test_compressed_body_equals_the_plain_one(version: int, honest: bool) -> None:
    mapping = {"topic": "TopicA", "bname": "broker-a", "totalQueues": 4, "epoch": 1, "currIdMap": {"0": 1}}
    told: dict[str, Any] = {"version": version, "filter_servers": ("f:1",), "mappings": {"TopicA": mapping}}
    plain = read_registration(registration(**told))
    packed = registration(**told, compress=True)
    if not honest:
        packed.fields["compressed"] = "false"
    read = read_registration(packed)
    assert (read.topics, read.version, read.filter_servers) == (plain.topics, plain.version, plain.filter_servers)
    assert plain.mappings["TopicA"]["currIdMap"] == {0: 1}
    assert read.mappings == (plain.mappings if version >= 413 else {})


def test_brokers_before_3_0_11_send_the_bare_table() -> None:
    body = dumps({"dataVersion": DATA_VERSION, "topicConfigTable": {"T": topic("T")}})
    request = with_body(body)
    request.version = 36
    assert read_registration(request).topics == {"T": TopicQueues(6, 4, 4)}


def test_empty_body_is_a_broker_without_topics() -> None:
    told = read_registration(with_body(b""))
    assert told.topics == {}
    assert told.version == Version()


def test_java_dialect_and_numbers_as_text_are_accepted() -> None:
    body = (
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"6","readQueueNums":4,"writeQueueNums":4}},'
        b'"topicQueueMappingInfoMap":{"T":{"topic":"T","bname":"b","currIdMap":{0:7}}}}}'
    )
    told = read_registration(with_body(body))
    assert told.topics == {"T": TopicQueues(6, 4, 4)}
    assert told.mappings["T"]["currIdMap"] == {0: 7}


@pytest.mark.parametrize(
    "odd",
    [
        {"readQueueNums": -1},
        {"writeQueueNums": 1 << 40},
        {"perm": "six"},
        {"perm": 1.5},
        {"topicSysFlag": True},
    ],
)
def test_invalid_topic_is_skipped_and_the_others_are_kept(
    odd: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    told = read_registration(registration(topics=(topic("Good"), topic("Odd") | odd, topic("\n"))))
    assert list(told.topics) == ["Good"]
    assert "count=2" in caplog.text


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("brokerName", "", "brokerName is missing"),
        ("brokerAddr", "", "brokerAddr is missing"),
        ("clusterName", "", "clusterName is missing"),
        ("brokerId", "", "brokerId is missing"),
        ("brokerId", "one", "not an integer"),
        ("brokerId", "-1", "slaves count from 1"),
        ("brokerId", "99999999999999999999", "not an integer"),
        ("brokerId", "9999999999999999999", "not an integer"),
        ("brokerName", "x" * 256, "not a valid name"),
        ("brokerName", "a\nb", "not a valid name"),
        ("bodyCrc32", "1", "crc32 not match"),
        ("heartbeatTimeoutMillis", "-5", "heartbeatTimeoutMillis"),
        ("heartbeatTimeoutMillis", "99999999999", "heartbeatTimeoutMillis"),
        ("brokerWeight", "1000001", "brokerWeight"),
        ("brokerWeight", "much", "not an integer"),
    ],
)
def test_bad_header_fields_are_named(field: str, value: str, what: str) -> None:
    request = registration()
    request.fields[field] = value
    with pytest.raises(ProtocolError, match=what):
        read_registration(request)


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{",
        b"nonsense",
        b"\xff\xfe",
        b'{"topicConfigSerializeWrapper":[1]}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":[1]}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":5}}}',
        b'{"topicConfigSerializeWrapper":{"dataVersion":7}}',
        b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":"x"}}}',
        b'{"topicConfigSerializeWrapper":{"topicQueueMappingInfoMap":{"t":{}}}}',
        b'{"filterServerList":{}}',
        b'{"filterServerList":[1]}',
        zlib.compress(b""),
        zlib.compress(b"\xff\xff\xff\xff"),
        zlib.compress(block(b"{}") + pack(">i", 7)),
        zlib.compress(block(b"{}") + pack(">i", 1) + block(b"\xff\xff")),
        compressed_body(DATA_VERSION, (topic("T"),))[:-9],
        b"\x78" * 40,
    ],
)
def test_bad_bodies_are_errors_of_the_sender(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_registration(with_body(body))


def test_uncompressed_body_marked_as_compressed_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="not a zlib stream"):
        read_registration(with_body(b"{}", compressed="true"))


def test_zip_bomb_is_not_inflated() -> None:
    bomb = zlib.compress(b"\x00" * (module.INFLATED_BYTES_MAX + 1), 9)
    assert len(bomb) < 64 << 10
    with pytest.raises(ProtocolError, match="more than"):
        read_registration(with_body(bomb))


def test_more_topics_than_a_broker_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOPICS_MAX", 2)
    for compress in (True, False):
        with pytest.raises(ProtocolError, match="may register 2 topics"):
            read_registration(registration(topics=tuple(topic(name) for name in "abc"), compress=compress))


def test_data_versions_are_compared_as_a_whole() -> None:
    assert read_version(DATA_VERSION) == Version(1, 0, 5)
    assert read_version({"counter": 1, "timestamp": 5}) == Version(1, 0, 5)
    assert read_version({"counter": 1, "stateVersion": 2, "timestamp": 5}) != Version(1, 0, 5)


def test_queue_datas_without_broker_are_refused() -> None:
    good = {"brokerName": "b", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
    assert read_queue_datas(dumps({"queueDatas": [good]})) == {"b": TopicQueues(6, 1, 1)}
    for bad in ({**good, "brokerName": 1}, {**good, "perm": -1}, 5):
        with pytest.raises(ProtocolError):
            read_queue_datas(dumps({"queueDatas": [bad]}))


@pytest.mark.parametrize("value", ["1_0", " 1", "１", "0x1", "+", "1.0", ""])
def test_integers_are_read_as_java_reads_them(value: str) -> None:
    with pytest.raises(ProtocolError):
        integer_field(Command(1, fields={"n": value}), "n")
    assert integer_field(Command(1, fields={"n": "+7"}), "n") == 7
    with pytest.raises(ProtocolError):
        name_field(Command(1, fields={}), "n")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    json_values,
    st.sampled_from(
        [
            "filterServerList",
            "topicConfigSerializeWrapper",
            "dataVersion",
            "topicConfigTable",
            "topicQueueMappingInfoMap",
        ]
    ),
)
def test_any_json_in_any_place_is_decoded_or_refused(value: object, place: str) -> None:
    wrapper: dict[str, object] = {"topicConfigTable": {"T": topic("T")}}
    body: dict[str, object] = {"topicConfigSerializeWrapper": wrapper}
    (body if place in ("filterServerList", "topicConfigSerializeWrapper") else wrapper)[place] = value
    try:
        told = read_registration(with_body(dumps(body)))
    except ProtocolError:
        return
    assert all(isinstance(number, int) for queues in told.topics.values() for number in queues)


@given(st.binary(max_size=200))
def test_any_compressed_bytes_are_decoded_or_refused(data: bytes) -> None:
    try:
        told = read_registration(with_body(zlib.compress(data)))
    except ProtocolError:
        return
    assert all(isinstance(queues, TopicQueues) for queues in told.topics.values())


def test_weight_zone_and_mode_are_decoded() -> None:
    request = registration()
    request.fields |= {"brokerWeight": "0", "__ZONE_NAME": "east", "failoverMode": "elect"}
    told = read_registration(request)
    assert (told.weight, told.zone, told.mode) == (0, "east", "elect")
    request.fields |= {"brokerWeight": "", "failoverMode": "unheard of"}
    told = read_registration(request)
    assert (told.weight, told.mode) == (None, "")
