"""Queries of topics whose brokers are down: the error says what the name server still knows, in one line."""

import json
import re

import pytest
from pyspark.sql import SparkSession

from tandemq.client.connection import try_request
from tandemq.errors import NetworkError, TandemError
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tandemq.model.topic import ORDER_NAMESPACE
from tandemq.run.local import LocalCluster
from tandemq.spark.runtime.causes import parse_error
from tandemq.spark.sources.cluster.batch_reader import BatchReader
from tandemq.spark.sources.cluster.options import source_options
from tandemq.spark.sources.schema import message_schema
from tests.spark.messages import make_topic, numbered, send
from tests.spark.queries import Query

START_IT = "start it, or check its name and its namesrvAddr; registered: "


def line_of(name_servers: str, **options: str) -> str:
    """Return the error of a batch query, of the topic `Orders` unless the options say otherwise."""
    given = {"nameServer": name_servers, "timeoutMs": "1000"} | options
    if "assign" not in given:
        given.setdefault("subscribe", "Orders")
    with pytest.raises(TandemError) as found:
        BatchReader(source_options(given, streaming=False), message_schema()).partitions()
    return f"{type(found.value).__name__}: {found.value}"


def ask(name_servers: str, code: RequestCode, fields: dict[str, str]) -> None:
    answer = try_request(name_servers, Command(code, fields=fields))
    assert answer is not None
    assert answer.code == 0


def test_query_says_which_brokers_of_a_topic_are_not_registered(tandemq_cluster: LocalCluster) -> None:
    names = tandemq_cluster.name_servers
    make_topic(names, "Orders")
    for broker_id in (0, 1):
        tandemq_cluster.broker("broker-b", broker_id).stop()
    assign = json.dumps({"Orders": {"broker-a": [0], "broker-b": [0]}})
    away = f"for the topic 'Orders', and no member of broker-b is registered at the name server {names}"
    says = f"NoRoute: the query names broker-b {away} ({START_IT}broker-a)"
    assert line_of(names, assign=assign) == says
    for broker_id in (0, 1):
        tandemq_cluster.broker("broker-a", broker_id).stop()

    # Nothing is left of the topic, except what the query says of it.
    nobody = f"NoRoute: no broker is registered at the name server {names}, so it knows no queue of 'Orders'"
    assert line_of(names).startswith(f"{nobody} (start the brokers of the topic, or check")
    start = json.dumps({"Orders": {"broker-b": {"0": 3}}})
    assert line_of(names, startingOffsets=start) == f"NoRoute: the query names broker-b {away} ({START_IT}no broker)"
    times = json.dumps({"Orders": {"broker-b": {"0": 1_700_000_000_000}}})
    assert line_of(names, startingOffsetsByTimestamp=times).startswith("NoRoute: the query names broker-b for")

    # The name server keeps order configurations.
    entry = {"namespace": ORDER_NAMESPACE, "key": "Orders", "value": "broker-b:4"}
    ask(names, RequestCode.PUT_KV_CONFIG, entry)
    assert line_of(names) == f"NoRoute: its order configuration names broker-b {away} ({START_IT}no broker)"
    ask(names, RequestCode.DELETE_KV_CONFIG, entry)
    tandemq_cluster.broker("broker-a").start()
    # It registers after its start.
    tandemq_cluster.wait_until(lambda: "no broker is registered" not in line_of(names, subscribe="Order"))
    start_it = "on broker-a; if a broker that is down has it, start that one)"
    for name in ("Order", "Payments"):  # without the topics that brokers make for themselves
        says = f"ConfigError: no name server knows the topic '{name}' (there are Orders {start_it}"
        assert line_of(names, subscribe=name) == says


@pytest.mark.slow
def test_batch_read_and_write_while_the_only_master_is_down_fail_with_one_line(
    spark: SparkSession, tandemq_broker: LocalCluster
) -> None:
    names = tandemq_broker.name_servers
    send(names, numbered("Orders", 0, 3))
    rows = spark.read.format("rocketmq").options(nameServer=names, subscribe="Orders")
    assert rows.load().count() == 3
    tandemq_broker.broker().kill()
    with pytest.raises(Exception, match="no broker is registered") as found:
        rows.load().count()
    line = str(parse_error(str(found.value)))
    assert re.fullmatch(rf"no broker is registered at the name server {names}, .* is this name server\)", line), line
    writer = spark.range(1).selectExpr("'x' as body").write.format("rocketmq").mode("append")
    with pytest.raises(Exception, match="no broker is registered") as found:
        writer.options(nameServer=names, topic="Orders").save()
    line = str(parse_error(str(found.value)))
    assert line.startswith("no connection within 1500 ms: no broker is registered at the name server"), line
    assert "\n" not in line


def test_stream_with_assigned_queues_waits_for_a_broker_group_that_is_down_or_goes_on_without_it(
    tandemq_cluster: LocalCluster,
) -> None:
    names = tandemq_cluster.name_servers
    make_topic(names, "Orders", 1)
    queues = [MessageQueue("Orders", name, 0) for name in ("broker-a", "broker-b")]
    for at, queue in enumerate(queues):
        send(names, numbered("Orders", 10 * at, 10 * at + 10), queue=queue)
    query = Query(names, assign=json.dumps({"Orders": {"broker-a": [0], "broker-b": [0]}}))
    assert query.drain() == list(range(20))
    for broker_id in (0, 1):
        tandemq_cluster.broker("broker-b", broker_id).stop()
    send(names, numbered("Orders", 20, 30), queue=queues[0])
    query.restart(timeoutMs=5_000)
    with pytest.raises(NetworkError, match="no answer within 5000 ms: no member of broker-b is registered"):
        query.plan()
    query.restart(failOnDataLoss="false")
    assert query.drain() == list(range(30))
