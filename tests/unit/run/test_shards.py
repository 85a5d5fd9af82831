"""What the process that starts the shards decides without them: stores that are left over, one page of metrics."""

from pathlib import Path

import pytest

from tandemq.boundary import Now
from tandemq.config.settings import BrokerConfig
from tandemq.errors import ConfigError
from tandemq.run.shard_metrics import merged
from tandemq.run.shards import check_other_stores
from tandemq.telemetry.exposition import RenderedFamily, TextRenderer, page
from tandemq.telemetry.families import Batch, Distribution, Metrics, counter, gauge, histogram


def test_store_with_messages_of_a_shard_that_is_not_started_is_refused(tmp_path: Path) -> None:
    config = BrokerConfig(store_path=str(tmp_path))
    log = tmp_path / "shards" / "2" / "commitlog"
    log.mkdir(parents=True)
    (tmp_path / "shards" / "notes").mkdir()
    (log / "00000000000000000000").touch()
    check_other_stores(config)
    (log / "00000000000000000000").write_bytes(b"message")
    for shards in (1, 2):
        with pytest.raises(ConfigError, match="2 is the store of a shard and has messages") as caught:
            check_other_stores(BrokerConfig(store_path=str(tmp_path), shards=shards))
        assert "start at least 3 shards" in str(caught.value.hint)
    check_other_stores(BrokerConfig(store_path=str(tmp_path), shards=3))
    check_other_stores(BrokerConfig(store_path=str(tmp_path), shard_of="broker-a"))


TURNS = counter("tandemq_turns_total", 'Turns; "all" of\nthem \\n.')
SIZES = gauge("tandemq_sizes", "Sizes.", "topic")
SECONDS = histogram("tandemq_seconds", "Seconds.", bounds=(1.0, 2.0))


def page_of(broker: str, *batches: Batch) -> str:
    labels = Metrics({"tandemq": {"broker": broker}})
    renderer = TextRenderer(100)
    renderer.begin(Now(0, 0))
    families = [
        RenderedFamily(each.family, list(renderer.render(each, labels.constant_labels(each.family))))
        for each in batches
    ]
    return page(families, is_openmetrics=False).decode()


def test_pages_of_shards_become_one_with_each_family_once() -> None:
    seconds = Batch(SECONDS, distributions={(): Distribution((1, 2, 3), 9.5)})
    first = page_of("a", Batch(TURNS, {(): 1}), Batch(SIZES, {("# HELP x",): 2, ("y",): 3}), seconds)
    second = page_of("a-1", Batch(TURNS, {(): 4}), seconds)
    text = page(merged([first, "", second]), is_openmetrics=False).decode()
    heads = [line for line in first.splitlines() if line.startswith("# ")]
    assert [line for line in text.splitlines() if line.startswith("# ")] == heads
    assert sorted(text.splitlines()) == sorted({*first.splitlines(), *second.splitlines()})
    lines = text.splitlines()
    assert lines[2:4] == ['tandemq_turns_total{broker="a"} 1', 'tandemq_turns_total{broker="a-1"} 4']
