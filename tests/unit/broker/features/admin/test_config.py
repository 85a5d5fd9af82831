"""Settings read and changed at run time: a change takes effect completely and at once, or not at all."""

from pathlib import Path

import pytest

from tandemq.boundary import LinkKind, Opened
from tandemq.codec.remoting.fastjson import loads
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tests.unit.broker.harness import Harness, run_job


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    return Harness(tmp_path, name_servers=("10.0.0.9:9876",))


def change(broker: Harness, *lines: str) -> Command:
    return broker.ask(Code.UPDATE_BROKER_CONFIG, None, "\n".join(lines).encode())


def settings(broker: Harness) -> dict[str, str]:
    body = broker.ask(Code.GET_BROKER_CONFIG).body.decode()
    return dict(line.split("=", 1) for line in body.splitlines())


def change_settings(broker: Harness, *lines: str) -> None:
    answer = change(broker, *lines)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def test_settings_are_shown_under_rocketmqs_names_with_a_version(broker: Harness) -> None:
    found = settings(broker)
    assert (found["brokerName"], found["brokerRole"], found["autoCreateTopicEnable"]) == (
        "broker-a",
        "ASYNC_MASTER",
        "true",
    )
    change_settings(broker, "maxMsgsNumBatch=63")
    answer = broker.ask(Code.GET_BROKER_CONFIG)
    assert loads(answer.fields["version"].encode())["counter"] == 1
    assert settings(broker)["maxMsgsNumBatch"] == "63"


def test_settings_that_tools_need_are_shown_although_they_cannot_be_changed(broker: Harness) -> None:
    shown = settings(broker)
    assert {key: shown[key] for key in ("filterServerNums", "traceOn", "traceTopicEnable", "useTLS")} == {
        "filterServerNums": "0",
        "traceOn": "true",
        "traceTopicEnable": "false",
        "useTLS": "false",
    }
    body = broker.ask(Code.GET_BROKER_CONFIG).body.decode().splitlines()
    assert len(body) == len(shown)


@pytest.mark.parametrize(
    ("lines", "remark"),
    [
        (("listenPort=1",), "only read at the start"),
        (("nonsense=1",), "unknown setting"),
        (("inSyncReplicas=1",), "configBlackList names it"),
        (("flushDiskType=SYNC_FLUSH",), "configBlackList names it"),
        (("configBlackList=x",), "in the configuration file"),
        (("maxConnections=1",), "outside 1000 to 1000000"),
        (("serverChannelMaxIdleTimeMillis=59000",), "outside 60000 to"),
        (("serverChannelMaxIdleTimeSeconds=1",), "outside 60000 to"),
        (("flushIntervalCommitLog=100000000",), "outside 10 to 60000"),
        (("maxHaTransferByteInSecond=1",), "outside 1048576 to"),
        (("diskSpaceCleanForciblyRatio=0.01",), "outside 0.5 to 1"),
        (("brokerPermission=2",), "outside 4 to 6"),
        (("registerBrokerTimeoutMills=100",), "outside 1000 to"),
        (("shortPollingTimeMills=60000",), "outside 100 to 10000"),
        (("diskSpaceCleanForciblyRatio=0.5",), "configBlackList names it; change it there and restart"),
        (("maxMsgsNumBatch=63", "reserved_hours=1"), "fileReservedTime: can only be changed in the configuration file"),
        (("useServerSideResetOffset=true",), "has no effect"),
        (("filterServerNums=1",), "filter servers"),
        (("timerPrecisionMs=500",), "only read at the start"),
        (("timerMaxDelaySec=0",), "outside 1 to"),
        (("slaveTimeout=70", "sendMessageThreadPoolNums=4"), "has no effect"),
        (("brokerConfigPath=x",), "cannot be changed"),
        (("maxMsgsNumBatch=63", "slaveTimeout=none"), "not a whole number"),
        (("fileReservedTime=70", "diskSpaceWarningLevelRatio=0.99"), "diskSpaceCleanForciblyRatio"),
    ],
)
def test_invalid_change_changes_nothing(broker: Harness, lines: tuple[str, ...], remark: str) -> None:
    before = settings(broker)
    answer = change(broker, *lines)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert remark in (answer.remark or "")
    assert settings(broker) == before


def test_settings_that_are_not_text_are_refused(broker: Harness) -> None:
    assert broker.ask(Code.UPDATE_BROKER_CONFIG, None, b"\xff\xfe").code == ResponseCode.SYSTEM_ERROR


