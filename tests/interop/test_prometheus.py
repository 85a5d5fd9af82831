"""Alert rules and dashboards with a real Prometheus that scrapes a real cluster: every expression is evaluated."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tandemq import ConsumeFrom, Message
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.config.samples import ON_ANY_DISK
from tandemq.coordination.registry.records import Mode
from tandemq.run.children import ChildCluster, ClusterPorts
from tests.interop.java import PeerError, wait_until
from tests.interop.prometheus import Prometheus, program
from tests.spec import spec
from tools.boards import BOARDS
from tools.dashboards import DEPLOY, alert_rules, expressions, metrics_in

RARE = {
    # Families without a series as long as nothing of the kind has happened.
    "rocketmq_send_to_dlq_messages_total",
    "tandemq_namesrv_registry_failed",
}
VARIABLES = {"$cluster": "DefaultCluster", "$broker": ".*", "$group": ".*", "$topic": ".*", "$__rate_interval": "10s"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildCluster]:
    """Two groups with elections and TLS, all with a metrics port."""
    cluster = ChildCluster(
        tmp_path_factory.mktemp("cluster"),
        mode=Mode.ELECT,
        ports=ClusterPorts(has_metrics=True),
        settings={**ON_ANY_DISK, "flushDiskType": "SYNC_FLUSH"},
        tls=True,
    )
    with cluster:
        yield cluster


@pytest.fixture(scope="module")
def prometheus(cluster: ChildCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped every process of the cluster, before and after some traffic."""
    targets = [child.startup["metrics"] for child in (cluster.name_server, *cluster.brokers)]
    with Prometheus(tmp_path_factory.mktemp("prometheus"), targets) as prometheus:
        prometheus.start()
        wait_until(lambda: prometheus.up() == len(targets), what="a scrape of every process", within_s=30)
        with (
            BlockingProducer(cluster.name_servers, group="pg", tls=cluster.tls or False) as producer,
            BlockingConsumer(
                cluster.name_servers,
                group="cg",
                topics={"Orders": "*"},
                consume_from=ConsumeFrom.FIRST,
                tls=cluster.tls or False,
            ) as consumer,
        ):
            for number in range(40):
                producer.send(Message("Orders", b"x" * 100, keys=[f"key{number}"]))
            for _ in range(10):
                message = consumer.receive(30)
                assert message is not None
                message.ack()
            wait_until(
                lambda: all(
                    map(prometheus.query, ("rocketmq_messages_out_total > 0", "rocketmq_consumer_lag_messages > 0"))
                ),
                what="traffic in the metrics",
                within_s=30,
            )
            yield prometheus


def evaluated(prometheus: Prometheus, expr: str) -> int:
    """Return the number of series in the result of an expression of a dashboard."""
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return len(prometheus.query(expr))


@spec("O06")
def test_rules_and_example_configuration_pass_promtool() -> None:
    for words in (
        ["check", "rules", "rules.yml"],
        ["check", "config", "prometheus.yml"],
        ["test", "rules", "rules_test.yml"],
    ):
        done = subprocess.run([program("promtool"), *words], cwd=DEPLOY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"


@spec("O07")
def test_every_query_of_every_dashboard_has_a_result_on_a_real_cluster(prometheus: Prometheus) -> None:
    queries = [(board.title, title, expr) for board in BOARDS for title, expr in expressions(board)]
    assert len(queries) > 50

    def empty() -> list[tuple[str, str, str]]:
        return [query for query in queries if not evaluated(prometheus, query[2])]

    try:
        wait_until(lambda: not empty(), what="a result of every query", within_s=20)
    except TimeoutError:
        assert empty() == []


@spec("O06")
def test_every_metric_of_every_alert_rule_is_exported_by_a_real_cluster(prometheus: Prometheus) -> None:
    rules = alert_rules()
    assert len(rules) > 20
    for rule in rules:
        prometheus.query(rule.expr)
        missing = {metric for metric in metrics_in(rule.expr) - RARE if not prometheus.query(f"count({metric})")}
        assert not missing, f"{rule.name} {missing}"


def test_page_of_every_process_passes_promtools_linter(cluster: ChildCluster, prometheus: Prometheus) -> None:
    assert prometheus.is_running
    for child in (cluster.name_server, *cluster.brokers):
        page = prometheus.page_of(child.startup["metrics"])
        command = [program("promtool"), "check", "metrics"]
        done = subprocess.run(command, input=page, capture_output=True, check=False)
        complaints = [line for line in done.stderr.decode().splitlines() if not line.startswith("rocketmq_")]
        assert complaints == [], child.name


@spec("O06")
def test_healthy_cluster_raises_no_alert_and_a_dead_group_is_noticed(
    cluster: ChildCluster, prometheus: Prometheus
) -> None:
    urgent = {"TandemQNoMaster", "TandemQTwoMasters", "TandemQInSyncBelowMinimum", "TandemQRegistryAway", "TandemQDown"}
    wait_until(lambda: not urgent & prometheus.alerts().keys(), what="no alert of a cluster that is well", within_s=30)
    master = cluster.master_of("broker-a")
    assert master is not None
    master.kill()
    takeover = f'tandemq_broker_master{{broker="broker-a", broker_id!="{master.broker_id}"}} == 1'
    wait_until(lambda: prometheus.query(takeover), what="a takeover in the metrics", within_s=30)
    for broker in cluster.brokers:
        if broker.broker_name == "broker-b":
            broker.kill()
    wait_until(
        lambda: {one["broker"] for one in prometheus.alerts().get("TandemQNoMaster", [])} == {"broker-b"},
        what="the alert of the dead group, and none of the one with a new master",
        within_s=30,
    )
    # Rule groups are evaluated at moments of their own.
    wait_until(
        lambda: len(prometheus.alerts().get("TandemQDown", [])) == 3, what="an alert of each dead process", within_s=30
    )


def test_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PeerError, match="apt-get install prometheus"):
        program("prometheus")
