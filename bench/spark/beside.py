"""The pipeline beside Spark's own Kafka source and sink: the same rows, the same session, brokers on the same machine.

    rows (Parquet) ─► sink ─► TandemQ's broker ─► format("rocketmq") ─► noop
                  └─► sink ─► Kafka's broker   ─► format("kafka")    ─► noop

Sinks and sources of both run in turn, round by round. CPU seconds are those of the driver, its JVM, Spark's Python
workers and both brokers: whatever a message costs, wherever. Neither broker flushes before it acknowledges.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.cells import OURS
from bench.servers import BrokerGroup
from bench.spark.kafka import KafkaBroker
from bench.spark.measure import Cell, Took, interleaved
from tandemq.load.wire.probe import create_topic
from tandemq.load.wire.sockets import connect
from tandemq.spark.sources.cluster.source import RocketMQDataSource

RATE = 1000
"""Messages a second of the stream."""
STREAM_S = 30
WARM_UP_S = 10
STREAM_BODY_BYTES = 128
_BLOCK_BYTES = 1 << 22
_START_S = 120
_TOPIC_S = 10
_SPARKS_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
"""Spark's default; a session of `open_session` uses another on local disks."""
_CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of messages."""

    body_bytes: int
    queues: int
    keyed: bool
    """Whether messages have a key, a tag and two properties; headers of Kafka."""
    share: int = 4
    """The input is `--mib` divided by it."""
    topics: int = 1
    """Number of topics, in turn; more than one: a column names them."""
    varies: bool = False
    """Whether bodies have any length from 0 to twice `body_bytes`."""
    headers: bool = False
    """Whether ours too is given the properties as Kafka's headers."""

    @property
    def name(self) -> str:
        """Return a name for topics and files."""
        kind = "headers" if self.headers else "keyed" if self.keyed else "bare"
        return f"b{self.body_bytes}{'v' * self.varies}-q{self.queues}-t{self.topics}-{kind}"

    @property
    def title(self) -> str:
        """Return a description for the table."""
        size = f"{self.body_bytes // 1024} KiB" if self.body_bytes >= 1024 else f"{self.body_bytes} B"
        place = f"{self.queues} queues" if self.topics == 1 else f"{self.topics} topics of {self.queues} queues"
        with_ = "key and headers" if self.headers else "key and properties" if self.keyed else "bodies only"
        return f"{'0 to 2 x ' * self.varies}{size}, {place}, {with_}"

    def topics_of(self, number: int) -> list[str]:
        """Return the topics of a round."""
        return [f"{self.name}-{number}-{part}" for part in range(self.topics)]


SOURCE_TARGET, SINK_TARGET = 1.7, 1.0
SIZES = (
    Shape(1024, 4, keyed=True, share=1),
    Shape(128, 4, keyed=True, share=8),
    Shape(8192, 4, keyed=True),
)
"""Shapes with targets."""
SHAPES = (
    *SIZES,
    Shape(1024, 64, keyed=True),
    Shape(1024, 4, keyed=False),
    Shape(1024, 4, keyed=True, headers=True),
    Shape(1024, 4, keyed=True, topics=4, varies=True),
)
"""The first is the one with targets; each of the others differs in one thing, the last in two."""


def write_rows(spark: SparkSession, path: Path, shape: Shape, size: int) -> int:
    """Write Parquet files with rows of one shape, about `size` bytes of bodies; returns the number of rows.

    Bodies are random bytes, which nobody compresses. Keys and properties are those of orders.
    """
    rows = size // shape.body_bytes
    body_bytes = shape.body_bytes

    def bodies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        block = os.urandom(_BLOCK_BYTES)
        for batch in batches:
            numbers = batch.column(0).to_pylist()
            starts = [number * 104_729 % (_BLOCK_BYTES - 2 * body_bytes) for number in numbers]
            sizes = [number * 7919 % (2 * body_bytes) if shape.varies else body_bytes for number in numbers]
            values = pa.array([block[at : at + size] for at, size in zip(starts, sizes, strict=True)], pa.binary())
            yield pa.RecordBatch.from_arrays([batch.column(0), values], names=["id", "body"])

    frame = spark.range(rows, numPartitions=4).mapInArrow(bodies, "id bigint, body binary")
    if shape.keyed:
        frame = frame.select(
            "id",
            "body",
            F.concat(F.lit("order-"), "id").alias("key"),
            F.concat(F.lit("tag"), F.col("id") % 5).alias("tags"),
            F.create_map(F.lit("customer"), F.col("id").cast("string"), F.lit("region"), F.lit("north")).alias(
                "properties"
            ),
        )
    frame.withColumn("part", F.col("id") % shape.topics).drop("id").write.mode("overwrite").option(
        "compression", "none"
    ).parquet(str(path))
    return rows