def test_empty_change_has_no_effect(broker: Harness) -> None:
    change_settings(broker)
    assert loads(broker.ask(Code.GET_BROKER_CONFIG).fields["version"].encode())["counter"] == 0


def test_permission_takes_effect_and_is_registered_at_name_servers(broker: Harness) -> None:
    [connect] = broker.connects
    broker.turn([], [Opened(connect.link, LinkKind.PEER, "10.0.0.9:9876")])
    [first] = broker.take_requests(Code.REGISTER_BROKER, link=connect.link)
    broker.reply(first, link=connect.link)
    fields = {"topic": "Ordered", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "order": True}
    broker.ask(Code.UPDATE_AND_CREATE_TOPIC, fields)
    assert broker.send("Ordered").code == ResponseCode.SUCCESS
    before = broker.take_requests(Code.REGISTER_BROKER, link=connect.link)[-1]

    change_settings(broker, "brokerPermission=4")
    [registered] = broker.take_requests(Code.REGISTER_BROKER, link=connect.link)
    tables = [loads(command.body)["topicConfigSerializeWrapper"] for command in (before, registered)]
    assert [table["topicConfigTable"]["Ordered"]["perm"] for table in tables] == [6, 4]
    assert tables[1]["dataVersion"]["counter"] == tables[0]["dataVersion"]["counter"] + 1
    assert broker.send("Ordered").code == ResponseCode.NO_PERMISSION

    change_settings(broker, "brokerPermission=6")
    assert broker.send("Ordered").code == ResponseCode.SUCCESS
    write_only = broker.restart(permission=2)
    assert write_only.send("Ordered").code == ResponseCode.SUCCESS
    refused = write_only.pull("Ordered")
    assert refused is not None
    assert refused.code == ResponseCode.NO_PERMISSION


def test_topics_are_created_by_sending_by_the_changed_setting(broker: Harness) -> None:
    change_settings(broker, "autoCreateTopicEnable=false")
    assert broker.send("TopicA").code == ResponseCode.TOPIC_NOT_EXIST
    change_settings(broker, "autoCreateTopicEnable=true", "defaultTopicQueueNums=2")
    assert broker.send("TopicA").code == ResponseCode.SUCCESS
    assert broker.json(Code.GET_TOPIC_CONFIG, {"topic": "TopicA"})["writeQueueNums"] == 2


def test_groups_are_created_by_pulling_by_the_changed_setting(broker: Harness) -> None:
    broker.send("TopicA")
    change_settings(broker, "autoCreateSubscriptionGroup=false")
    answer = broker.pull("TopicA", group="fresh")
    assert answer is not None
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_message_size_is_limited_by_the_changed_setting(broker: Harness) -> None:
    change_settings(broker, "maxMessageSize=1024")
    assert broker.send("TopicA", bytes(1025)).code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.send("TopicA", bytes(1024)).code == ResponseCode.SUCCESS
    assert broker.send("TopicA", bytes(1025)).code == ResponseCode.MESSAGE_ILLEGAL, "also on the fast path"


def test_pull_responses_are_limited_by_the_changed_setting(broker: Harness) -> None:
    for _ in range(3):
        broker.send("TopicA")
    change_settings(broker, "maxTransferCountOnMessageInMemory=2")
    answer = broker.pull("TopicA")
    assert answer is not None
    assert answer.fields["nextBeginOffset"] == "2"


def test_changed_flush_type_delays_responses_from_then_on(tmp_path: Path) -> None:
    broker = Harness(tmp_path, config_black_list=("configBlackList",))
    broker.create_topic("TopicA")
    change_settings(broker, "flushDiskType=SYNC_FLUSH")
    broker.run_jobs = False
    asked = broker.send_request(
        Code.SEND_MESSAGE_V2, {"a": "p", "b": "TopicA", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 0, "h": 0}, b"x"
    )
    assert broker.answer_to(asked) is None
    broker.send_request(Code.UPDATE_BROKER_CONFIG, None, b"flushDiskType=ASYNC_FLUSH")
    answer = broker.answer_to(asked)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS


def test_changed_periods_take_effect_after_the_next_run(broker: Harness) -> None:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}
    broker.create_topic("T")
    change_settings(broker, "flushConsumerOffsetInterval=60000")
    broker.pass_time(5_000)
    broker.ask(Code.UPDATE_CONSUMER_OFFSET, fields)
    broker.pass_time(50_000)
    assert b"T@g" not in (broker.disk.read("config/consumerOffset.json") or b"")
    broker.pass_time(10_000)
    assert b"T@g" in (broker.disk.read("config/consumerOffset.json") or b"")


