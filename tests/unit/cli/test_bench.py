"""`tandemq bench`: results, progress output, and the error if no broker answers."""

import json

import pytest

from tandemq.run.local import LocalCluster
from tests.unit.cli.conftest import Run

SHORT = ("--seconds", 0.3, "--warmup", 0.1, "--json")


@pytest.mark.system
def test_produce_then_consume(run: Run, tandemq_broker: LocalCluster) -> None:
    words = ("bench", "produce", tandemq_broker.address, "--connections", 2, "--window", 4, "--body", 100)
    sent = json.loads(run(*words, *SHORT).stdout)
    assert sent["messages"] > 0
    assert sent["latency"]["p50_ms"] > 0
    got = json.loads(run("bench", "consume", tandemq_broker.address, *SHORT).stdout)
    assert got["messages"] > 0


@pytest.mark.system
def test_text_shows_rate_histogram_progress_and_the_generators_share(run: Run, tandemq_broker: LocalCluster) -> None:
    printed = run("bench", "produce", tandemq_broker.address, "--seconds", 0.7, "--warmup", 0.1)
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
    words = ("bench", "replicate", master.ha_address, "--end", end, "--seconds", 20)
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