class Beside:
    """All cells beside Kafka, on two running brokers."""

    def __init__(
        self, spark: SparkSession, root: Path, mib: int, rounds: int, shapes: int, say: Callable[[str], None]
    ) -> None:
        """`root`: directory of input and stores; `shapes`: how many of SHAPES."""
        self._shapes = shapes
        self._spark = spark
        self._root = root
        self._mib = mib
        self._rounds = rounds
        self._say = say
        spark.dataSource.register(RocketMQDataSource)
        self._group = BrokerGroup(OURS, root / "tandemq", {"diskMaxUsedSpaceRatio": 99})
        self._kafka = KafkaBroker(root / "kafka")

    def __enter__(self) -> Self:
        self._kafka.format()
        self._kafka.start(_START_S)
        self._group.start_master()
        return self

    def __exit__(self, *error: object) -> None:
        self._group.__exit__(*error)
        self._kafka.kill()

    def kafka(self) -> list[Cell]:
        """Measure sinks and batch sources."""
        found = []
        for at, shape in enumerate(SHAPES[: self._shapes]):
            cells = self._shape(shape, has_target=at < len(SIZES))
            for cell in cells:
                self._say(f"{cell.name}: {cell.figure}")
            found += cells
        return found

    # Batches.

    def _shape(self, shape: Shape, *, has_target: bool) -> list[Cell]:
        rows_path = self._root / f"{shape.name}.parquet"
        rows = write_rows(self._spark, rows_path, shape, (self._mib << 20) // shape.share)
        mb = rows * shape.body_bytes / 1e6
        sunk = self._sinks(shape, rows_path)
        counts = {kind: frame.count() for kind, frame in self._frames(shape, every_column=False).items()}
        assert counts == {"kafka": rows, "ours": rows}, f"{counts} rows, not {rows}"
        read = self._reads(shape, every_column=False)
        every = self._reads(shape, every_column=True)
        title = shape.title
        return [
            Cell(f"{title}: Spark's Kafka sink", sunk["kafka"].rate(mb)),
            _beside(f"{title}: sink", sunk, mb, SINK_TARGET if has_target else None),
            Cell(f"{title}: Spark's Kafka source", read["kafka"].rate(mb)),
            _beside(f"{title}: source, Kafka's columns", read, mb, SOURCE_TARGET if has_target else None),
            Cell(f"{title}: Spark's Kafka source, with headers", every["kafka"].rate(mb)),
            _beside(f"{title}: source, all columns", every, mb, None),
        ]

    def _sinks(self, shape: Shape, rows_path: Path) -> dict[str, Took]:
        """Write the rows to both brokers, each round into a topic of its own; the first ones are read later."""
        rows = self._spark.read.parquet(str(rows_path))
        for number in range(self._rounds):
            for topic in shape.topics_of(number):
                self._create_topics(topic, shape.queues)
        topics = {kind: iter(range(self._rounds)) for kind in ("kafka", "ours")}
        theirs = rows.withColumnRenamed("body", "value")
        if shape.keyed:
            pairs = F.map_entries(F.map_concat("properties", F.create_map(F.lit("TAGS"), "tags")))
            headers = F.transform(
                pairs, lambda pair: F.struct(pair["key"].alias("key"), pair["value"].cast("binary").alias("value"))
            )
            theirs = theirs.withColumn("headers", headers)
            theirs = theirs.select("key", "value", "headers", "part")
        source = theirs if shape.headers else rows

        def kafka() -> None:
            frame, options = addressed(theirs, next(topics["kafka"]))
            to = frame.write.format("kafka").options(**options)
            to.option("kafka.bootstrap.servers", self._kafka.address).save()

        def ours() -> None:
            frame, options = addressed(source, next(topics["ours"]))
            to = frame.write.format("rocketmq").options(**options)
            to.option("nameServer", self._group.name_server.address).mode("append").save()

        def addressed(frame: DataFrame, number: int) -> tuple[DataFrame, dict[str, str]]:
            if shape.topics == 1:
                return frame.drop("part"), {"topic": shape.topics_of(number)[0]}
            names = F.concat(F.lit(f"{shape.name}-{number}-"), F.col("part").cast("string"))
            return frame.withColumn("topic", names).drop("part"), {}

        return interleaved(self._rounds, {"kafka": kafka, "ours": ours})

    def _create_topics(self, name: str, queues: int) -> None:
        self._kafka.create_topic(name, queues)
        with connect(self._group.master.address, _TOPIC_S) as broker:
            create_topic(broker, name, queues)

    def _frames(self, shape: Shape, *, every_column: bool) -> dict[str, DataFrame]:
        topics = ",".join(shape.topics_of(0))
        theirs = self._spark.read.format("kafka").option("subscribe", topics)
        ours = self._spark.read.format("rocketmq").option("subscribe", topics)
        if every_column:
            theirs = theirs.option("includeHeaders", "true")
        else:
            ours = ours.option("schema", "kafka")
        return {
            "kafka": theirs.option("kafka.bootstrap.servers", self._kafka.address).load(),
            "ours": ours.option("nameServer", self._group.name_server.address).load(),
        }

    def _reads(self, shape: Shape, *, every_column: bool) -> dict[str, Took]:
        frames = self._frames(shape, every_column=every_column)

        def work(frame: DataFrame) -> Callable[[], None]:
            return lambda: frame.write.format("noop").mode("overwrite").save()

        return interleaved(self._rounds, {kind: work(frame) for kind, frame in frames.items()})

    # Streams.

    def kafka_stream(self) -> list[Cell]:
        """Measure the age of messages when a query has brought them to the driver, one query after another."""
        for kind in ("kafka", "ours"):
            self._latencies(kind, WARM_UP_S)
        kafka, ours = self._latencies("kafka"), self._latencies("ours")
        tuned = self._spark.conf.get(_CHECKPOINTS)
        self._spark.conf.set(_CHECKPOINTS, _SPARKS_CHECKPOINTS)
        plain = self._latencies("kafka")
        self._spark.conf.set(_CHECKPOINTS, str(tuned))
        ratio = ours.p50 / kafka.p50
        title = f"stream: {RATE:,} messages/s, stored to driver"
        return [
            Cell(f"{title}, Kafka source, Spark's checkpoint manager", plain.text),
            Cell(f"{title}, Kafka source", kafka.text),
            Cell(f"{title}", f"{ours.text}: {ratio:.2f} x Kafka's", "p50 <= 0.5 x", ratio <= 0.5),
        ]

    def _latencies(self, kind: str, seconds: int = STREAM_S) -> Latencies:
        topic = f"live-{kind}-{time.monotonic_ns()}"
        stream = self._spark.readStream
        self._create_topics(topic, 4)
        if kind == "kafka":
            source = stream.format("kafka").option("kafka.bootstrap.servers", self._kafka.address)
            age = F.unix_millis("timestamp")
        else:
            source = stream.format("rocketmq").option("nameServer", self._group.name_server.address)
            age = F.unix_millis("storeTimestamp")
        found = Latencies()
        frame = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
        query = (
            frame.select(age.alias("at"))
            .writeStream.foreachBatch(found.add)
            .option("checkpointLocation", str(self._root / topic))
            .start()
        )
        with open(self._root / f"{topic}.log", "w") as output:
            if kind == "kafka":
                load = self._kafka.begin_load(topic, RATE, seconds, body_bytes=STREAM_BODY_BYTES, output=output)
            else:
                load = self._begin_load(topic, seconds, output)
            load.wait(_START_S + seconds)
        query.processAllAvailable()
        query.stop()
        assert load.returncode == 0, (self._root / f"{topic}.log").read_text()
        return found

    def _begin_load(self, topic: str, seconds: int, output: Any) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "bench.latency_load", self._group.master.address, "--topic", topic]
        words += ["--rate", str(RATE), "--seconds", str(seconds), "--body", str(STREAM_BODY_BYTES)]
        words += ["--groups", "0", "--warmup", "0"]
        return subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, text=True)


