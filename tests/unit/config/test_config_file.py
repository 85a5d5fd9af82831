"""Reading and writing settings: TOML and properties in, properties out, changes while a node runs."""

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.config.files import (
    _MISSING,
    _REFUSED,
    CHANGE_CHARACTERS_MAX,
    ERRORS_MAX,
    LIVE_KEYS,
    as_properties,
    changed,
    load_broker_config,
    load_name_server_config,
)
from tandemq.config.rocketmq_keys import BROKER_KEYS, NAME_SERVER_KEYS
from tandemq.config.settings import BrokerConfig, NameServerConfig
from tandemq.errors import ConfigError
from tests.spec import spec
from tools.reference import settings_page

ROOT = Path(__file__).resolve().parents[3]


class Loaded:
    """A configuration and the warnings of its parser."""

    def __init__(self, text: str, path: str = "broker.conf", overrides: Mapping[str, str] | None = None) -> None:
        self.warnings: list[str] = []
        self.config = load_broker_config(text, path=path, warn=self.warnings.append, overrides=overrides)


def refused(text: str, path: str = "broker.conf") -> str:
    with pytest.raises(ConfigError) as caught:
        Loaded(text, path)
    return str(caught.value)


# --- both syntaxes


def test_rocketmq_broker_conf_is_accepted_unchanged() -> None:
    loaded = Loaded(
        "# a comment\r\nbrokerClusterName = DefaultCluster\r\nbrokerName=broker-b\r\nbrokerId = 1\r\n"
        "deleteWhen = 04\r\n"
        "fileReservedTime = 48\r\nbrokerRole=SLAVE\r\nflushDiskType = ASYNC_FLUSH\r\nnamesrvAddr=a:9876;b:9876;\r\n"
        "listenPort=10921 \r\nslaveReadEnable=TRUE\r\nstorePathRootDir=/data/store\r\n"
        "storePathCommitLog=/data/store/commitlog\r\n"
    )
    config = loaded.config
    assert (config.broker_name, config.broker_id, config.role) == ("broker-b", 1, "SLAVE")
    assert config.name_servers == ("a:9876", "b:9876")
    assert (config.listen_port, config.reserved_hours, config.slave_read_enable) == (10_921, 48, True)
    assert config.delete_when == "04"
    assert loaded.warnings == ["broker.conf: these settings of RocketMQ have no effect on TandemQ: storePathCommitLog"]


def test_toml_accepts_its_types_texts_and_field_names() -> None:
    config = Loaded(
        'brokerName = "b"\nlistenPort = 10921\nha_port = "10930"\nnamesrvAddr = ["a:1", "b:2"]\n'
        'slaveReadEnable = true\ndisk_force_ratio = 0.5\nhaClassicPeers = "10.0.0.1;10.0.0.2"\n',
        "broker.toml",
    ).config
    assert (config.broker_name, config.listen_port, config.ha_port) == ("b", 10_921, 10_930)
    assert config.name_servers == ("a:1", "b:2")
    assert config.slave_read_enable
    assert config.disk_force_ratio == 0.5
    assert config.ha_classic_peers == ("10.0.0.1", "10.0.0.2")


def test_name_server_settings_are_read_and_java_s_path_is_its_directory() -> None:
    warnings: list[str] = []
    config = load_name_server_config(
        "listenPort=9877\nkvConfigPath=/srv/namesrv/kvConfig.json\norderMessageEnable=true\nclusterTest=false\n",
        path="namesrv.conf",
        warn=warnings.append,
        overrides={"listenPort": "0"},
    )
    assert (config.listen_port, config.data_path, config.order_message_enable) == (0, "/srv/namesrv", True)
    assert len(warnings) == 1
    assert "clusterTest" in warnings[0]


def test_command_line_overrides_the_file_without_a_warning() -> None:
    loaded = Loaded("listenPort=10921\nbrokerName=file\n", overrides={"listenPort": "0", "broker_name": "line"})
    assert (loaded.config.listen_port, loaded.config.broker_name) == (0, "line")
    assert not loaded.warnings
    with pytest.raises(ConfigError, match="command line: listenPort: 'x' is not a whole number"):
        Loaded("", overrides={"listenPort": "x"})


