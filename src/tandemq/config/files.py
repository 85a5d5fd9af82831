"""Reading and writing settings: TOML or RocketMQ's properties in, properties out, changes while a node runs.

    broker.toml, broker.conf ─► load_broker_config ─► BrokerConfig ─► as_properties ─► GET_BROKER_CONFIG
                                                          ▲
    UPDATE_BROKER_CONFIG ─► changed ──────────────────────┘

A file whose name ends with .toml is TOML, any other one is properties. Keys are RocketMQ's (`listenPort`) or TandemQ's
field names (`listen_port`). Values are texts or TOML's own types; their units are in docs/reference/settings.md.

    key                                                  result
    of TandemQ                                           used
    in RocketMQ's old spelling (`mapedFileSize…`)        used, with a warning
    of RocketMQ, without meaning for TandemQ             one warning for all of them
    of RocketMQ, requests a feature TandemQ lacks        a warning that names the missing feature
    of RocketMQ, unsafe to ignore                        an error: a store of RocksDB would look empty
    unknown                                              an error that suggests the most similar key

Four values are adjusted with a warning, because RocketMQ adjusts them silently: registerNameServerPeriod (10 to 60 s;
registerNameServerPeriodMin sets the lower bound), diskMaxUsedSpaceRatio (10 to 95), mappedFileSizeConsumeQueue (the
next multiple of 20), and a ratio above 1 is read as percent, as in 5.x.

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
from tandemq.config.settings import BrokerConfig, NameServerConfig, ProxyConfig
from tandemq.config.validation import REGISTER_MS_MAX, problems
from tandemq.errors import ConfigError

Warn = Callable[[str], None]
_Config = TypeVar("_Config", BrokerConfig, NameServerConfig, ProxyConfig)
_Changeable = TypeVar("_Changeable", BrokerConfig, NameServerConfig)
HIDDEN = "***"
"""Shown instead of a secret."""
CHANGE_CHARACTERS_MAX = 64 << 10
"""Length of an operator's change; all settings of a node are a tenth of that."""
ERRORS_MAX = 20
"""Number of wrong settings that an error names."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}\Z")
_COMMAND_LINE = "command line"

# RocketMQ's keys that are another name or unit of a setting: (key, factor).
_ALIASES = {
    "serverChannelMaxIdleTimeSeconds": ("serverChannelMaxIdleTimeMillis", 1_000),
    "channelExpiredTimeout": ("clientChannelExpiredTimeout", 1),
    "useTLS": ("tls.enable", 1),
}

# RocketMQ's keys as its first releases spelled them, and many files still do.
_OLD_SPELLINGS = {
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
    "mapedFileSizeConsumeQueueExt": "mappedFileSizeConsumeQueueExt",
}

# RocketMQ's keys that are refused with one of these values ("!x": any value but x), because ignoring them is unsafe.
_NO_CONTROLLER = "controllers are not supported; with registryAddr the group elects its master"
_REFUSED: dict[str, tuple[str, str]] = {
    "tls.server.keyPassword": ("!", "passwords belong into tls.config.file, as settings are shown to clients"),
    "tls.client.keyPassword": ("!", "passwords belong into tls.config.file, as settings are shown to clients"),
    "enableDLegerCommitLog": ("true", "DLedger is not supported, and its store has another layout"),
    "enableControllerMode": ("true", _NO_CONTROLLER),
    "enableControllerInNamesrv": ("true", _NO_CONTROLLER),
    "storeType": ("defaultrocksdb", "RocksDB stores are not supported"),
    "enableConsumeQueueExt": ("true", "extended consume queues are not supported, so tag filters would fail"),
    "readOnlyCommitLogStorePaths": ("!", "the log must be in one directory"),
}

# RocketMQ's keys that, with one of these values, request a missing feature: the warning names it.
_ACTING = "acting masters are not supported; with registryAddr a slave serves reads or becomes master"
_NAMED = "name servers are not discovered; set namesrvAddr"
_LIGHT_QUEUES = "light queues are not supported; messages are in their own topic only"
_ROCKSDB = "RocksDB is not used; timed messages, open transactions and the index are in RocketMQ's files"
_COLD = "reads of cold data are not throttled"
_PUSHED = "metrics are pushed over HTTP; set metricsExporterType=OTLP_HTTP and metricsHttpExporterTarget"
_MISSING: dict[str, tuple[str, str]] = {
    "filterServerNums": ("!0", "filter servers are not supported"),
    "enableLmq": ("true", _LIGHT_QUEUES),
    "enableMultiDispatch": ("true", _LIGHT_QUEUES),
    "timerRocksDBEnable": ("true", _ROCKSDB),
    "transRocksDBEnable": ("true", _ROCKSDB),
    "indexRocksDBEnable": ("true", _ROCKSDB),
    "enableCompaction": ("true", "compaction topics are not supported; all their messages are kept"),
    "rejectPullConsumerEnable": ("true", "pull consumers are not refused"),
    "disableConsumeIfConsumerReadSlowly": ("true", "groups that are far behind are not disabled"),
    "startAcceptSendRequestTimeStamp": ("!0", "messages are accepted from the start"),
    "coldDataFlowControlEnable": ("true", _COLD),
    "coldCtrStrategyEnable": ("true", _COLD),
    "haFlowControlEnable": (
        "true",
        "only maxHaTransferByteInSecond limits replication, which is unlimited by default",
    ),
    "allAckInSyncStateSet": ("true", "inSyncReplicas is the number of copies that SEND_OK needs"),
    "asyncLearner": ("true", "every slave in sync counts as a copy"),
    "enableSlaveActingMaster": ("true", _ACTING),
    "supportActingMaster": ("true", "acting masters are not supported; routes show no slave as a master"),
    "fetchNamesrvAddrByAddressServer": ("true", _NAMED),
    "fetchNameSrvAddrByDnsLookup": ("true", _NAMED),
    "socksProxyConfig": ("!{}", "proxies are not supported; connections are direct"),
    "messageStorePlugIn": ("!", "store plug-ins, such as tiered storage, are not supported"),
    "metricsPromExporterHost": ("!", "metricsBindAddress is the interface of the metrics port"),
    "metricsGrpcExporterTarget": ("!", _PUSHED),
    "metricsGrpcExporterHeader": ("!", _PUSHED),
    "clusterTest": ("true", "name servers of other clusters are not queried"),
    "needWaitForService": ("true", "routes are answered from the start"),
    "deleteTopicWithBrokerRegistration": ("true", "a topic that a broker no longer has is kept until it is deleted"),
    "enableTopicList": ("false", "topic lists are returned to every client"),
    "enableAllTopicList": ("false", "topic lists are returned to every client"),
}

LIVE_KEYS = frozenset(
    item.metadata["key"] for kind in (BrokerConfig, NameServerConfig) for item in fields(kind) if item.metadata["live"]
)
"""Keys that UPDATE_BROKER_CONFIG and UPDATE_NAMESRV_CONFIG may change while the node runs."""
_NEVER_LIVE = frozenset({"brokerConfigPath", "configStorePath", "kvConfigPath", "rocketmqHome"})
_SECOND_MS, _HOUR_MS = 1_000, 3_600_000
LIVE_RANGES: dict[str, tuple[float, float]] = {
    "serverChannelMaxIdleTimeMillis": (60 * _SECOND_MS, 24 * _HOUR_MS),
    "maxConnections": (1_000, 1_000_000),
    "brokerExpiry": (10 * _SECOND_MS, _HOUR_MS),
    "registerBrokerTimeoutMills": (_SECOND_MS, 60 * _SECOND_MS),
    "defaultTopicQueueNums": (1, 1_024),
    "maxMessageSize": (1_024, 1 << 30),
    "maxMsgsNumBatch": (1, 1_024),
    "defaultQueryMaxNum": (1, 1_024),
    "maxTransferBytesOnMessageInMemory": (4_096, 64 << 20),
    "maxTransferCountOnMessageInMemory": (1, 10_000),
    "accessMessageInMemoryMaxRatio": (1, 100),
    "shortPollingTimeMills": (100, 10 * _SECOND_MS),
    "flushIntervalCommitLog": (10, 60 * _SECOND_MS),
    "syncFlushTimeout": (100, _HOUR_MS),
    "slaveTimeout": (100, _HOUR_MS),
    "flushIntervalConsumeQueue": (100, 60 * _SECOND_MS),
    "flushConsumerOffsetInterval": (100, 600 * _SECOND_MS),
    "flushDelayOffsetInterval": (100, 600 * _SECOND_MS),
    "cleanResourceInterval": (_SECOND_MS, _HOUR_MS),
    "fileReservedTime": (1, 1_000_000),
    "transactionTimeOut": (100, 24 * _HOUR_MS),
    "transactionCheckMax": (1, 10_000),
    "transactionCheckInterval": (100, 24 * _HOUR_MS),
    "transactionMetricFlushInterval": (100, 600 * _SECOND_MS),
    "transactionsMax": (1_000, 10_000_000),
    "timerMaxDelaySec": (1, 2_000_000),
    "timerRollWindowSlot": (2, 604_740),
    "timerCongestNumEachSlot": (1, 2_147_483_647),
    "timersMax": (1_000, 1_000_000_000),
    "timerFlushIntervalMs": (100, 600 * _SECOND_MS),
    "diskMaxUsedSpaceRatio": (10, 95),
    "diskSpaceCleanForciblyRatio": (0.5, 1.0),
    "diskSpaceWarningLevelRatio": (0.5, 1.0),
    "brokerPermission": (4, 6),
    "brokerWeight": (0, 1_000_000),
    "registerNameServerPeriod": (_SECOND_MS, 60 * _SECOND_MS),
    "maxHaTransferByteInSecond": (1 << 20, 1 << 62),
    "haSlaveFallbehindMax": (1 << 20, 1 << 40),
}
"""Range of values accepted while the node runs. Any client that reaches the port can request a change; the range keeps
it from locking others out or ending deliveries: connections outlast the pause between two heartbeats, pulls are
answered before clients stop waiting, and reading stays permitted. The configuration file may have values outside."""
ZERO_IS_UNLIMITED = frozenset({"maxHaTransferByteInSecond"})


def load_broker_config(text: str, *, path: str, warn: Warn, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
    """Parse a broker's settings.

    Args:
        text: content of the file.
        path: its path, for errors; the ending .toml selects TOML.
        warn: called with each warning.
        overrides: values by key from the command line, which override those of the file.
    Raises:
        ConfigError: the text names the file, each wrong line and key, and what to do.
    """
    return _load(BrokerConfig, BROKER_KEYS, text, path, warn, overrides or {})


def load_name_server_config(
    text: str, *, path: str, warn: Warn, overrides: Mapping[str, str] | None = None
) -> NameServerConfig:
    """Parse a name server's settings; arguments as for `load_broker_config`.

    Raises:
        ConfigError: the text names the file, each wrong line and key, and what to do.
    """
    return _load(NameServerConfig, NAME_SERVER_KEYS, text, path, warn, overrides or {})


def load_proxy_config(text: str, *, path: str, warn: Warn, overrides: Mapping[str, str] | None = None) -> ProxyConfig:
    """Parse a proxy's settings; arguments as for `load_broker_config`.

    Raises:
        ConfigError: the text names the file, each wrong line and key, and what to do.
    """
    return _load(ProxyConfig, frozenset(), text, path, warn, overrides or {})


def as_properties(config: BrokerConfig | NameServerConfig) -> str:
    """Format all settings as `key=value` lines with RocketMQ's keys, which mqadmin shows and `changed` parses."""
    return "".join(f"{key}={value}\n" for key, value in as_texts(config).items())


