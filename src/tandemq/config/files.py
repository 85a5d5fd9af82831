"""Settings as text: TOML or RocketMQ's properties in, properties out, and changes while a node runs.

    broker.toml, broker.conf ─► load_broker_config ─► BrokerConfig ─► as_properties ─► GET_BROKER_CONFIG
                                                          ▲
    UPDATE_BROKER_CONFIG ─► changed ──────────────────────┘

A file whose name ends with .toml is TOML, any other one is properties. Keys are RocketMQ's (`listenPort`) or our field
names (`listen_port`), units are those of docs/reference/settings.md; values are taken as text or in TOML's own types.

    key                                              what happens
    ours                                             used
    RocketMQ's, and nothing depends on it here       one warning for all of them
    RocketMQ's, and it asks for what is not here     a warning of its own that says what is missing
    RocketMQ's, and leaving it out would deceive     an error: a broker with `aclEnable=true` must not start without ACL
    nobody's                                         an error that names the nearest key

Four values are made to fit and a warning says so, because RocketMQ does the same in silence: registerNameServerPeriod
(10 to 60 s; registerNameServerPeriodMin moves the lower end), diskMaxUsedSpaceRatio (10 to 95),
mappedFileSizeConsumeQueue (the next multiple of 20), and a ratio above 1 is percent, as in 5.x.

Source: docs/reference/settings.md; RocketMQ BrokerStartup, MixAll.properties2Object, MessageStoreConfig.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields, replace
from typing import Any, TypeVar

from tandemq.config.java_properties import Property, parse_properties
from tandemq.config.rocketmq_keys import BROKER_KEYS, NAME_SERVER_KEYS
from tandemq.config.settings import BrokerConfig, NameServerConfig
from tandemq.config.validation import REGISTER_MS_MAX, problems
from tandemq.errors import ConfigError

Warn = Callable[[str], None]
_Config = TypeVar("_Config", BrokerConfig, NameServerConfig)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}\Z")
_COMMAND_LINE = "command line"

# RocketMQ's keys that mean one of ours in another unit, or under the name of another version.
_ALIASES = {
    "serverChannelMaxIdleTimeSeconds": ("serverChannelMaxIdleTimeMillis", 1_000),
    "channelExpiredTimeout": ("clientChannelExpiredTimeout", 1),
}

# RocketMQ's keys that must not be dropped with a warning when they have one of these values ("!x": any other than x).
_NO_CONTROLLER = "controllers are not spoken here; registryAddr has the group elect its master"
_NOT_HERE: dict[str, tuple[str, str]] = {
    "aclEnable": ("true", "access control is not part of this release"),
    "authenticationEnabled": ("true", "access control is not part of this release"),
    "authorizationEnabled": ("true", "access control is not part of this release"),
    "useTLS": ("true", "TLS for clients is not part of this release; haTlsCertFile protects replication"),
    "enableDLegerCommitLog": ("true", "DLedger is not spoken here, and its store is laid out differently"),
    "enableControllerMode": ("true", _NO_CONTROLLER),
    "enableControllerInNamesrv": ("true", _NO_CONTROLLER),
    "storeType": ("defaultrocksdb", "RocksDB stores cannot be opened here"),
    "enableConsumeQueueExt": ("true", "extended consume queues cannot be read here, so tags would not be found"),
    "readOnlyCommitLogStorePaths": ("!", "the log is read from one directory only"),
}

# RocketMQ's keys that ask, with one of these values, for something that is not here: a warning of their own says what.
_TRANSACTIONS = "transactions are not part of this release; half messages are refused"
_ACTING = "acting masters are not part of this release; registryAddr has a slave serve reads, or become master"
_NAMED = "name servers are not looked up; set namesrvAddr"
_LIGHT_QUEUES = "light queues are not part of this release; messages are in their own topic only"
_COLD = "reads of cold data are not slowed down here"
_MISSING: dict[str, tuple[str, str]] = {
    "enablePropertyFilter": ("true", "SQL filters are not part of this release; pulls that ask for one are refused"),
    "filterServerNums": ("!0", "filter servers are not part of this release"),
    "rejectTransactionMessage": ("false", _TRANSACTIONS),
    "transactionTimeOut": ("!", _TRANSACTIONS),
    "transactionCheckMax": ("!", _TRANSACTIONS),
    "transactionCheckInterval": ("!", _TRANSACTIONS),
    "timerWheelEnable": ("true", "timed messages are not part of this release and refused; delay levels work"),
    "recallMessageEnable": ("true", "timed messages, and their recall, are not part of this release"),
    "storeReplyMessageEnable": ("true", "request-reply is not part of this release; replies are refused"),
    "defaultMessageRequestMode": ("!pull", "POP consumption is not part of this release"),
    "traceTopicEnable": ("true", "RMQ_SYS_TRACE_TOPIC is not made at the start; make it with: tandemq topic create"),
    "enableLmq": ("true", _LIGHT_QUEUES),
    "enableMultiDispatch": ("true", _LIGHT_QUEUES),
    "enableCompaction": ("true", "compaction topics are not part of this release; their messages are all kept"),
    "rejectPullConsumerEnable": ("true", "pull consumers are not refused here"),
    "disableConsumeIfConsumerReadSlowly": ("true", "groups that are far behind are not switched off here"),
    "startAcceptSendRequestTimeStamp": ("!0", "messages are taken from the start"),
    "coldDataFlowControlEnable": ("true", _COLD),
    "coldCtrStrategyEnable": ("true", _COLD),
    "haFlowControlEnable": (
        "true",
        "maxHaTransferByteInSecond alone limits replication here, and is unlimited by default",
    ),
    "allAckInSyncStateSet": ("true", "inSyncReplicas says here how many copies SEND_OK needs"),
    "asyncLearner": ("true", "every slave in sync counts as a copy here"),
    "enableSlaveActingMaster": ("true", _ACTING),
    "supportActingMaster": ("true", "acting masters are not part of this release; routes show no slave as a master"),
    "fetchNamesrvAddrByAddressServer": ("true", _NAMED),
    "fetchNameSrvAddrByDnsLookup": ("true", _NAMED),
    "socksProxyConfig": ("!{}", "connections are made directly, not through a proxy"),
    "messageStorePlugIn": ("!", "plug-ins, tiered storage among them, are not loaded"),
    "metricsExporterType": (
        "!disable",
        "metrics are not exported; mqadmin brokerStatus and tandemq cluster list have them",
    ),
    "clusterTest": ("true", "other clusters' name servers are not asked"),
    "needWaitForService": ("true", "routes are answered from the start"),
    "deleteTopicWithBrokerRegistration": ("true", "a topic that a broker no longer has stays until it is deleted"),
    "enableTopicList": ("false", "lists of topics are answered to everybody"),
    "enableAllTopicList": ("false", "lists of topics are answered to everybody"),
}

LIVE_KEYS = frozenset(
    item.metadata["key"] for kind in (BrokerConfig, NameServerConfig) for item in fields(kind) if item.metadata["live"]
)
"""What UPDATE_BROKER_CONFIG and UPDATE_NAMESRV_CONFIG may change while the node runs."""
_NEVER_LIVE = frozenset({"brokerConfigPath", "configStorePath", "kvConfigPath", "rocketmqHome"})
_SECOND_MS, _HOUR_MS = 1_000, 3_600_000
LIVE_RANGES: dict[str, tuple[float, float]] = {
    "serverChannelMaxIdleTimeMillis": (10 * _SECOND_MS, 24 * _HOUR_MS),
    "maxConnections": (1_000, 1_000_000),
    "brokerExpiry": (10 * _SECOND_MS, _HOUR_MS),
    "registerBrokerTimeoutMills": (100, 60 * _SECOND_MS),
    "defaultTopicQueueNums": (1, 1_024),
    "maxMessageSize": (1_024, 1 << 30),
    "maxMsgsNumBatch": (1, 1_024),
    "defaultQueryMaxNum": (1, 1_024),
    "maxTransferBytesOnMessageInMemory": (4_096, 64 << 20),
    "maxTransferCountOnMessageInMemory": (1, 10_000),
    "accessMessageInMemoryMaxRatio": (1, 100),
    "shortPollingTimeMills": (100, 60 * _SECOND_MS),
    "flushIntervalCommitLog": (10, 60 * _SECOND_MS),
    "syncFlushTimeout": (100, _HOUR_MS),
    "slaveTimeout": (100, _HOUR_MS),
    "flushIntervalConsumeQueue": (100, 60 * _SECOND_MS),
    "flushConsumerOffsetInterval": (100, 600 * _SECOND_MS),
    "flushDelayOffsetInterval": (100, 600 * _SECOND_MS),
    "cleanResourceInterval": (_SECOND_MS, _HOUR_MS),
    "fileReservedTime": (1, 1_000_000),
    "diskMaxUsedSpaceRatio": (10, 95),
    "diskSpaceCleanForciblyRatio": (0.5, 1.0),
    "diskSpaceWarningLevelRatio": (0.5, 1.0),
    "brokerPermission": (2, 6),
    "brokerWeight": (0, 1_000_000),
    "registerNameServerPeriod": (_SECOND_MS, 60 * _SECOND_MS),
    "maxHaTransferByteInSecond": (1 << 20, 1 << 62),
    "haSlaveFallbehindMax": (1 << 20, 1 << 40),
}
"""Smallest and largest values that are taken while the node runs: anybody who reaches the port may ask for a change,
and none may lock others out or stop the node from doing its work. The file may have others."""
ZERO_IS_UNLIMITED = frozenset({"maxHaTransferByteInSecond"})


def load_broker_config(text: str, *, path: str, warn: Warn, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
    """A broker's settings from a file's text; `overrides` (by key) come from the command line and win.

    Raises:
        ConfigError: names the file, each line and key that is wrong, and what to do.
    """
    return _load(BrokerConfig, BROKER_KEYS, text, path, warn, overrides or {})


def load_name_server_config(
    text: str, *, path: str, warn: Warn, overrides: Mapping[str, str] | None = None
) -> NameServerConfig:
    """A name server's settings; as `load_broker_config`.

    Raises:
        ConfigError: names the file, each line and key that is wrong, and what to do.
    """
    return _load(NameServerConfig, NAME_SERVER_KEYS, text, path, warn, overrides or {})


def as_properties(config: BrokerConfig | NameServerConfig) -> str:
    """All settings as `key=value` lines under RocketMQ's names, as mqadmin shows them; `changed` reads them again."""
    return "".join(f"{key}={value}\n" for key, value in as_texts(config).items())