class Latencies:
    """Ages of the messages of a stream, by micro-batch; `add` is its sink."""

    def __init__(self) -> None:
        """Start without any."""
        self._ages: list[float] = []
        self._lock = threading.Lock()

    def add(self, frame: DataFrame, _batch: int) -> None:
        """Bring a micro-batch to the driver, and note the ages of its messages."""
        stored = frame.toArrow().column(0).to_pylist()
        now = time.time() * 1000
        with self._lock:
            self._ages += [now - at for at in stored]

    @property
    def _warm(self) -> list[float]:
        """The ages without the first quarter: the first batches start workers and compile."""
        return self._ages[len(self._ages) // 4 :]

    @property
    def p50(self) -> float:
        """Return the median, in milliseconds."""
        return statistics.median(self._warm)

    @property
    def text(self) -> str:
        """Return the figures for the table."""
        p99 = statistics.quantiles(self._warm, n=100)[98]
        return f"p50 {self.p50:,.0f} ms, p99 {p99:,.0f} ms of {len(self._warm):,} messages"


def _beside(name: str, took: dict[str, Took], mb: float, target: float | None) -> Cell:
    """Return the cell of ours, as a multiple of Kafka's speed: by the clock, and by CPU seconds."""
    ours, kafka = took["ours"], took["kafka"]
    ratio, by_cpu = kafka.seconds / ours.seconds, kafka.cpu / ours.cpu
    figure = f"{ours.rate(mb)}: {ratio:.2f} x Kafka's, {by_cpu:.2f} x by CPU"
    if target is None:
        return Cell(name, figure)
    return Cell(name, figure, f">= {target:.1f} x", ratio >= target)