def as_texts(config: BrokerConfig | NameServerConfig) -> dict[str, str]:
    """Return all settings as texts by RocketMQ's keys."""
    return {
        item.metadata["key"]: HIDDEN if item.metadata["secret"] and value else as_text(value)
        for item in fields(config)
        for value in (getattr(config, item.name),)
    }


def changed(config: _Changeable, text: str) -> tuple[_Changeable, tuple[str, ...]]:
    """Apply an operator's change while the node runs; returns the settings and the keys whose values changed.

    A key given with its present value is not a change.

    Raises:
        ConfigError: a key is unknown, has no effect or can only be changed in the file, a value is outside its range,
            or the result is inconsistent; nothing is changed.
    """
    known = BROKER_KEYS if isinstance(config, BrokerConfig) else NAME_SERVER_KEYS
    if len(text) > CHANGE_CHARACTERS_MAX:
        raise ConfigError(f"the change has {len(text)} characters, at most {CHANGE_CHARACTERS_MAX} are allowed")
    given = parse_properties(text)
    for item in given:
        if item.key in _NEVER_LIVE:
            raise ConfigError(f"line {item.line}: {item.key} cannot be changed while the node runs")
    reader = _Reader(type(config), known, lambda _: None)
    reader.take((item.key, item.value, f"line {item.line}") for item in given)
    reader.refuse_ineffective(given)
    values = {name: value for name, value in reader.values.items() if value != getattr(config, name)}
    for name, value in values.items():
        if reader.keys[name] not in LIVE_KEYS:
            reader.wrong(name, "is only read at the start; change it in the configuration file and restart")
        elif reader.keys[name] in config.config_black_list:
            reader.wrong(
                name,
                "can only be changed in the configuration file: configBlackList names it; change it there and restart, "
                "or remove it from configBlackList",
            )
        low, high = LIVE_RANGES.get(reader.keys[name], (value, value))
        if not low <= value <= high and not (value == 0 and reader.keys[name] in ZERO_IS_UNLIMITED):
            reader.wrong(name, f"{value} is outside {low} to {high}, the range allowed while the node runs")
    after: _Changeable = reader.checked(replace(config, **values))
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
            f"{path}: malformed TOML: {error}",
            hint="texts need quotes; the name of a RocketMQ file must not end with .toml",
        ) from error
    table |= _dotted("tls", table.pop("tls", {}))
    return [(key, value, f"{path}:{_line_of(key, text)}") for key, value in table.items()]