# --- keys


def test_ignored_rocketmq_keys_give_one_warning() -> None:
    loaded = Loaded(
        "sendMessageThreadPoolNums=16\nuseReentrantLockWhenPutMessage=true\ntransientStorePoolEnable=false\n"
    )
    assert loaded.config == BrokerConfig()
    assert len(loaded.warnings) == 1
    for key in ("sendMessageThreadPoolNums", "useReentrantLockWhenPutMessage", "transientStorePoolEnable"):
        assert key in loaded.warnings[0]


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("brokerNmae", "brokerName"),
        ("listenport", "listenPort"),
        ("fileReservedTimes", "fileReservedTime"),
        ("sendMessageThreadPoolNum", "sendMessageThreadPoolNums"),
    ],
)
def test_unknown_key_is_an_error_that_suggests_the_nearest(key: str, nearest: str) -> None:
    assert refused(f"\n{key}=1\n") == f"broker.conf:2: {key}: unknown setting (did you mean {nearest}?)"


def test_unprintable_key_is_reported_escaped() -> None:
    assert refused("\\ud800\\u0007=1").isprintable()


def test_key_without_a_similar_one_points_to_the_settings_page() -> None:
    assert "the documentation lists all settings" in refused("zzzzzzzz=1")


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("enableLmq=TRUE", "light queues are not supported"),
        ("metricsGrpcExporterTarget=collector:4317", "set metricsExporterType=OTLP_HTTP"),
        ("metricsPromExporterHost=10.0.0.1", "metricsBindAddress is the interface"),
        ("fetchNamesrvAddrByAddressServer=true", "set namesrvAddr"),
        ("messageStorePlugIn=org.example.Store", "plug-ins"),
    ],
)
def test_setting_of_a_missing_feature_gives_its_own_warning(line: str, missing: str) -> None:
    loaded = Loaded(f"{line}\nsendMessageThreadPoolNums=16\n")
    assert loaded.config == BrokerConfig()
    assert len(loaded.warnings) == 2
    assert loaded.warnings[0].startswith(f"broker.conf: {line.partition('=')[0]} = ")
    assert missing in loaded.warnings[0]
    assert loaded.warnings[1].endswith(" have no effect on TandemQ: sendMessageThreadPoolNums")


@pytest.mark.parametrize(
    "line",
    [
        "enableLmq=false",
        "metricsPromExporterHost=",
        "filterServerNums=0",
        "messageStorePlugIn=",
        "readOnlyCommitLogStorePaths=",
        "socksProxyConfig={}",
    ],
)
def test_setting_with_an_inactive_value_is_only_ignored(line: str) -> None:
    assert [text.partition(": ")[2] for text in Loaded(line).warnings] == [
        f"these settings of RocketMQ have no effect on TandemQ: {line.partition('=')[0]}"
    ]


def test_settings_of_missing_features_are_rocketmqs_and_documented() -> None:
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    ours = {item.metadata["key"] for kind in (BrokerConfig, NameServerConfig) for item in fields(kind)}
    for key in (*_MISSING, *_REFUSED):
        assert key in BROKER_KEYS | NAME_SERVER_KEYS
        assert key not in ours
        assert f"`{key}" in page, key


@pytest.mark.parametrize(
    "line",
    [
        "enableDLegerCommitLog=true",
        "enableControllerMode=true",
        "storeType=defaultRocksDB",
        "enableConsumeQueueExt=true",
        "readOnlyCommitLogStorePaths=/older",
        "storePathCommitLog=/elsewhere",
    ],
)
def test_setting_that_is_unsafe_to_ignore_is_an_error(line: str) -> None:
    key, _, _ = line.partition("=")
    assert refused(line).startswith(f"broker.conf:1: {key}: ")
    if line.lower().endswith("=true"):
        assert Loaded(f"{key}=false").config == BrokerConfig()


def test_repeated_key_gives_a_warning_and_the_last_value_is_used() -> None:
    loaded = Loaded("brokerName=a\nbroker_name=b\n")
    assert loaded.config.broker_name == "b"
    assert len(loaded.warnings) == 1
    assert "broker.conf:1" in loaded.warnings[0]


