"""Options are validated before any request to a cluster, and each error says what is right."""

import pytest

from tandemq.config.tls import ClientTls
from tandemq.errors import ConfigError
from tandemq.model.message import MessageQueue
from tandemq.spark.sources.cluster.options import Edge, ReadFrom, StoreTime, lag_options, sink_options, source_options
from tandemq.spark.sources.cluster.source import RocketMQDataSource
from tandemq.spark.sources.log.source import RocketMQLogDataSource
from tandemq.spark.sources.schema import message_schema

GOOD = {"nameServer": "127.0.0.1:9876", "subscribe": "Orders"}


def test_defaults_are_kafkas() -> None:
    batch, stream = source_options(GOOD, streaming=False), source_options(GOOD, streaming=True)
    assert (batch.starting, batch.ending) == (Edge.EARLIEST, Edge.LATEST)
    assert stream.starting is Edge.LATEST
    assert batch.fail_on_data_loss
    assert batch.read_from is ReadFrom.ANY
    assert batch.tags is None


def test_names_are_case_insensitive_and_old_ones_are_accepted() -> None:
    old = {"nameserver.addr": "a:1", "consumer.topic": "Orders", "consumer.tag": "x || y", "FAILONDATALOSS": "False"}
    found = source_options(old, streaming=True)
    assert (found.name_servers, found.topics) == ("a:1", ("Orders",))
    assert found.tags == frozenset({"x", "y"})
    assert not found.fail_on_data_loss


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"subscrib": "x"}, "the source has no option 'subscrib' (did you mean 'subscribe'?)"),
        ({"startingofset": "x"}, "did you mean 'startingOffsets'?"),
        ({"assign": '{"Orders": {"a": [0]}}'}, "subscribe and assign are given together"),
        ({"subscribe": ""}, "subscribe: no topic is named"),
        ({"subscribe": "Or ders"}, "subscribe: the topic name 'Or ders' contains illegal characters"),
        ({"nameServer": ""}, "the option nameServer is missing"),
        ({"nameServer": "host"}, "nameServer: 'host' is not an address"),
        ({"startingOffsets": "latest"}, "startingOffsets is latest, so a batch query would read nothing"),
        ({"endingOffsets": "earliest"}, "endingOffsets is earliest, so a batch query would read nothing"),
        ({"startingOffsets": '{"Orders": {"a": {"0": -1}}}'}, "startingOffsets: 'Orders': 'a': '0' is -1, latest"),
        ({"startingOffsets": "{"}, "startingOffsets is not JSON"),
        ({"startingOffsets": "[]"}, "startingOffsets is [], not a JSON object"),
        ({"startingOffsets": '{"Orders": {"a": {"x": 1}}}'}, "startingOffsets: 'Orders': 'a': 'x' is not a queue id"),
        ({"startingOffsets": '{"Orders": {"a": {"0": 1.5}}}'}, "'Orders': 'a': '0' is 1.5, not a whole number"),
        ({"startingOffsets": '{"Orders": {"a": {"0": -3}}}'}, "'Orders': 'a': '0' is -3"),
        ({"startingOffsets": "earliest", "startingTimestamp": "5"}, "startingOffsets and startingTimestamp are given"),
        ({"startingTimestamp": "noon"}, "startingTimestamp is 'noon' (milliseconds since 1970)"),
        (
            {"startingTimestamp": "6", "endingTimestamp": "5"},
            "startingTimestamp is 6, later than endingTimestamp, 5",
        ),
        (
            {
                "startingOffsets": '{"Orders": {"a": {"0": 7, "1": 3}}}',
                "endingOffsets": '{"Orders": {"a": {"1": 2, "0": 7}}}',
            },
            "startingOffsets: 'Orders': 'a': '1' is 3, behind endingOffsets, 2",
        ),
        ({"readFrom": "slav"}, "readFrom is 'slav' (did you mean 'slave'?)"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss is 'yes' (it is one of true, false)"),
        ({"minPartitions": "0"}, "minPartitions is '0' (a whole number of 1 or more)"),
        ({"maxOffsetsPerTrigger": "9"}, "maxOffsetsPerTrigger is an option of streaming queries"),
        ({"subExpression": "||"}, "subExpression: subscription '||' names no tag"),
        (
            {"subExpression": "a | b"},
            "subExpression: 'a | b' would match no message, because tags have no | (write tags",
        ),
        ({"subExpression": "a || b|c"}, "subExpression: 'a || b|c' would match no message"),
        ({"expressionType": "sql92"}, "expressionType=SQL92 without subExpression filters nothing"),
        ({"schema": "kafka", "details": "true"}, "schema=kafka has no use for details"),
        ({"accessKey": "a"}, "accessKey and secretKey belong together; one is missing (or give secretFile)"),
        ({"secretKey": "s"}, "accessKey and secretKey belong together; one is missing (or give secretFile)"),
        ({"secretFile": "/f", "accessKey": "a"}, "secretFile has no use for accessKey (leave one of them out)"),
        ({"tlsCaFile": "/ca"}, "tlsCaFile has no effect without tls (give tls=true as well)"),
        ({"tls": "true", "tlsKeyFile": "/key"}, "tlsCertFile and tlsKeyFile belong together"),
    ],
)
def test_wrong_option_of_a_batch_query_is_named(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        source_options(GOOD | given, streaming=False)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets is an option of batch queries"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minOffsetsPerTrigger is 9, more than"),
        ({"maxTriggerDelay": "5s"}, "maxTriggerDelay without minOffsetsPerTrigger delays nothing"),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"}, "maxTriggerDelay is 'soon'"),
        ({"commitGroup": "a b"}, "commitGroup: the group name 'a b' contains illegal characters"),
    ],
)
def test_wrong_option_of_a_streaming_query_is_named(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        source_options(GOOD | given, streaming=True)
    assert says in str(caught.value)


def test_missing_or_ambiguous_selection_is_refused() -> None:
    with pytest.raises(ConfigError, match="no option selects what to read"):
        source_options({"nameServer": "a:1"}, streaming=False)
    for text, says in (
        ("[", "assign is not JSON"),
        ('{"T": {"a": 3}}', "assign: 'T': 'a' names no queue"),
        ('{"T": {"a": ["x"]}}', "assign: 'T': 'a': 'x' is not a queue id"),
        ('{"T": {}}', "assign: 'T' names no broker"),
    ):
        with pytest.raises(ConfigError) as caught:
            source_options({"nameServer": "a:1", "assign": text}, streaming=False)
        assert says in str(caught.value)


def test_offsets_and_times_are_parsed() -> None:
    text = '{"Orders": {"broker-a": {"epoch": 2, "0": 17, "3": -2}}}'
    found = source_options(GOOD | {"startingOffsets": text, "endingTimestamp": "99"}, streaming=False)
    assert found.starting.offsets == {  # type: ignore[union-attr]
        MessageQueue("Orders", "broker-a", 0): 17,
        MessageQueue("Orders", "broker-a", 3): -2,
    }
    assert found.starting.epoch("broker-a") == 2  # type: ignore[union-attr]
    assert found.ending == StoreTime(99)
    waits = {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "2m"}
    assert source_options(GOOD | waits, streaming=True).trigger_delay_ms == 120_000


def test_tls_is_read_by_source_sink_and_lag_alike() -> None:
    given = {"tls": "true", "tlsCaFile": "/ca", "tlsCertFile": "/c", "tlsKeyFile": "/k", "tlsCheckHost": "false"}
    wanted = ClientTls(ca_file="/ca", cert_file="/c", key_file="/k", check_host=False)
    assert source_options(GOOD | given, streaming=False).tls == wanted
    assert sink_options({"nameServer": "a:1"} | given).tls == wanted
    assert lag_options({"nameServer": "a:1"} | given).tls == wanted
    assert source_options(GOOD | {"tls": "true"}, streaming=True).tls == ClientTls()
    assert source_options(GOOD, streaming=True).tls is None


def test_sink_accepts_its_options_and_no_others() -> None:
    found = sink_options({"nameserver": "a:1", "topic": "Orders", "checkpointLocation": "somewhere"})
    assert (found.topic, found.require_send_ok) == ("Orders", False)
    for given, says in (
        ({"topc": "x"}, "the sink has no option 'topc' (did you mean 'topic'?)"),
        ({"topic": "a b"}, "illegal characters"),
        ({"subscribe": "x"}, "the sink has no option 'subscribe'"),
    ):
        with pytest.raises(ConfigError) as caught:
            sink_options({"nameServer": "a:1"} | given)
        assert says in str(caught.value)


@pytest.mark.parametrize("kind", [RocketMQDataSource, RocketMQLogDataSource])
def test_table_is_refused_because_spark_keeps_its_options_from_queries(
    kind: type[RocketMQDataSource | RocketMQLogDataSource],
) -> None:
    # What Spark 4.3 passes for CREATE TABLE t USING rocketmq OPTIONS (nameServer 'a:1', subscribe 'T').
    given = {"option.nameserver": "a:1", "nameserver": "a:1", "subscribe": "T", "option.subscribe": "T"}
    with pytest.raises(ConfigError, match=r"a table with this format cannot be created.*CREATE TEMPORARY VIEW"):
        kind(given | {"owner": "root", "provider": kind.name()}).schema()
    # And for a query of a table that was created with columns.
    with pytest.raises(ConfigError, match=r"(no options are given|needs a path).*FROM … WITH"):
        kind({}).reader(message_schema())