def _dotted(name: str, value: object) -> dict[str, object]:
    """Return the values of a table by their dotted keys: TOML reads `tls.enable = true` as a table."""
    if not isinstance(value, dict):
        return {name: value}
    found: dict[str, object] = {}
    for key, inner in value.items():
        found |= _dotted(f"{name}.{key}", inner)
    return found


def _line_of(key: str, text: str) -> int:
    begins = re.compile(rf"\s*\[?\s*[\"']?{re.escape(key)}\b")
    return next((number for number, line in enumerate(text.splitlines(), start=1) if begins.match(line)), 1)


class _Reader:
    """Collects values by field name, and errors."""

    def __init__(
        self, kind: type[BrokerConfig | NameServerConfig | ProxyConfig], known: frozenset[str], warn: Warn
    ) -> None:
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
        """Read settings, as (key, value, place); later ones override earlier ones."""
        unneeded: list[str] = []
        for key, value, place in settings:
            if len(self._errors) >= ERRORS_MAX:
                self._errors.append("…")
                break
            try:
                if not self._take(key, value, place):
                    unneeded.append(key)
            except ConfigError as error:
                self._errors.append(f"{place}: {key if key.isprintable() else ascii(key)}: {error}")
        if unneeded:
            self._warn(f"these settings of RocketMQ have no effect on TandemQ: {', '.join(sorted(set(unneeded)))}")

    def _take(self, key: str, value: object, place: str) -> bool:
        """Read one setting; returns False if it is RocketMQ's and was ignored without a warning."""
        key = self._respelled(key)
        name, factor = _ALIASES.get(key, (key, 1))
        item = self._fields.get(name)
        if item is not None:
            if self._places.get(item.name, place) != place and place != _COMMAND_LINE:
                self._warn(f"{key} is set twice, at {self._places[item.name]} and {place}; the last value is used")
            parsed = _parse(item, value)
            self.values[item.name] = parsed * factor if factor != 1 else parsed
            self._places[item.name] = place
            return True
        if key not in self._known:
            raise ConfigError("unknown setting", hint=self._nearest(key))
        self._refuse_unsafe(key, value, place)
        return self._warn_of_missing_feature(key, value)

    def _respelled(self, key: str) -> str:
        """Return the present spelling of a key."""
        present = _OLD_SPELLINGS.get(key)
        if present not in self._known:
            return key
        self._warn(
            f"{key} is an old spelling; write {present}. RocketMQ 4.9 and 5 ignore it: remove the line if one of them "
            "wrote the store"
        )
        return present

    def _nearest(self, key: str) -> str:
        every = sorted({*self.keys.values(), *self._known})
        same = [name for name in every if name.lower() == key.lower()]
        near = same or difflib.get_close_matches(key, every, n=1, cutoff=0.6)
        return f"did you mean {near[0]}?" if near else "the documentation lists all settings: reference, settings"

    def _refuse_unsafe(self, key: str, value: object, place: str) -> None:
        if key == "storePathCommitLog":
            self._log_directories.append((str(value), place))
        refused, why = _REFUSED.get(key, ("", ""))
        if _matches(refused, value):
            raise ConfigError(f"{value} is not supported: {why}", hint="remove the setting to run without it")

    def _warn_of_missing_feature(self, key: str, value: object) -> bool:
        requesting, what = _MISSING.get(key, ("", ""))
        if not _matches(requesting, value):
            return False
        self._warn(f"{key} = {ascii(value)[:64]} has no effect: {what}")
        return True

    def refuse_ineffective(self, given: Iterable[Property]) -> None:
        """Add an error for each setting of RocketMQ without an effect here, as reporting success would mislead."""
        for item in given:
            key = _OLD_SPELLINGS.get(item.key, item.key)
            name, _ = _ALIASES.get(key, (key, 1))
            if name not in self._fields and key in self._known:
                _, why = _MISSING.get(key, ("", "it has no effect on TandemQ"))
                self._errors.append(f"line {item.line}: {item.key} is not changed: {why}")

    def wrong(self, name: str, what: str) -> None:
        """Add an error about a field's value."""
        place = self._places.get(name)
        self._errors.append(f"{place}: {self.keys[name]}: {what}" if place else f"{self.keys[name]}: {what}")

    def fit(self) -> None:
        """Adjust the values that RocketMQ adjusts itself, with a warning."""
        lowest = self.values.get("register_ms_min", BrokerConfig.__dataclass_fields__["register_ms_min"].default)
        self._fit("register_ms", lambda value: max(lowest, min(value, REGISTER_MS_MAX)))
        self._fit("disk_used_ratio_max", lambda value: max(10, min(value, 95)))
        self._fit("queue_file_bytes", lambda value: value + -value % 20)

    def _fit(self, name: str, into_range: Callable[[int], int]) -> None:
        value = self.values.get(name)
        if isinstance(value, int) and into_range(value) != value:
            self.values[name] = into_range(value)
            self._warn(f"{self.keys[name]} {value} is changed to {self.values[name]}, as in RocketMQ")

    def checked(self, config: _Config) -> _Config:
        """Return the configuration if it is valid.

        Raises:
            ConfigError: it is not; the text has one line per error.
        """
        for name, text in problems(config):
            self.wrong(name, text)
        if isinstance(config, BrokerConfig):
            expected = f"{config.store_path.rstrip('/')}/commitlog"
            for directory, place in self._log_directories:
                if directory.rstrip("/") != expected:
                    self._errors.append(
                        f"{place}: storePathCommitLog: the log must be in {expected}; "
                        f"move {directory} there, or make it a symbolic link"
                    )
        if self._errors:
            raise ConfigError("\n".join(self._errors))
        return config