def as_texts(config: BrokerConfig | NameServerConfig) -> dict[str, str]:
    """All settings as texts, by RocketMQ's names for them."""
    return {item.metadata["key"]: _as_text(getattr(config, item.name)) for item in fields(config)}


def changed(config: _Config, text: str) -> tuple[_Config, tuple[str, ...]]:
    """The settings after an operator's change while the node runs, and the keys whose value is another one now.

    A key given with the value it has is no change.

    Raises:
        ConfigError: a key is unknown, has no effect here or can only be changed in the file, a value is outside its
            range, or the outcome is inconsistent; no change.
    """
    known = BROKER_KEYS if isinstance(config, BrokerConfig) else NAME_SERVER_KEYS
    told = parse_properties(text)
    for item in told:
        if item.key in _NEVER_LIVE:
            raise ConfigError(f"line {item.line}: {item.key} never changes while the node runs")
    reader = _Reader(type(config), known, lambda _: None)
    reader.take((item.key, item.value, f"line {item.line}") for item in told)
    reader.refuse_ineffective(told)
    values = {name: value for name, value in reader.values.items() if value != getattr(config, name)}
    for name, value in values.items():
        if reader.keys[name] not in LIVE_KEYS:
            reader.wrong(name, "is read at the start only; change it in the configuration file and restart")
        elif reader.keys[name] in config.config_black_list:
            reader.wrong(name, "is changed in the configuration file only: configBlackList names it")
        low, high = LIVE_RANGES.get(reader.keys[name], (value, value))
        if not low <= value <= high and not (value == 0 and reader.keys[name] in ZERO_IS_UNLIMITED):
            reader.wrong(name, f"{value} is outside {low} to {high}, what is taken while the node runs")
    after: _Config = reader.checked(replace(config, **values))
    return after, tuple(sorted(reader.keys[name] for name in values))


