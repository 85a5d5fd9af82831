"""Settings of monitoring: their validation, and the values that are written as text.

    metricsLabel               "zone:a,team:b"            ─► labels
    metricsHttpExporterTarget  "https://collector:4318"   ─► parse_target ─► PushTarget

Source: docs/guides/monitoring.md; RocketMQ BrokerConfig, MetricsExporterType.
"""

import ipaddress
import re
from collections.abc import Iterator
from typing import NamedTuple

from tandemq.config.settings import MonitoringConfig
from tandemq.errors import ConfigError

LOG_FORMATS = ("text", "json")
EXPORTERS = ("DISABLE", "PROM", "OTLP_HTTP")
_REFUSED_EXPORTERS = {
    "OTLP_GRPC": "is not supported, as gRPC would run its own threads beside the event loop; use OTLP_HTTP, which "
    "collectors take on port 4318, with metricsHttpExporterTarget",
    "LOG": "is not supported; scrape metricsPort, or use OTLP_HTTP",
}
PORT_MAX = 65_535
PUSH_INTERVAL_MS_MIN, PUSH_INTERVAL_MS_MAX = 100, 3_600_000
PUSH_TIMEOUT_MS_MAX = 60_000
DEFAULT_PATH = "/v1/metrics"
LABELS_MAX = 16
_LABEL_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,63}\Z")
_LABEL_VALUE_CHARACTERS_MAX = 255
_URL = re.compile(r"(https?)://(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253}))(?::([0-9]{1,5}))?(/[!-~]*)?\Z")
_HTTP_PORTS = {"http": 80, "https": 443}
TAKEN_LABELS = frozenset(
    {
        "broker",
        "broker_id",
        "by",
        "cluster",
        "code",
        "consume_mode",
        "consumer_group",
        "engine",
        "group",
        "is_long_polling",
        "is_retry",
        "is_system",
        "kind",
        "language",
        "le",
        "message_type",
        "method",
        "node_id",
        "node_type",
        "outcome",
        "peer",
        "processor",
        "protocol_type",
        "python",
        "quantile",
        "queue_id",
        "reason",
        "request_code",
        "response_code",
        "result",
        "role",
        "setting",
        "state",
        "storage_medium",
        "storage_type",
        "timer_bound_s",
        "topic",
        "version",
    }
)
"""Labels that metrics have already."""

Problem = tuple[str, str]


class PushTarget(NamedTuple):
    """A collector's URL, in parts."""

    is_tls: bool
    host: str
    port: int
    path: str

    @property
    def url(self) -> str:
        """The URL as text."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}{self.path}"


def parse_target(text: str) -> PushTarget:
    """Parse `metricsHttpExporterTarget`.

    Raises:
        ConfigError: it is not such a URL.
    """
    if "@" in text:
        raise ConfigError("it has a user or password, which clients could read; set metricsHttpExporterHeaderFile")
    match = _URL.match(text)
    if match is None or "#" in text:
        raise ConfigError(f"{text[:128]!r} is not a URL of a collector; write http://host:4318 or https://host:4318")
    scheme, literal, name, digits, path = match.groups()
    port = int(digits) if digits else _HTTP_PORTS[scheme]
    if not 0 < port <= PORT_MAX:
        raise ConfigError(f"{port} is not a port; 1 to {PORT_MAX}")
    return PushTarget(scheme == "https", literal or name, port, DEFAULT_PATH if path in (None, "/") else path)


def labels_of(text: str) -> dict[str, str]:
    """Parse `metricsLabel`.

    Raises:
        ConfigError: it is malformed, or names a label that metrics have already.
    """
    found: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        name, colon, value = (part.strip() for part in pair.partition(":"))
        if not colon or not _LABEL_NAME.match(name) or name.startswith("otel_"):
            raise ConfigError(f"{pair[:64]!r} is not a label; write name:value,name:value with letters, digits and _")
        if name in TAKEN_LABELS or name in found:
            raise ConfigError(f"the label {name} is taken; choose another name")
        if len(value) > _LABEL_VALUE_CHARACTERS_MAX:
            raise ConfigError(f"the value of {name} is longer than {_LABEL_VALUE_CHARACTERS_MAX} characters")
        found[name] = value
    if len(found) > LABELS_MAX:
        raise ConfigError(f"there are {len(found)} labels; the maximum is {LABELS_MAX}")
    return found


def monitoring_problems(config: MonitoringConfig) -> Iterator[Problem]:
    """Yield what is wrong with the settings of logs and metrics, as (field, text)."""
    yield from _scrape_problems(config)
    yield from _push_problems(config)
    try:
        labels_of(config.metrics_label)
    except ConfigError as error:
        yield "metrics_label", str(error.args[0])


def _scrape_problems(config: MonitoringConfig) -> Iterator[Problem]:
    if config.log_format not in LOG_FORMATS:
        yield "log_format", f"{config.log_format!r} is unknown; use one of {', '.join(LOG_FORMATS)}"
    if not -1 <= config.metrics_port <= PORT_MAX:
        yield "metrics_port", f"{config.metrics_port} is not a port; 1 to 65535, 0 for any free one, -1 for none"
    if not 0 <= config.metrics_prom_port <= PORT_MAX:
        yield "metrics_prom_port", f"{config.metrics_prom_port} is not a port; 1 to 65535, or 0 for any free one"
    try:
        ipaddress.ip_address(config.metrics_bind_address)
    except ValueError:
        yield "metrics_bind_address", f"{config.metrics_bind_address[:64]!r} is not an IP address"
    if config.metrics_series_max < 1:
        yield "metrics_series_max", f"{config.metrics_series_max} is too small; the smallest is 1"


def _push_problems(config: MonitoringConfig) -> Iterator[Problem]:
    exporter = config.metrics_exporter
    if exporter in _REFUSED_EXPORTERS:
        yield "metrics_exporter", f"{exporter} {_REFUSED_EXPORTERS[exporter]}"
    elif exporter not in EXPORTERS:
        yield "metrics_exporter", f"{exporter[:64]!r} is unknown; use one of {', '.join(EXPORTERS)}"
    try:
        target = parse_target(config.push_target)
    except ConfigError as error:
        yield "push_target", str(error.args[0])
    else:
        if config.push_ca_file and not target.is_tls:
            yield "push_ca_file", f"{config.push_target} is not encrypted; write https://, or remove the setting"
    for name, low, high in (
        ("push_interval_ms", PUSH_INTERVAL_MS_MIN, PUSH_INTERVAL_MS_MAX),
        ("push_timeout_ms", 1, PUSH_TIMEOUT_MS_MAX),
    ):
        value = getattr(config, name)
        if not low <= value <= high:
            yield name, f"{value} is outside {low} to {high} ms"