def _matches(pattern: str, value: object) -> bool:
    """Return whether a value equals a pattern or, if that is "!x", is anything but x."""
    text = str(value).strip().lower()
    return text != pattern[1:] if pattern.startswith("!") else bool(pattern) and text == pattern


def _parse(item: Field[Any], value: object) -> Any:
    """Convert a setting's value to its field's type."""
    if isinstance(value, dict):
        raise ConfigError("TOML tables are not supported", hint="write key = value lines only")
    if item.type is bool:
        return _boolean(value)
    if item.type is int:
        return _integer(value)
    if item.type is float:
        return _ratio(value)
    if item.type is str and isinstance(value, bool) and item.name == "tls_enable":
        return str(value).lower()
    if item.type is str:
        return _data_directory(_text(value)) if item.name == "data_path" else _text(value)
    assert item.type == tuple[str, ...]
    texts = value if isinstance(value, list) else _text(value).split(";")
    return tuple(part for part in (_text(text).strip() for text in texts) if part)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{value!r} is not a text", hint="put it in quotes")
    if not value.isprintable():
        raise ConfigError(f"{value[:64]!r} has unprintable characters")
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
    hint = "a comment needs its own line" if isinstance(value, str) and "#" in value else ""
    raise ConfigError(f"{value!r} is not a whole number", hint=hint)


def _ratio(value: object) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        number = -1.0
    if not 0 <= number <= 100:  # also false for nan
        raise ConfigError(f"{value!r} is not a ratio", hint="write 0.85, or 85 for percent")
    return number / 100 if number > 1 else number


def _data_directory(path: str) -> str:
    """Return the directory of `kvConfigPath`, which names the file in RocketMQ."""
    return (path[: -len("kvConfig.json")].rstrip("/") or ".") if path.endswith("kvConfig.json") else path


def as_text(value: object) -> str:
    """Return a value as files have it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ";".join(value) if isinstance(value, tuple) else str(value)