def _load(
    kind: type[_Config], known: frozenset[str], text: str, path: str, warn: Warn, overrides: Mapping[str, str]
) -> _Config:
    reader = _Reader(kind, known, lambda message: warn(f"{path}: {message}"))
    reader.take(_toml(text, path) if path.lower().endswith(".toml") else _properties(text, path))
    reader.take((key, value, _COMMAND_LINE) for key, value in overrides.items())
    reader.fit()
    return reader.checked(kind(**reader.values))


def _properties(text: str, path: str) -> Iterable[tuple[str, object, str]]:
    try:
        return [(item.key, item.value, f"{path}:{item.line}") for item in parse_properties(text)]
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.args[0]}", hint=error.hint) from error


def _toml(text: str, path: str) -> Iterable[tuple[str, object, str]]:
    try:
        table = tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{path}: this is no TOML: {error}", hint="texts stand in quotes; a RocketMQ file must not be named .toml"
        ) from error
    return [(key, value, f"{path}:{_line_of(key, text)}") for key, value in table.items()]


def _line_of(key: str, text: str) -> int:
    begins = re.compile(rf"\s*\[?\s*[\"']?{re.escape(key)}\b")
    return next((number for number, line in enumerate(text.splitlines(), start=1) if begins.match(line)), 1)


