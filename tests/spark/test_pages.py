"""Runs the commands of docs/guides/pipeline.md as written, and checks their documented results."""

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tandemq import ConsumeFrom, PushConsumer
from tandemq.cli.spark.collect import collect
from tandemq.cli.spark.commands import spark as jobs
from tandemq.cli.spark.pipeline import pipeline
from tandemq.cli.spark.replay import replay
from tandemq.codec.record.record import HEAD_V4
from tandemq.model.message import MessageQueue
from tandemq.model.topic import SCHEDULE_TOPIC
from tandemq.run.local import LocalCluster
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.pipelines.projects import environment, pipelines_command
from tandemq.spark.sources.formats import register
from tests.spark.logs import LogWriter
from tests.spark.messages import committed, make_topic, numbered, send, send_without_key, set_offsets
from tests.spark.short import SHORT
from tests.spec import spec

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "pipeline.md"
COMMANDS = {"pipeline": pipeline, "replay": replay, "collect": collect}
JOBS = ("archive", "compact", "vacuum", "scrub", "audit", "rebuild", "stats", "report")
ELSEWHERE = ["pip install '.[spark]'", "cd orders && SPARK_CONF_DIR=conf spark-pipelines run"]
"""Commands tested elsewhere: by `make install-check`, and as the second run of the project."""


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(name: str) -> list[list[str]]:
    """Return the arguments of each `tandemq spark NAME …` in the page, in order."""
    lines = [shlex.split(line) for block in blocks("sh") for line in block.splitlines()]
    return [words[3:] for words in lines if words[:3] == ["tandemq", "spark", name]]


def run(name: str, arguments: list[str], name_servers: str) -> str:
    given = [word.replace("127.0.0.1:9876", name_servers) for word in arguments]
    result = CliRunner().invoke(COMMANDS[name], given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def table(project: Path, name: str) -> list[dict[str, Any]]:
    files = [str(path) for path in (project / "warehouse" / name).rglob("*.parquet")]
    rows: list[dict[str, Any]] = ds.dataset(files).to_table().to_pylist() if files else []
    return rows


def places(rows: list[dict[str, Any]]) -> list[str]:
    """Return the positions of the rows' messages, in order."""
    return sorted(f"{row['topic']}/{row['queueId']}/{row['queueOffset']}" for row in rows)


def shorten(project: Path) -> None:
    """Configure less compilation, fewer state files, and a deduplication window of seconds."""
    conf = project / "conf" / "spark-defaults.conf"
    conf.write_text(conf.read_text() + "".join(f"{name} {value}\n" for name, value in SHORT.items()))
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace('copiesWithin: "7 days"', 'copiesWithin: "1 second"'))
    assert '"1 second"' in spec.read_text()


def kept_keys(spark: SparkSession, project: Path) -> set[str]:
    """Return the unique keys in silver's state."""
    (state,) = (project / "storage").glob("_checkpoints/**/silver/silver/*/state")
    provider = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(provider)
    settings = dict(line.split(" ", 1) for line in (project / "conf" / "spark-defaults.conf").read_text().splitlines())
    spark.conf.set(provider, settings[provider])
    try:
        return {row.key.uniqueKey for row in spark.read.format("statestore").load(str(state.parent)).collect()}
    finally:
        spark.conf.set(provider, before or "")


def test_every_command_of_the_page_is_run_by_a_test_of_this_file() -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    others = [line for line in lines if not line.startswith("tandemq spark ")]
    assert others == ELSEWHERE
    assert {shlex.split(line)[2] for line in lines if line not in others} == {*COMMANDS, *JOBS}


