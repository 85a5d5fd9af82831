"""Load by the command line: a result, progress meanwhile, and a clear error if there is nobody to load."""

import json

import pytest

from tandemq.run.local import LocalCluster
from tests.unit.cli.conftest import Run

SHORT = ("--seconds", 0.3, "--warmup", 0.1, "--json")


def test_produce_then_consume(run: Run, tandemq_broker: LocalCluster) -> None:
    words = ("bench", "produce", tandemq_broker.address, "--connections", 2, "--window", 4, "--body", 100)
    sent = json.loads(run(*words, *SHORT).stdout)
    assert sent["messages"] > 0
    assert sent["latency"]["p50_ms"] > 0
    got = json.loads(run("bench", "consume", tandemq_broker.address, *SHORT).stdout)
    assert got["messages"] > 0


def test_text_shows_rate_histogram_progress_and_the_generators_share(run: Run, tandemq_broker: LocalCluster) -> None:
    told = run("bench", "produce", tandemq_broker.address, "--seconds", 0.7, "--warmup", 0.1)
    assert "per second" in told.stdout
    assert "p99" in told.stdout
    assert "█" in told.stdout
    assert "of one core" in told.stdout
    assert "done" in told.stderr


def test_nobody_to_load_is_told(run: Run) -> None:
    assert "127.0.0.1:1" in run("bench", "produce", "127.0.0.1:1", *SHORT, code=1).stderr


@pytest.mark.tandemq(haClassicPeers="127.0.0.1")
def test_replicate_copies_the_log_to_its_end(run: Run, tandemq_broker: LocalCluster) -> None:
    run("bench", "produce", tandemq_broker.address, "--count", 50, *SHORT)
    master = tandemq_broker.broker()
    end = master.node.store.log.written_end
    words = ("bench", "replicate", master.ha_address, "--end", end, "--seconds", 20)
    copied = json.loads(run(*words, "--json").stdout)
    assert (copied["start_offset"], copied["end_offset"], copied["bytes"]) == (0, end, end)
    assert copied["mb_per_s"] > 0
    told = run(*words).stdout
    assert f"log offsets 0 to {end}" in told
    assert "MB/s" in told
    assert "of one core" in told


def test_replicate_is_not_let_in_from_an_address_that_is_not_listed(run: Run, tandemq_broker: LocalCluster) -> None:
    words = ("bench", "replicate", tandemq_broker.broker().ha_address, "--json")
    assert "the master closed the connection" in run(*words, code=1).stderr