def test_rocketmq_keys_in_another_unit_are_converted() -> None:
    config = Loaded("serverChannelMaxIdleTimeSeconds=60\nchannelExpiredTimeout=90000\n").config
    assert (config.connection_idle_ms, config.client_expiry_ms) == (60_000, 90_000)


@pytest.mark.parametrize("key", ["mapedFileSizeCommitLog", "mapedFileSizeConsumeQueue", "mapedFileSizeConsumeQueueExt"])
def test_old_spelling_is_used_with_a_warning(key: str) -> None:
    loaded = Loaded(f"{key}=50331640\n")
    present = key.replace("maped", "mapped")
    assert f"{key} is an old spelling; write {present}" in loaded.warnings[0]
    assert loaded.config == Loaded(f"{present}=50331640\n").config
    assert (loaded.config != BrokerConfig()) is (not key.endswith("Ext"))
    with pytest.raises(ConfigError, match=r"mapp?edFileSize"):
        changed(BrokerConfig(), f"{key}=50331640\n")


def test_keys_of_tandemq_are_never_ignored() -> None:
    # Spot checks that the lists are those of both versions, and that a broker's and a name server's are apart.
    assert {"haListenPort", "timerWheelEnable", "dLegerGroup", "enableControllerMode", "abortFile"} <= BROKER_KEYS
    assert {"transRocksDBEnable", "enableLiteEventMode", "writeWithoutMmap"} <= BROKER_KEYS, "of 5.5.0"
    assert {"supportActingMaster", "scanNotActiveBrokerInterval", "listenPort", "useTLS"} <= NAME_SERVER_KEYS
    assert "supportActingMaster" not in BROKER_KEYS


# --- values


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("listenPort=ten", "not a whole number"),
        ("listenPort=10911 # the port", "a comment needs its own line"),
        ("listenPort=1_0", "not a whole number"),
        ("brokerId=99999999999999999999", "not a whole number"),
        ("slaveReadEnable=yes", "neither true nor false"),
        ("diskSpaceWarningLevelRatio=much", "not a ratio"),
        ("diskSpaceWarningLevelRatio=nan", "not a ratio"),
        ("diskSpaceWarningLevelRatio=150", "not a ratio"),
        ("brokerName=a\\u0000b", "unprintable"),
        ("brokerName=\\u12", "four hexadecimal digits"),
    ],
)
def test_malformed_value_is_reported_with_file_line_and_key(line: str, what: str) -> None:
    text = refused(f"# first\n{line}\n")
    assert what in text
    assert re.match(r"broker\.conf(:2: |: line 2: )", text)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("brokerName = b", "malformed TOML"),
        ("[broker]\nname = 1", "unknown setting"),
        ("[brokerName]\nx = 1", "tables are not supported"),
        ("\n\nlistenPort = 1.5", "broker.toml:3: listenPort"),
        ("brokerName = 5", "put it in quotes"),
        ("namesrvAddr = [5]", "put it in quotes"),
        ("slaveReadEnable = 1", "neither true nor false"),
        ("listenPort = true", "not a whole number"),
        ("diskSpaceWarningLevelRatio = true", "not a ratio"),
    ],
)
def test_malformed_toml_is_reported(text: str, what: str) -> None:
    assert what in refused(text, "broker.toml")


@spec("R02")
@pytest.mark.parametrize("text", ["brokerRole=SLAVE", "brokerId=1\nbrokerRole=SYNC_MASTER"])
def test_role_that_contradicts_the_id_stops_the_start_with_its_line(text: str) -> None:
    assert "contradicts brokerId" in refused(text)
    Loaded(f"{text}\nregistryAddr=namesrv://127.0.0.1:9876")  # there the group's record decides


@spec("R02")
@pytest.mark.parametrize(("broker_id", "role"), [(0, "ASYNC_MASTER"), (1, "SLAVE")])
def test_role_is_by_the_id_if_it_is_not_set(broker_id: int, role: str) -> None:
    assert Loaded(f"brokerId={broker_id}").config.static_role == role