@pytest.mark.slow
def test_jobs_of_the_page_do_what_the_page_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run every command on a store or a lake in the page's order, with stores of the documented size."""
    assert spark.version
    monkeypatch.chdir(tmp_path)
    stores = tmp_path / "tandemq"
    writer, slave = (LogWriter(stores / name, segment_bytes=1 << 30) for name in ("broker-a", "broker-a-slave"))
    for one in (writer, slave):
        one.write_many(300)
    lake = tmp_path / "lake"
    outcomes: dict[str, list[dict[str, Any]]] = {}
    for block in blocks("sh"):
        for line in block.splitlines():
            words = line.replace("/var/lib/tandemq", str(stores)).replace("/data/lake", str(lake))
            _, _, name, *arguments = [*shlex.split(words), "", ""]
            if name not in JOBS or not line.startswith("tandemq spark"):
                continue
            given = [name, *(word for word in arguments if word), "--json"]
            if "--follow" in given:
                writer.write_many(50)
                output = follow(given, lambda: DeltaLake(lake).rows() == 350)
            else:
                result = CliRunner().invoke(jobs, given)
                assert result.exit_code == 0, (line, result.output)
                output = result.stdout
            outcomes.setdefault(name, []).append(json.loads(output))
    archived = outcomes["archive"]
    assert [one["rows"] for one in archived] == [300, 50]
    assert outcomes["compact"][0]["rows"] == 350
    assert outcomes["scrub"][0]["records"] == 350
    assert outcomes["audit"][0]["diverges_at"] is None
    assert outcomes["rebuild"][0]["entries"] == 350
    assert len(list((tmp_path / "rebuilt" / "index").iterdir())) == 1
    assert sum(row["messages"] for row in outcomes["stats"][0]["topics"]) == 350
    assert "Orders, January" in (tmp_path / "report.html").read_text()
    assert set(outcomes) == set(JOBS)


