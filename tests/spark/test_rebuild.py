"""Rebuilt queues and index compared with those of the broker, and of a Java broker."""

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tandemq import Message, Producer
from tandemq.config.settings import DELAY_LEVELS, parse_delay_levels
from tandemq.errors import ConfigError
from tandemq.real.disk import RealDisk
from tandemq.run.local import LocalCluster
from tandemq.spark.jobs.rebuild import WORK, RebuildOptions, rebuild
from tandemq.storage.key_index import KeyIndex
from tests.golden import GOLDEN, unpack
from tests.samples import slow
from tests.spark.logs import LogWriter
from tests.spec import spec

DELAYS_MS = parse_delay_levels(DELAY_LEVELS)


def files_of(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def indexed(directory: Path, slots: int, entries: int) -> list[tuple[int, int]]:
    return [entry for file in KeyIndex(RealDisk(directory), slots, entries).files for entry in file.entries()]


async def send(name_servers: str) -> None:
    async with Producer(name_servers, group="rebuild") as producer:
        for number in range(600):
            keys = [f"k{number}", "all"] if number % 2 else []
            delay = 3 if number % 50 == 0 else 0
            tags = ["", "paid", "é"][number % 3]
            await producer.send(Message(f"T{number % 3}", b"x" * number, tags=tags, keys=keys, delay_level=delay))


@spec("P06")
def test_queues_and_index_equal_those_of_the_broker_that_wrote_the_log(spark: SparkSession, tmp_path: Path) -> None:
    sizes = {"mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 2000, "maxIndexNum": 400}
    with LocalCluster(tmp_path / "cluster", settings=sizes) as cluster:
        asyncio.run(send(cluster.name_servers))
        store = cluster.broker().store
    output = tmp_path / "made"
    options = RebuildOptions(
        store=store,
        output=output,
        queue_file_bytes=2000,
        slots=5_000,
        entries=400,
        delays_ms=DELAYS_MS,
        range_bytes=1 << 16,
    )
    done = rebuild(spark, options)
    assert done.entries >= 600
    assert files_of(output / "consumequeue") == files_of(store / "consumequeue")
    found = indexed(output, 5_000, 400)
    assert found == indexed(store, 5_000, 400)
    assert len(found) == done.keys > 1000


@spec("P06")
@pytest.mark.parametrize("written", ["store-4.9.7-clean", "store-5.3.3-clean"])
def test_queues_and_keys_of_javas_log_are_javas(spark: SparkSession, tmp_path: Path, written: str) -> None:
    expected = json.loads((GOLDEN / f"{written}.json").read_text())
    unpack(written, tmp_path)
    sizes, store, output = expected["configuration"], tmp_path / "store", tmp_path / "made"
    slots, entries = sizes["maxHashSlotNum"], sizes["maxIndexNum"]
    options = RebuildOptions(
        store=store,
        output=output,
        queue_file_bytes=sizes["mappedFileSizeConsumeQueue"],
        slots=slots,
        entries=entries,
        delays_ms=DELAYS_MS,
    )
    rebuild(spark, options)
    assert files_of(output / "consumequeue") == files_of(store / "consumequeue")
    index = KeyIndex(RealDisk(output), slots, entries)
    for name, offsets in expected["keys"].items():
        topic, key = name.split("#", 1)
        assert index.find(topic, key, 0, 1 << 62, 64) == offsets


class Stopped(Exception):
    """An interruption by the user."""


@pytest.mark.parametrize("stopped_in", ["scan", slow("consume queues"), "key index"])
def test_interrupted_rebuild_resumes_with_the_same_result(spark: SparkSession, tmp_path: Path, stopped_in: str) -> None:
    made = LogWriter(tmp_path / "store", segment_bytes=1 << 20)
    made.write_many(3_000)
    sizes: dict[str, Any] = {"queue_file_bytes": 2_000, "slots": 500, "entries": 4_000, "range_bytes": 1 << 16}
    whole = RebuildOptions(store=made.store, output=tmp_path / "whole", **sizes)
    counted = rebuild(spark, whole)
    assert counted.entries == 3_000
    options = RebuildOptions(store=made.store, output=tmp_path / "made", **sizes)
    progress_seen: list[int] = []

    def phase(name: str) -> None:
        if name == stopped_in != "scan":
            raise Stopped

    def progress(done: int, _total: int) -> None:
        progress_seen.append(done)
        if stopped_in == "scan" and len(progress_seen) == 2:
            raise Stopped

    with pytest.raises(Stopped):
        rebuild(spark, options, phase, progress)
    made.write_many(100)  # as a running broker does
    resumed: list[int] = []
    with pytest.raises(ConfigError, match=r"another unfinished rebuild: slots was 500, is 600"):
        rebuild(spark, replace(options, slots=600))
    done = rebuild(spark, options, progress=lambda done, _total: resumed.append(done))
    assert resumed[0] == progress_seen[-1] > 0
    assert done == counted
    assert files_of(options.output / "consumequeue") == files_of(whole.output / "consumequeue")
    assert indexed(options.output, 500, 4_000) == indexed(whole.output, 500, 4_000)
    assert sorted(path.name for path in options.output.iterdir()) == ["consumequeue", "index"]


def test_finished_queues_are_not_written_again(spark: SparkSession, tmp_path: Path) -> None:
    made = LogWriter(tmp_path / "store")
    made.write_many(400)
    options = RebuildOptions(store=made.store, output=tmp_path / "made", queue_file_bytes=2_000, slots=50, entries=900)

    def stop(name: str) -> None:
        if name == "key index":
            raise Stopped

    with pytest.raises(Stopped):
        rebuild(spark, options, stop)
    queues = sorted((options.output / "consumequeue").glob("*/*"))
    assert len(queues) == 4
    marked = queues[0] / "mark"
    marked.touch()
    (queue,) = (options.output / WORK / "queues").glob(f"{queues[1].parent.name}@{queues[1].name}.json")
    queue.unlink()
    shutil.rmtree(queues[1])
    assert rebuild(spark, options).entries == 400
    assert marked.exists()
    assert list(queues[1].iterdir())


def test_output_with_files_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    made = LogWriter(tmp_path / "store")
    made.write_many(3)
    with pytest.raises(ConfigError, match="is not empty"):
        rebuild(spark, RebuildOptions(store=made.store, output=made.store))