class _Reader:
    """Collects values by field name, and everything that is wrong with them."""

    def __init__(self, kind: type[BrokerConfig] | type[NameServerConfig], known: frozenset[str], warn: Warn) -> None:
        self.values: dict[str, Any] = {}
        self.keys: dict[str, str] = {item.name: item.metadata["key"] for item in fields(kind)}
        self._fields: dict[str, Field[Any]] = {}
        for item in fields(kind):
            self._fields[item.name] = self._fields[item.metadata["key"]] = item
        self._known = known
        self._warn = warn
        self._places: dict[str, str] = {}
        self._errors: list[str] = []
        self._log_directories: list[tuple[str, str]] = []

    def take(self, settings: Iterable[tuple[str, object, str]]) -> None:
        """Read settings; later ones win."""
        unneeded: list[str] = []
        for key, value, place in settings:
            try:
                if not self._take(key, value, place):
                    unneeded.append(key)
            except ConfigError as error:
                self._errors.append(f"{place}: {key if key.isprintable() else ascii(key)}: {error}")
        if unneeded:
            self._warn(f"RocketMQ knows these settings, TandemQ does not need them: {', '.join(sorted(set(unneeded)))}")

    def _take(self, key: str, value: object, place: str) -> bool:
        """Whether there is nothing more to say of the setting: it is one of ours, or a warning was given."""
        name, factor = _ALIASES.get(key, (key, 1))
        item = self._fields.get(name)
        if item is not None:
            if self._places.get(item.name, place) != place and place != _COMMAND_LINE:
                self._warn(f"{key} is set twice, at {self._places[item.name]} and {place}; the last one counts")
            parsed = _parse(item, value)
            self.values[item.name] = parsed * factor if factor != 1 else parsed
            self._places[item.name] = place
            return True
        if key not in self._known:
            raise ConfigError("nobody knows this setting", hint=self._nearest(key))
        self._refuse_what_is_not_here(key, value, place)
        return self._warn_of_what_is_missing(key, value)

    def _nearest(self, key: str) -> str:
        every = sorted({*self.keys.values(), *self._known})
        same = [name for name in every if name.lower() == key.lower()]
        near = same or difflib.get_close_matches(key, every, n=1, cutoff=0.6)
        return f"did you mean {near[0]}?" if near else "docs/reference/settings.md lists those there are"

    def _refuse_what_is_not_here(self, key: str, value: object, place: str) -> None:
        if key == "storePathCommitLog":
            self._log_directories.append((str(value), place))
        refused, why = _NOT_HERE.get(key, ("", ""))
        if _asks(refused, value):
            raise ConfigError(f"{value} cannot be had: {why}", hint="remove the setting to go without")

    def _warn_of_what_is_missing(self, key: str, value: object) -> bool:
        asking, what = _MISSING.get(key, ("", ""))
        if not _asks(asking, value):
            return False
        self._warn(f"{key} = {ascii(value)[:64]} has no effect: {what}")
        return True

    def refuse_ineffective(self, told: Iterable[Property]) -> None:
        """Note settings that RocketMQ knows and nothing depends on here: success would be no answer."""
        for item in told:
            name, _ = _ALIASES.get(item.key, (item.key, 1))
            if name not in self._fields and item.key in self._known:
                _, why = _MISSING.get(item.key, ("", "it has no effect on TandemQ"))
                self._errors.append(f"line {item.line}: {item.key} is not changed: {why}")

    def wrong(self, name: str, what: str) -> None:
        """Note that a field's value is wrong."""
        place = self._places.get(name)
        self._errors.append(f"{place}: {self.keys[name]}: {what}" if place else f"{self.keys[name]}: {what}")

    def fit(self) -> None:
        """Make values fit where RocketMQ does so itself, and say it."""
        lowest = self.values.get("register_ms_min", BrokerConfig.__dataclass_fields__["register_ms_min"].default)
        self._fit("register_ms", lambda value: max(lowest, min(value, REGISTER_MS_MAX)))
        self._fit("disk_used_ratio_max", lambda value: max(10, min(value, 95)))
        self._fit("queue_file_bytes", lambda value: value + -value % 20)

    def _fit(self, name: str, into_range: Callable[[int], int]) -> None:
        value = self.values.get(name)
        if isinstance(value, int) and into_range(value) != value:
            self.values[name] = into_range(value)
            self._warn(f"{self.keys[name]} {value} becomes {self.values[name]}, as in RocketMQ")

    def checked(self, config: _Config) -> _Config:
        """The configuration, if nothing is wrong with it.

        Raises:
            ConfigError: everything that is, one line each.
        """
        for name, text in problems(config):
            self.wrong(name, text)
        if isinstance(config, BrokerConfig):
            expected = f"{config.store_path.rstrip('/')}/commitlog"
            for directory, place in self._log_directories:
                if directory.rstrip("/") != expected:
                    self._errors.append(
                        f"{place}: storePathCommitLog: the log is always in {expected}; "
                        f"move {directory} there, or make it a symbolic link"
                    )
        if self._errors:
            raise ConfigError("\n".join(self._errors))
        return config