def follow(given: list[str], is_done: Callable[[], bool]) -> str:
    """Run a job that runs until Ctrl-C in a process of its own, and interrupt it once its work is done."""
    words = [sys.executable, "-m", "tandemq", "spark", *given]
    short = {name: value for name, value in SHORT.items() if not value.startswith("tests.")}  # not in this directory
    settings = [word for name, value in short.items() for word in ("--conf", f"{name}={value}")]
    with subprocess.Popen([*words, *settings], stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not is_done():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    assert process.returncode == 0
    return output


def first_program() -> str:
    (text,) = [text for text in blocks("python") if "open_session" in text]
    return text


def test_first_program_runs_as_pasted_without_an_activated_environment(
    tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    program = tmp_path / "first_rows.py"
    program.write_text(first_program().replace("127.0.0.1:9876", tandemq_broker.name_servers))
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK", "VIRTUAL"))}
    folders = own["PATH"].split(os.pathsep)
    own["PATH"] = os.pathsep.join(folder for folder in folders if Path(folder) != Path(sys.executable).parent)
    done = subprocess.run([sys.executable, program], env=own, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    assert re.search(r"paid *\| +\d+\|", done.stdout)
    assert {f"order {number}" for number in range(10)} <= set(re.findall(r"order \d", done.stdout))


def test_python_of_the_page_reads_and_writes(
    spark: SparkSession, tandemq_broker: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Orders", 1)
    make_topic(names, "Copies", 1)
    send(names, numbered("Orders", 0, 3, "paid"))
    known: dict[str, Any] = {"spark": spark}
    programs = [text for text in blocks("python") if 'format("rocketmq")' in text and text != first_program()]
    assert len(programs) == 3
    watched = next(text for text in programs if "ProgressListener" in text)
    for text in programs:
        if text != watched:
            exec(text.replace("127.0.0.1:9876", names), known)
    known["options"] = {"nameServer": names, "subscribe": "Orders"}
    exec(watched.replace("ProgressListener())", "listener := ProgressListener())"), known)
    assert known["rows"].isStreaming
    spark.streams.removeListener(known["listener"])
    assert "body" in capsys.readouterr().out
    copies = spark.read.format("rocketmq").options(nameServer=names, subscribe="Copies").load()
    assert sorted(row.body for row in copies.collect()) == [b"0", b"1", b"2"]


def test_tables_of_the_page_are_read_written_and_followed(
    spark: SparkSession, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Orders", 1)
    send(names, numbered("Orders", 0, 3, "paid"))
    (program,) = [text for text in blocks("python") if "tables=" in text]
    known: dict[str, Any] = {"spark": spark, "register": register}
    try:
        exec(program.replace("127.0.0.1:9876", names).replace("/data/", f"{tmp_path}/"), known)
        rows = spark.table("orders").groupBy("tags").count().collect()
        assert {row["tags"]: row["count"] for row in rows} == {"paid": 3, "new": 1}
    finally:
        for query in spark.streams.active:
            query.stop()
        for table in ("orders", "saved_orders"):
            spark.sql(f"DROP TABLE IF EXISTS {table}")


def run_by_spark(command: str, project: Path) -> None:
    """Run a line of the page in a shell with Spark's commands and a Java."""
    settings = environment(project)
    del settings["SPARK_CONF_DIR"]
    settings["PATH"] = f"{Path(pipelines_command()).parent}{os.pathsep}{settings['PATH']}"
    done = subprocess.run(command, shell=True, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]


def test_python_of_the_page_reads_a_log_and_a_lake(spark: SparkSession, tmp_path: Path) -> None:
    writer, lake = LogWriter(tmp_path / "broker-a"), tmp_path / "lake"
    for number in range(90):
        writer.write(topic="Orders" if number % 3 else "Other")
    Archive(ArchiveOptions(store=writer.store, lake=lake)).run(spark)
    programs = [text for text in blocks("python") if 'format("rocketmq")' not in text and "tables=" not in text]
    assert len(programs) == 2
    found: list[Any] = []
    for text in programs:
        known: dict[str, Any] = {"spark": spark}
        for line in text.replace("/var/lib/tandemq", str(tmp_path)).replace("/data/lake", str(lake)).splitlines():
            if line.startswith("spark."):
                found.append(eval(line, known))
            else:
                exec(line, known)
    count, stream, rows = found
    assert count == 60
    assert stream.isStreaming
    assert rows.count() == 90


@pytest.mark.timeout(1_800)
@pytest.mark.slow
def test_pipeline_is_created_run_and_updated(
    spark: SparkSession, tandemq_broker: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, project = tandemq_broker.name_servers, tmp_path / "orders"
    monkeypatch.chdir(tmp_path)
    make_topic(names, "Orders", 2)
    first = send(names, numbered("Orders", 0, 40, "a"))
    queues = [MessageQueue("Orders", "broker-a", number) for number in range(2)]
    set_offsets(names, "readers", dict(zip(queues, (3, 2), strict=True)))
    write, once = commands("pipeline")
    assert "contains a pipeline project" in run("pipeline", write, names)
    refused = CliRunner().invoke(pipeline, write)
    assert refused.exit_code == 2
    assert "already contains a project" in refused.output
    shorten(project)
    copies, second = 0, first
    for end in (40, 70):
        if end > 40:
            second = send(names, numbered("Orders", 40, end, "b"))
            again = spark.createDataFrame([(b"7", first[7].unique_key)], "body binary, uniqueKey string")
            again.write.format("rocketmq").options(nameServer=names, topic="Orders").mode("append").save()
            copies += 1
        if end == 40:
            run("pipeline", once, names)
        else:
            run_by_spark(ELSEWHERE[1], project)
        assert sorted(int(row["body"]) for row in table(project, "silver")) == list(range(end))
        assert len(table(project, "bronze")) == end + copies
        assert table(project, "gold_lag") == [
            {"group": "readers", "topic": "Orders", "lag": end + copies - 5, "consumed": 5, "queues": 2}
        ]
    assert kept_keys(spark, project) == {one.unique_key for one in second}
    minutes = table(project, "gold_minutes")
    assert sum(row["messages"] for row in minutes) == 70
    assert sum(row["bytes"] for row in minutes) == sum(len(str(number)) for number in range(70))
    assert {(row["topic"], row["retries"], row["deadLetters"]) for row in minutes} == {("Orders", 0, 0)}
    assert all(0 <= row["latencyMs50"] <= row["latencyMs99"] <= row["latencyMsMax"] for row in minutes)


@pytest.mark.tandemq(mappedFileSizeCommitLog=16777216)
def test_lake_is_replayed_as_the_page_says(
    spark: SparkSession, tandemq_broker: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = tandemq_broker.name_servers
    monkeypatch.chdir(tmp_path)
    make_topic(names, "Orders", 2)
    send(names, numbered("Orders", 0, 30, "a"))
    store = tandemq_broker.broker().store
    Archive(ArchiveOptions(store=store, lake=Path("lake"), broker_name="broker-a")).start(spark).awaitTermination()
    before = (store / "commitlog" / "0".zfill(20)).read_bytes()
    to_topic, to_same, to_store = commands("replay")
    assert "sent 30 messages" in run("replay", to_topic, names)
    assert '"rows": 30' in run("replay", to_same, names)
    for topic, count in (("Orders-again", 30), ("Orders", 60)):
        rows = spark.read.format("rocketmq").options(nameServer=names, subscribe=topic).load()
        assert rows.count() == count
    assert "broker-a-s1/commitlog" in run("replay", to_store, names)
    assert (tmp_path / "broker-a-s1" / "commitlog" / "0".zfill(20)).read_bytes() == before


def test_cluster_is_collected_as_the_page_says(
    spark: SparkSession, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names = tandemq_broker.name_servers
    send(names, numbered("Orders", 0, 30))
    send(names, numbered("Other", 30, 40))
    (words,) = commands("collect")
    given = [word.replace("/data/orders", str(tmp_path / "orders")) for word in words]
    assert re.search(r"rows +30\b", run("collect", given, names))
    rows = spark.read.parquet(*DeltaLake(tmp_path / "orders").data_files())
    assert {row.topic for row in rows.select("topic").distinct().collect()} == {"Orders"}


def test_lag_of_groups_is_a_source(spark: SparkSession, tandemq_broker: LocalCluster) -> None:
    names = tandemq_broker.name_servers
    make_topic(names, "Orders", 2)
    send(names, numbered("Orders", 0, 30))
    stream = spark.readStream.format("rocketmq").options(nameServer=names, subscribe="Orders", commitGroup="readers")
    query = stream.option("startingOffsets", "earliest").load().writeStream.format("noop").trigger(availableNow=True)
    query.start().awaitTermination()
    assert sum(committed(names, "readers", "Orders").values()) == 30
    send(names, numbered("Orders", 30, 37))
    rows = spark.read.format("rocketmq-lag").option("nameServer", names).load().where("group = 'readers'").collect()
    assert {(row.topic, row.brokerName) for row in rows} == {("Orders", "broker-a")}
    assert sum(row.lag for row in rows) == 7
    assert sum(row.consumerOffset for row in rows) == 30


def refuse_until_dead(name_servers: str, topic: str, times: int) -> None:
    """Let a group reject the only message of a topic until it is a dead letter, after `times` retries."""

    async def operation() -> None:
        async with PushConsumer(
            name_servers, group="g", topics={topic: "*"}, consume_from=ConsumeFrom.FIRST, max_reconsume_times=times
        ) as consumer:
            for time in range(times + 1):
                message = await consumer.receive(60)
                assert message is not None
                assert message.reconsume_times == time
                await message.retry()

    asyncio.run(operation())


@spec("P03")
@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.tandemq(messageDelayLevel="1s 1s 1s 1s 1s 1s 1s 1s")
def test_project_of_a_store_keeps_damage_in_bronze_and_counts_retries_and_dead_letters(
    spark: SparkSession, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names, broker, project = tandemq_broker.name_servers, tandemq_broker.broker(), tmp_path / "project"
    send(names, numbered("Orders", 0, 12))
    send(names, numbered("Late", 0, 1))
    for queue_id in (0, 0, 1):
        send_without_key(broker.address, MessageQueue("Bare", "broker-a", queue_id))
    refuse_until_dead(names, "Late", 2)
    tandemq_broker.wait_until(lambda: ("%DLQ%g", 0) in broker.node.store.queues)
    run("pipeline", [str(project), "--store", str(broker.store)], "")
    spec_text = (project / "spark-pipeline.yml").read_text(encoding="utf-8")
    assert 'spark.tandemq.format: "rocketmq-log"' in spec_text
    (options_text,) = re.findall(r"^  spark\.tandemq\.options: (.*)$", spec_text, re.MULTILINE)
    options = json.loads(json.loads(options_text))
    rows = spark.read.format("rocketmq-log").options(**options, details="true").load()
    (seventh,) = rows.where("topic = 'Orders' and body = cast('7' as binary)").collect()
    broker.stop()
    with (broker.store / "commitlog" / "0".zfill(20)).open("r+b") as file:
        file.seek(seventh.commitLogOffset + HEAD_V4.size)
        file.write(b"8")
    shorten(project)
    run("pipeline", [str(project), "--run"], "")
    (damaged,) = [row for row in table(project, "bronze") if row["verdict"] is not None]
    assert damaged["commitLogOffset"] == seventh.commitLogOffset
    assert len(damaged["body"]) == damaged["size"] == seventh.size
    silver = table(project, "silver")
    assert sorted(int(row["body"]) for row in silver if row["topic"] == "Orders") == [*range(7), *range(8, 12)]
    assert Counter(row["topic"] for row in silver if row["topic"] != "Orders") == {
        "Late": 1,
        SCHEDULE_TOPIC: 2,
        "%RETRY%g": 2,
        "%DLQ%g": 1,
        "Bare": 3,
    }
    counts: Counter[tuple[str, str]] = Counter()
    for row in table(project, "gold_minutes"):
        for figure in ("messages", "retries", "deadLetters"):
            counts[row["topic"], figure] += row[figure]
    assert {topic: count for (topic, figure), count in counts.items() if figure == "retries" and count} == {
        "%RETRY%g": 2
    }
    assert (counts["%DLQ%g", "deadLetters"], counts["Orders", "messages"]) == (1, 11)
    first = table(project, "bronze")
    run("pipeline", [str(project), "--run", "--full-refresh"], "")
    anew = table(project, "bronze")
    assert [places(rows) for rows in (anew, table(project, "silver"))] == [places(rows) for rows in (first, silver)]
    assert max(row["arrivedAt"] for row in first) < min(row["arrivedAt"] for row in anew)


def test_project_reads_a_cluster_or_a_store_and_says_so(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    for wrong, says in (
        ([], "a new project reads a cluster or a store"),
        (["--store", str(store), "--subscribe", "x"], "a store is read completely"),
        (["--store", str(store), "--namesrv", "127.0.0.1:1"], "give one of --namesrv and --store"),
        (["--store", str(store), "--full-refresh"], "--full-refresh needs --run"),
    ):
        result = CliRunner().invoke(pipeline, [str(tmp_path / "other"), *wrong])
        assert result.exit_code == 2
        assert says in result.output


def test_options_of_a_new_project_are_refused_for_an_existing_one_and_rank_before_the_environment(
    tmp_path: Path,
) -> None:
    store, project = tmp_path / "store", tmp_path / "project"
    store.mkdir()
    runner = CliRunner(env={"TANDEMQ_NAMESRV": "127.0.0.1:1"})
    written = runner.invoke(pipeline, [str(project), "--store", str(store)])
    assert written.exit_code == 0, written.output
    spec = project / "spark-pipeline.yml"
    before = spec.read_text()
    assert "rocketmq-log" in before
    for given in (["--namesrv", "127.0.0.1:2"], ["--subscribe", "Orders"], ["--store", str(store)]):
        refused = runner.invoke(pipeline, [str(project), "--run", *given])
        assert refused.exit_code == 2
        assert "defines the source: change it there" in refused.output
    assert spec.read_text() == before
    spec.write_text("nothing: of a pipeline\n")
    run_alone = runner.invoke(pipeline, [str(project), "--run", "--json"])
    assert json.loads(run_alone.stdout)["run"] is True
