"""Processes that push their metrics to a collector."""

from __future__ import annotations

import ssl
from pathlib import Path

from tandemq import Message
from tandemq.client.blocking import BlockingProducer
from tandemq.config.samples import ON_ANY_DISK
from tandemq.coordination.registry.records import Mode
from tandemq.run.children import ChildCluster
from tests.blackbox.certificates import Authority
from tests.spec import spec
from tests.unit.real.monitoring.collector import Collector, Push
from tests.unit.telemetry.otlp import attributes_of, total

MESSAGES = 20


def resource_of(push: Push) -> dict[str, str]:
    """Return the attributes of the process that pushed."""
    return attributes_of(push.request.resource_metrics[0].resource.attributes)


@spec("O10", "O11")
def test_broker_and_name_server_push_to_a_collector_with_tls_and_a_token(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("collector")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    headers = tmp_path / "headers"
    headers.touch(0o600)
    headers.write_text("Authorization: Bearer of-the-test\n")
    with Collector(context) as collector:
        settings = {
            "metricsExporterType": "OTLP_HTTP",
            "metricsHttpExporterTarget": collector.url,
            "metricsHttpExporterHeaderFile": str(headers),
            "metricsHttpExporterCaFile": str(authority.ca_file),
            "metricHttpExporterIntervalInMills": "200",
            "metricsLabel": "zone:east",
        }
        cluster = ChildCluster(
            tmp_path / "cluster",
            groups=1,
            slaves=0,
            mode=Mode.STATIC,
            settings={**ON_ANY_DISK, **settings},
        )
        cluster._name_server_settings |= settings
        with cluster:
            with BlockingProducer(cluster.name_servers, group="pg") as producer:
                for _ in range(MESSAGES):
                    producer.send(Message("Orders", b"x"))
            seen = 0
            while not _has_arrived(collector.wait(seen + 1)):
                seen = len(collector.pushes)
    pushes = collector.pushes
    assert {push.headers["Authorization"] for push in pushes} == {"Bearer of-the-test"}
    broker = next(push for push in reversed(pushes) if resource_of(push)["service.name"] == "tandemq-broker")
    assert resource_of(broker)["service.instance.id"] == "broker-a/0"
    assert resource_of(broker)["service.namespace"] == "DefaultCluster"
    labels = {"topic": "Orders", "cluster": "DefaultCluster", "node_id": "broker-a", "zone": "east"}
    assert total(broker.request, "rocketmq_messages_in_total", **labels) == MESSAGES


def _has_arrived(pushes: list[Push]) -> bool:
    """Return whether all messages are in a broker's push, and the broker in one of the name server."""
    arrived = {
        resource_of(push)["service.name"]
        for push in pushes
        if total(push.request, "rocketmq_messages_in_total", topic="Orders") == MESSAGES
        or total(push.request, "tandemq_namesrv_brokers", cluster="DefaultCluster") == 1
    }
    return arrived == {"tandemq-broker", "tandemq-namesrv"}


@spec("O11")
def test_collector_that_is_away_disturbs_neither_start_nor_stop(tmp_path: Path) -> None:
    cluster = ChildCluster(
        tmp_path / "cluster",
        groups=1,
        slaves=0,
        mode=Mode.STATIC,
        settings={
            **ON_ANY_DISK,
            "metricsExporterType": "OTLP_HTTP",
            "metricsHttpExporterTarget": "http://127.0.0.1:1",
            "metricHttpExporterIntervalInMills": "100",
        },
    )
    with cluster, BlockingProducer(cluster.name_servers, group="pg") as producer:
        for _ in range(MESSAGES):
            producer.send(Message("Orders", b"x"))
    assert cluster.unclean == []
    log = cluster.brokers[0].log_path.read_text(encoding="utf-8")
    assert log.count("does not take pushes") <= 1