def _asks(asking: str, value: object) -> bool:
    """Whether a value is the one that asks for something, or, after "!", any other than that one."""
    text = str(value).strip().lower()
    return text != asking[1:] if asking.startswith("!") else bool(asking) and text == asking


def _parse(item: Field[Any], value: object) -> Any:
    """A setting's value in its field's type."""
    if isinstance(value, dict):
        raise ConfigError("tables are not used here", hint="write key = value lines only")
    if item.type is bool:
        return _boolean(value)
    if item.type is int:
        return _integer(value)
    if item.type is float:
        return _ratio(value)
    if item.type is str:
        return _data_directory(_text(value)) if item.name == "data_path" else _text(value)
    assert item.type == tuple[str, ...]
    texts = value if isinstance(value, list) else _text(value).split(";")
    return tuple(part for part in (_text(text).strip() for text in texts) if part)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{value!r} is no text", hint="put it in quotes")
    if not value.isprintable():
        raise ConfigError(f"{value[:64]!r} has characters that cannot be printed")
    return value


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ConfigError(f"{value!r} is neither true nor false")


def _integer(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
        return value
    if isinstance(value, str) and _INTEGER.match(value):
        return int(value)
    hint = "a comment stands on a line of its own" if isinstance(value, str) and "#" in value else ""
    raise ConfigError(f"{value!r} is no whole number", hint=hint)


def _ratio(value: object) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        number = -1.0
    if not 0 <= number <= 100:  # also false for nan
        raise ConfigError(f"{value!r} is no share", hint="write 0.85, or 85 for percent")
    return number / 100 if number > 1 else number


def _data_directory(path: str) -> str:
    """RocketMQ names the file, we its directory."""
    return (path[: -len("kvConfig.json")].rstrip("/") or ".") if path.endswith("kvConfig.json") else path


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ";".join(value) if isinstance(value, tuple) else str(value)
