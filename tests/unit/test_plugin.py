"""The pytest plugin, in a test run of a user's project."""

import sys

import pytest

pytest_plugins = ["pytester"]

IMPORTS = """
import sys
import pytest
from tandemq import Message
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
"""


@pytest.fixture
def users(pytester: pytest.Pytester) -> pytest.Pytester:
    """Create a user's project with strict markers and warnings as errors."""
    pytester.makeini("[pytest]\naddopts = --strict-markers -p no:cacheprovider\nfilterwarnings = error\n")
    return pytester


def passes(users: pytest.Pytester, source: str, count: int = 1) -> None:
    users.makepyfile(IMPORTS + source)
    users.runpytest_inprocess().assert_outcomes(passed=count)


def test_broker_stores_and_delivers_a_message(users: pytest.Pytester) -> None:
    passes(
        users,
        """
def test_order(tandemq_broker):
    with BlockingProducer(tandemq_broker.name_servers, group="orders") as producer:
        assert producer.send(Message("Orders", b"42")).status.name == "SEND_OK"
    from tandemq import ConsumeFrom
    with BlockingConsumer(tandemq_broker.name_servers, group="billing", topics={"Orders": "*"},
                          consume_from=ConsumeFrom.FIRST) as consumer:
        message = consumer.receive(timeout_s=60)
        assert message.body == b"42"
        message.ack()
""",
    )


def test_each_test_has_its_own_broker(users: pytest.Pytester) -> None:
    passes(
        users,
        """
@pytest.mark.parametrize("number", [1, 2])
def test_empty(tandemq_broker, number):
    assert tandemq_broker.broker().node.store.log.written_end == 0
    with BlockingProducer(tandemq_broker.name_servers, group="g") as producer:
        producer.send(Message("T", b"x"))
""",
        count=2,
    )


def test_pair_is_in_sync_and_survives_its_master(users: pytest.Pytester) -> None:
    passes(
        users,
        """
def test_pair(tandemq_pair):
    with BlockingProducer(tandemq_pair.name_servers, group="g") as producer:
        assert producer.send(Message("T", b"x")).status.name == "SEND_OK"
    end = tandemq_pair.broker().node.store.log.written_end
    tandemq_pair.broker().kill()
    assert not tandemq_pair.broker().is_running
    assert tandemq_pair.broker(broker_id=1).node.store.log.written_end == end > 0
    tandemq_pair.broker().start()
    tandemq_pair.wait_in_sync()
""",
    )


def test_cluster_has_two_pairs(users: pytest.Pytester) -> None:
    passes(
        users,
        """
def test_cluster(tandemq_cluster):
    assert [(b.name, b.broker_id) for b in tandemq_cluster.brokers] == [
        ("broker-a", 0), ("broker-b", 0), ("broker-a", 1), ("broker-b", 1)]
""",
    )


def test_marker_gives_settings_and_the_nearest_one_wins(users: pytest.Pytester) -> None:
    passes(
        users,
        """
pytestmark = pytest.mark.tandemq(fileReservedTime=7, defaultTopicQueueNums=3)

@pytest.mark.tandemq(autoCreateTopicEnable=False, fileReservedTime=8)
def test_settings(tandemq_broker):
    config = tandemq_broker.broker().node.config
    assert (config.auto_create_topic, config.reserved_hours, config.default_queue_nums) == (False, 8, 3)
""",
    )


def test_unknown_setting_is_an_error_that_names_the_nearest(users: pytest.Pytester) -> None:
    users.makepyfile(
        IMPORTS
        + """
@pytest.mark.tandemq(fileReservedTim=7)
def test_settings(tandemq_broker):
    pass
"""
    )
    result = users.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*did you mean fileReservedTime?*"])


@pytest.mark.system
def test_plugin_does_not_load_the_broker_before_a_fixture_is_used(users: pytest.Pytester) -> None:
    users.makepyfile(
        """
import sys

def test_light():
    assert not [name for name in ("numpy", "tandemq.broker.node", "tandemq.client") if name in sys.modules]
"""
    )
    users.runpytest_subprocess("-p", "no:hypothesispytest").assert_outcomes(passed=1)
    assert "tandemq.pytest_plugin" in sys.modules


def test_marker_sets_the_failover_mode(users: pytest.Pytester) -> None:
    passes(
        users,
        """
@pytest.mark.tandemq(mode="elect", messageDelayLevel="1s 1s 1s")
def test_order(tandemq_pair):
    assert tandemq_pair.registry
    tandemq_pair.master().kill()
    assert tandemq_pair.master().broker_id == 1
""",
    )


@pytest.mark.services
@pytest.mark.system
def test_pair_with_tls_serves_clients_that_trust_its_authority_and_no_others(users: pytest.Pytester) -> None:
    passes(
        users,
        """
from tandemq.errors import NetworkError

@pytest.mark.tandemq(tls=True, mode="elect")
def test_encrypted(tandemq_pair):
    servers, tls = tandemq_pair.name_servers, tandemq_pair.tls
    with BlockingProducer(servers, group="orders", tls=tls) as producer:
        assert producer.send(Message("Orders", b"42")).status.name == "SEND_OK"
        tandemq_pair.master().kill()
        assert tandemq_pair.master().broker_id == 1
        assert producer.send(Message("Orders", b"43")).status.name in ("SEND_OK", "SLAVE_NOT_AVAILABLE")
    with pytest.raises(NetworkError, match="TLS"), BlockingProducer(servers, group="plain") as producer:
        producer.send(Message("Orders", b"44"))
""",
    )


def test_broker_without_tls_has_none_for_clients(users: pytest.Pytester) -> None:
    passes(users, "def test_plain(tandemq_broker):\n    assert tandemq_broker.tls is None\n")