def test_all_errors_are_reported_at_once_with_their_lines() -> None:
    lines = refused("brokerRole=SLAVE\nlistenPort=x\nflushDiskType=NEVER\nunknownKey=1\n").splitlines()
    assert {line.split(": ")[0] for line in lines} == {f"broker.conf:{number}" for number in (1, 2, 3, 4)}


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("registerNameServerPeriod=1000", "register_ms", 10_000),
        ("registerNameServerPeriod=90000", "register_ms", 60_000),
        ("diskMaxUsedSpaceRatio=100", "disk_used_ratio_max", 95),
        ("mappedFileSizeConsumeQueue=6000001", "queue_file_bytes", 6_000_020),
    ],
)
def test_value_that_rocketmq_adjusts_is_adjusted_with_a_warning(line: str, name: str, value: int) -> None:
    loaded = Loaded(line)
    assert getattr(loaded.config, name) == value
    assert len(loaded.warnings) == 1
    assert f"is changed to {value}" in loaded.warnings[0]


def test_shorter_registration_period_needs_its_own_setting() -> None:
    loaded = Loaded("registerNameServerPeriod=50\nregisterNameServerPeriodMin=20\n")
    assert loaded.config.register_ms == 50
    assert not loaded.warnings


def test_ratios_are_fractions_or_percent() -> None:
    config = Loaded("diskSpaceCleanForciblyRatio=80\ndiskSpaceWarningLevelRatio=0.95\n").config
    assert (config.disk_force_ratio, config.disk_full_ratio) == (0.8, 0.95)


# --- properties out, changes while running


@pytest.mark.parametrize("config", [BrokerConfig(name_servers=("a:1", "b:2"), slave_read_enable=True), BrokerConfig()])
def test_broker_properties_round_trip(config: BrokerConfig) -> None:
    text = as_properties(config)
    assert load_broker_config(text, path="x.conf", warn=pytest.fail) == config
    assert text.count("\n") == len(fields(config))
    assert "listenPort=10911\n" in text


def test_name_server_properties_round_trip() -> None:
    text = as_properties(NameServerConfig(order_message_enable=True))
    assert load_name_server_config(text, path="x", warn=pytest.fail) == NameServerConfig(order_message_enable=True)


def test_live_settings_can_be_changed() -> None:
    after, applied = changed(BrokerConfig(), "brokerPermission=4\nslaveTimeout=2400\nlistenPort=10911\n")
    assert (after.permission, after.slave_timeout_ms) == (4, 2_400)
    assert applied == ("brokerPermission", "slaveTimeout")
    assert changed(after, as_properties(after)) == (after, ())


def test_ignored_rocketmq_settings_are_refused_in_a_change() -> None:
    with pytest.raises(ConfigError, match="sendMessageThreadPoolNums is not changed: it has no effect on TandemQ"):
        changed(BrokerConfig(), "sendMessageThreadPoolNums=4\n")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("listenPort=1234", "only read at the start"),
        ("brokerRole=SYNC_MASTER", "only read at the start"),
        ("brokerPermision=4", "did you mean brokerPermission"),
        ("brokerPermission=x", "not a whole number"),
        ("brokerPermission=4\nfileReservedTime=0", "fileReservedTime: 0 is too small"),
        ("configBlackList=x", "only read at the start"),
        ("brokerConfigPath=x", "cannot be changed"),
        ("registerNameServerPeriod=5", "outside 10000 to 60000"),
    ],
)
def test_invalid_change_is_refused_as_a_whole(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(what)):
        changed(BrokerConfig(), text)


def test_every_live_key_is_a_setting() -> None:
    ours = {item.metadata["key"] for config in (BrokerConfig, NameServerConfig) for item in fields(config)}
    assert ours >= LIVE_KEYS


def test_pages_name_the_settings_that_change_while_running() -> None:
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    changes = page.split("## Changes while running")[1]
    assert set(re.findall(r"`([a-z]\w+)`", "\n".join(re.findall(r"^\| .*", changes, re.MULTILINE)))) == LIVE_KEYS
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|[^|]*\| ([^|]*) \|", settings_page(), re.MULTILINE)
    assert {key for key, live in rows if live != "no"} == LIVE_KEYS