def test_retention_follows_the_setting_where_the_file_allows_it(tmp_path: Path) -> None:
    broker = Harness(tmp_path, config_black_list=())
    change_settings(broker, "fileReservedTime=1", "diskMaxUsedSpaceRatio=90", "deleteWhen=00;12")
    retention = broker.node.upkeep.retention
    assert (retention.reserved_ms, retention.used_ratio, retention.delete_hours) == (3_600_000, 0.9, frozenset({0, 12}))


def test_changes_survive_a_restart_and_are_shown(broker: Harness, tmp_path: Path) -> None:
    broker = broker.restart(config_black_list=())
    change_settings(broker, "fileReservedTime=71", "slaveTimeout=2000")
    change_settings(broker, "slaveTimeout=3000")
    kept = loads((tmp_path / "config" / "brokerSettings.json").read_bytes())
    assert kept == {"settings": {"fileReservedTime": {"value": "71", "insteadOf": "72"}}}
    again = broker.restart(clean=False, config_black_list=())
    assert settings(again)["fileReservedTime"] == "71"
    assert again.node.upkeep.retention.reserved_ms == 71 * 3_600_000
    change_settings(again, "fileReservedTime=70")
    assert settings(again.restart(config_black_list=()))["fileReservedTime"] == "70"


def test_edit_of_the_file_takes_precedence_over_an_older_change(broker: Harness) -> None:
    change_settings(broker, "slaveTimeout=2000")
    edited = broker.restart(name_servers=("10.0.0.9:9876",), slave_timeout_ms=4_000)
    assert settings(edited)["slaveTimeout"] == "4000"
    back = edited.restart(name_servers=("10.0.0.9:9876",))
    assert settings(back)["slaveTimeout"] == "3000"


def test_answer_to_a_change_of_settings_waits_until_it_is_saved(broker: Harness) -> None:
    broker.run_jobs = False
    asked = broker.send_request(Code.UPDATE_BROKER_CONFIG, None, b"slaveTimeout=2000")
    assert broker.answer_to(asked) is None
    (job,) = broker.jobs
    broker.turn([], [run_job(job)])
    assert broker.answer_to(asked) is not None


def test_weight_is_registered_at_name_servers_unless_it_is_the_default(broker: Harness) -> None:
    [connect] = broker.connects
    broker.turn([], [Opened(connect.link, LinkKind.PEER, "10.0.0.9:9876")])
    [registered] = broker.take_requests(Code.REGISTER_BROKER, link=connect.link)
    assert "brokerWeight" not in registered.fields
    broker.reply(registered, link=connect.link)
    change_settings(broker, "brokerWeight=250")
    [registered] = broker.take_requests(Code.REGISTER_BROKER, link=connect.link)
    assert registered.fields["brokerWeight"] == "250"
    assert "failoverMode" not in registered.fields


def test_settings_on_the_blacklist_of_the_file_cannot_be_changed_and_all_others_can(tmp_path: Path) -> None:
    broker = Harness(tmp_path, config_black_list=("configBlackList", "fileReservedTime"))
    assert "configBlackList names it" in str(change(broker, "fileReservedTime=70").remark)
    change_settings(broker, "fileReservedTime=" + settings(broker)["fileReservedTime"])
    change_settings(broker, "inSyncReplicas=1")


def test_stored_change_that_is_no_longer_valid_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A change from before there were limits: the broker starts with the value of the file, and logs a warning."""
    broker = Harness(tmp_path)
    broker.disk.replace(
        "config/brokerSettings.json",
        b'{"settings":{"maxConnections":{"value":"1","insteadOf":"50000"},'
        b'"inSyncReplicas":{"value":"1","insteadOf":"2"},"fileReservedTime":{"value":"1","insteadOf":"72"},'
        b'"slaveTimeout":{"value":"2000","insteadOf":"3000"}}}',
    )
    found = settings(broker.restart(clean=False))
    assert (found["maxConnections"], found["inSyncReplicas"]) == ("50000", "2")
    assert (found["fileReservedTime"], found["slaveTimeout"]) == ("72", "2000")
    assert "maxConnections=1, set at run time, is dropped" in caplog.text
