"""`tandemq bench`: results, progress output, and the error if no broker answers."""

import json

import pytest
from click.testing import CliRunner

from tandemq.cli import bench
from tandemq.load.__main__ import _parser
from tandemq.load.wire import frames
from tandemq.run.local import LocalCluster
from tests.samples import first
from tests.unit.cli.conftest import Run

SHORT = ("--seconds", 0.3, "--warmup", 0.1, "--json")


def consumed(run: Run, *words: object) -> dict[str, float]:
    """Return the result of a consumer that ran for so long that it got a message."""
    seconds = 0.3
    while not (found := json.loads(run("bench", "consume", *words, "--seconds", seconds, "--json").stdout))["messages"]:
        seconds *= 5
    return dict(found)


@pytest.mark.system
def test_produce_then_consume(run: Run, tandemq_broker: LocalCluster) -> None:
    words = ("bench", "produce", tandemq_broker.address, "--connections", 2, "--window", 4, "--body", 100)
    sent = json.loads(run(*words, "--count", 500, *SHORT).stdout)
    assert sent["messages"] == 500
    assert sent["latency"]["p50_ms"] > 0
    assert consumed(run, tandemq_broker.address)["messages"] > 0


@pytest.mark.system
@pytest.mark.parametrize("form", first(1, bench.FORMS))
def test_several_topics_of_varied_messages_are_sent_in_each_form_and_read_by_tag(
    run: Run, tandemq_broker: LocalCluster, form: str
) -> None:
    where = (tandemq_broker.address, "--topic", "varied", "--topics", 3, "--queues", 2)
    how = ("--form", form, "--lengths", "varied", "--count", 2_000, "--group", "bench")
    sent = json.loads(run("bench", "produce", *where, *how, *SHORT).stdout)
    assert (sent["messages"], sent["refused"]) == (2_000, {})
    store = tandemq_broker.broker().node.store
    counts = {name: queue.max_offset for name, queue in store.queues.items() if name[0].startswith("varied")}
    assert {topic for topic, _ in counts} == {"varied-0", "varied-1", "varied-2"}
    assert sum(counts.values()) == 2_000
    read = ("--expression", "paid || audit", "--window", 2, "--group", "bench")
    got = consumed(run, *where, *read)
    assert 0 < got["messages"] < got["offsets"]


@pytest.mark.system
def test_delayed_messages_are_held_for_their_level(run: Run, tandemq_broker: LocalCluster) -> None:
    words = ("bench", "produce", tandemq_broker.address, "--topic", "delayed", "--tag", "late", "--delay", 18)
    assert json.loads(run(*words, "--count", 20, *SHORT).stdout)["messages"] == 20
    queues = tandemq_broker.broker().node.store.queues
    assert sum(queue.max_offset for (topic, _), queue in queues.items() if topic == "SCHEDULE_TOPIC_XXXX") == 20


def test_batch_with_a_delay_level_is_a_usage_error() -> None:
    result = CliRunner().invoke(bench.bench, ["produce", "127.0.0.1:1", "--batch", "2", "--delay", "1"])
    assert result.exit_code == 2
    assert "a batch cannot be delayed" in result.output


@pytest.mark.parametrize("kind", ["produce", "consume", "replicate"])
def test_command_has_every_option_of_the_generator(kind: str) -> None:
    """Under the same name, but for --broker, and --tls, which stands before every command."""
    options = {option for parameter in bench.bench.commands[kind].params for option in parameter.opts}
    subparsers = _parser()._subparsers
    assert subparsers is not None
    choices = subparsers._group_actions[0].choices
    assert isinstance(choices, dict)
    generator = {option for action in choices[kind]._actions for option in action.option_strings}
    assert generator - {"-h", "--help", "--broker-name", "--tls"} <= options


def test_forms_are_those_of_the_generator() -> None:
    assert bench.FORMS == frames.FORMS


@pytest.mark.system
def test_text_shows_rate_histogram_progress_and_the_generators_share(run: Run, tandemq_broker: LocalCluster) -> None:
    printed = run("bench", "produce", tandemq_broker.address, "--seconds", 2, "--warmup", 0.1)
    assert "per second" in printed.stdout
    assert "p99" in printed.stdout
    assert "█" in printed.stdout
    assert "of one core" in printed.stdout
    assert "done" in printed.stderr


@pytest.mark.system
def test_missing_broker_is_reported(run: Run) -> None:
    assert "127.0.0.1:1" in run("bench", "produce", "127.0.0.1:1", *SHORT, code=1).stderr


@pytest.mark.tandemq(haClassicPeers="127.0.0.1")
@pytest.mark.system
def test_replicate_copies_the_log_to_its_end(run: Run, tandemq_broker: LocalCluster) -> None:
    run("bench", "produce", tandemq_broker.address, "--count", 50, *SHORT)
    master = tandemq_broker.broker()
    end = master.node.store.log.written_end
    words = ("bench", "replicate", master.ha_address, "--end", end, "--seconds", 120)
    copied = json.loads(run(*words, "--json").stdout)
    assert (copied["start_offset"], copied["end_offset"], copied["bytes"]) == (0, end, end)
    assert copied["mb_per_s"] > 0
    printed = run(*words).stdout
    assert f"log offsets 0 to {end}" in printed
    assert "MB/s" in printed
    assert "of one core" in printed


@pytest.mark.system
def test_replicate_is_refused_from_an_address_that_is_not_in_haClassicPeers(
    run: Run, tandemq_broker: LocalCluster
) -> None:
    words = ("bench", "replicate", tandemq_broker.broker().ha_address, "--json")
    assert "the master closed the connection" in run(*words, code=1).stderr
