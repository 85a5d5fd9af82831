"""Settings of monitoring: what is refused, labels, and the collector's URL."""

import pytest

from tandemq.config.monitoring import TAKEN_LABELS, labels_of, parse_target
from tandemq.config.settings import BrokerConfig, NameServerConfig
from tandemq.config.validation import validate
from tandemq.errors import ConfigError
from tests.spec import spec
from tools.reference import metric_families


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/metrics"),
        ("http://collector/", "http://collector:80/v1/metrics"),
        ("https://otel.example.org", "https://otel.example.org:443/v1/metrics"),
        ("https://[::1]:4318/otlp/v1/metrics", "https://[::1]:4318/otlp/v1/metrics"),
        ("http://mimir:9009/otlp?tenant=a", "http://mimir:9009/otlp?tenant=a"),
    ],
)
def test_target_is_a_url_whose_path_is_kept(text: str, url: str) -> None:
    assert parse_target(text).url == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "collector:4318",
        "ftp://x",
        "http://",
        "http://a:99999",
        "http://user@a",
        "http://a/#x",
        "http://a/b c",
        "http://[x",
        "http://a:0",
    ],
)
def test_target_that_is_no_url_of_a_collector_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_target(text)
    with pytest.raises(ConfigError, match="metricsHttpExporterTarget"):
        validate(BrokerConfig(push_target=text))


@spec("O10")
def test_exporters_that_are_not_supported_are_refused_with_what_to_use_instead() -> None:
    for value, advice in (("OTLP_GRPC", "use OTLP_HTTP"), ("LOG", "metricsPort"), ("prom", "DISABLE, PROM, OTLP_HTTP")):
        with pytest.raises(ConfigError, match=advice):
            validate(BrokerConfig(metrics_exporter=value))
        with pytest.raises(ConfigError, match=advice):
            validate(NameServerConfig(metrics_exporter=value))


def test_prom_of_a_java_file_opens_its_port_unless_metrics_port_is_set() -> None:
    assert BrokerConfig().scrape_port == -1
    assert not BrokerConfig().is_monitored
    assert BrokerConfig(metrics_exporter="PROM").scrape_port == 5557
    assert BrokerConfig(metrics_exporter="PROM", metrics_prom_port=6000).scrape_port == 6000
    assert BrokerConfig(metrics_exporter="PROM", metrics_port=0).scrape_port == 0
    assert BrokerConfig(metrics_prom_port=6000).scrape_port == -1
    assert BrokerConfig(metrics_exporter="OTLP_HTTP").is_monitored


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"push_interval_ms": 99}, "metricHttpExporterIntervalInMills"),
        ({"push_timeout_ms": 0}, "metricHttpExporterTimeOutInMills"),
        ({"push_ca_file": "ca.pem"}, "metricsHttpExporterCaFile"),
        ({"metrics_prom_port": 70_000}, "metricsPromExporterPort"),
        ({"metrics_port": -2}, "metricsPort"),
        ({"metrics_label": "topic:a"}, "metricsLabel"),
    ],
)
def test_wrong_values_are_refused_by_their_key(settings: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        validate(NameServerConfig(**settings))  # type: ignore[arg-type]


def test_labels_are_read_as_rocketmq_writes_them() -> None:
    assert labels_of("") == {}
    assert labels_of("zone:east, team:a:b,") == {"zone": "east", "team": "a:b"}


@pytest.mark.parametrize(
    "text", ["zone", "1a:b", "a-b:c", "zone:a,zone:b", "le:1", "otel_scope_name:x", f"a:{'x' * 256}", "__a:b"]
)
def test_labels_that_cannot_be_used_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        labels_of(text)


def test_too_many_labels_are_refused() -> None:
    with pytest.raises(ConfigError, match="the maximum is 16"):
        labels_of(",".join(f"l{number}:x" for number in range(17)))


def test_every_label_of_a_metric_is_taken() -> None:
    labels = {label for family in metric_families().values() for label in family.labels}
    assert labels <= TAKEN_LABELS