def test_page_names_the_settings_that_only_a_file_changes_unless_it_allows_requests_to() -> None:
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    changes = page.split("## Changes while running")[1]
    by_request, by_file = changes.split("\nBy the file only")
    listed = {*BrokerConfig().config_black_list, *NameServerConfig().config_black_list} & LIVE_KEYS
    for text, keys in ((by_request, LIVE_KEYS - listed), (by_file, listed)):
        assert set(re.findall(r"`([a-z]\w+)`", "\n".join(re.findall(r"^\| .*", text, re.MULTILINE)))) == keys


@pytest.mark.parametrize("config", [BrokerConfig(), NameServerConfig()])
def test_settings_on_the_black_list_are_refused_with_what_to_do(config: Any) -> None:
    others = {"04": "05", "ASYNC_FLUSH": "SYNC_FLUSH", False: "true", True: "false", 0.85: "0.86", 0.90: "0.91"}
    listed = {*config.config_black_list} & LIVE_KEYS
    assert listed
    for item in fields(config):
        key, present = item.metadata["key"], getattr(config, item.name)
        if key in listed:
            other = others[present] if present in others else str(present - 1)
            with pytest.raises(ConfigError) as refused:
                changed(config, f"maxConnections=2000\n{key}={other}\n")
            assert f"{key}: can only be changed in the configuration file: configBlackList" in str(refused.value)
            assert "change it there and restart, or remove it from configBlackList" in str(refused.value)


def test_settings_that_delete_or_end_deliveries_are_on_the_black_list() -> None:
    """A setting added later is decided here: may anybody who reaches the port change it?"""
    assert sorted(LIVE_KEYS - {*BrokerConfig().config_black_list, *NameServerConfig().config_black_list}) == [
        "accessMessageInMemoryMaxRatio",
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerPermission",
        "brokerWeight",
        "clearRetryTopicWhenDeleteTopic",
        "defaultMessageRequestMode",
        "defaultPopShareQueueNum",
        "defaultQueryMaxNum",
        "defaultTopicQueueNums",
        "enableMixedMessageType",
        "enableRetryTopicV2",
        "enableTopicMessageTypeCheck",
        "flushConsumerOffsetInterval",
        "flushDelayOffsetInterval",
        "flushIntervalConsumeQueue",
        "haSlaveFallbehindMax",
        "longPollingEnable",
        "maxConnections",
        "maxHaTransferByteInSecond",
        "maxMessageSize",
        "maxMsgsNumBatch",
        "maxPopPollingSize",
        "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInMemory",
        "notifyMinBrokerIdChanged",
        "orderMessageEnable",
        "popFromRetryProbability",
        "popPollingSize",
        "priorityOrderAsc",
        "registerBrokerTimeoutMills",
        "registerNameServerPeriod",
        "retrieveMessageFromPopRetryTopicV1",
        "serverChannelMaxIdleTimeMillis",
        "serverLoadBalancerEnable",
        "shortPollingTimeMills",
        "slaveReadEnable",
        "slaveTimeout",
        "storeReplyMessageEnable",
        "syncFlushTimeout",
        "timerFlushIntervalMs",
        "traceOn",
        "transactionMetricFlushInterval",
    ]


@given(st.text(max_size=120), st.sampled_from(["broker.conf", "broker.toml"]))
def test_any_text_is_parsed_or_refused(text: str, path: str) -> None:
    try:
        Loaded(text, path)
    except ConfigError as error:
        told = str(error)
    else:
        told = path
    assert path in told


def test_change_has_a_limit_and_names_the_first_errors_only() -> None:
    with pytest.raises(ConfigError, match=f"at most {CHANGE_CHARACTERS_MAX} are allowed"):
        changed(BrokerConfig(), "a=b\n" * CHANGE_CHARACTERS_MAX)
    with pytest.raises(ConfigError) as caught:
        changed(BrokerConfig(), "".join(f"unknown{number}=1\n" for number in range(1_000)))
    assert f"unknown{ERRORS_MAX - 1}:" in str(caught.value)
    assert f"unknown{ERRORS_MAX}:" not in str(caught.value)
