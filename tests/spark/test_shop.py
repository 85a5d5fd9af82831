"""The example project in plain structured streaming: exact tables after kills, and while it follows the topics."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tandemq.console.query_files import ENDED, read_project
from tandemq.run.local import LocalCluster
from tandemq.spark.pipelines.orders import streaming
from tandemq.spark.pipelines.orders.produce import Event, make_hour, send
from tandemq.spark.pipelines.projects import write_example
from tests.blackbox.programs import wait_until
from tests.spark.messages import make_topic
from tests.spark.shop import FIELDS, Tables, are_equal, assert_equal, expected, gold, tables
from tests.spec import spec

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 600
SLOW = b"Python worker failed to connect back"
CRASHES_MAX = 5


@pytest.fixture
def names(tandemq_broker: LocalCluster) -> str:
    for topic in FIELDS:
        make_topic(tandemq_broker.name_servers, topic, 2)
    return tandemq_broker.name_servers


def send_hour(names: str, hour: int) -> list[Event]:
    events = make_hour(hour)
    asyncio.run(send(names, events))
    return events


def drive(home: Path, names: str, *when: str) -> int:
    """Run a driver, which may kill itself; returns its exit code.

    On a busy machine a driver may die because Spark gives Python workers 10 s to start. That is one more crash: the
    next driver continues.
    """
    words = [sys.executable, "-m", "tests.spark.shop_driver", str(home / "streaming.py"), names, *when]
    crashes = 0
    while True:
        done = subprocess.run(words, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE, timeout=SECONDS_MAX)
        crashes += 1
        if SLOW not in done.stderr or crashes == CRASHES_MAX:
            break
    if done.returncode not in (0, -signal.SIGKILL):
        print(done.stderr.decode(errors="replace")[-5_000:])
    return done.returncode


def run_here(spark: SparkSession, home: Path, names: str) -> None:
    """Run the project to its end in the session of the tests; it may crash as in `drive`."""
    for crash in range(CRASHES_MAX):
        try:
            streaming.run(spark, names, home)
            return
        except StreamingQueryException as error:
            if SLOW.decode() not in str(error) or crash == CRASHES_MAX - 1:
                raise


def test_data_set_has_what_the_project_must_cope_with() -> None:
    hours = [make_hour(hour) for hour in range(2)]
    found = expected(hours)
    sent = [event for hour in hours for event in hour]
    assert len(sent) - len({event.unique_key for event in sent}) > 40
    assert len([event for event in hours[1] if "-0-" in event.unique_key]) > 20
    assert len({e.unique_key for e in sent}) - sum(len(ids) for ids in found.silver.values()) > 10, "invalid messages"
    assert sum(row["orders"] for row in found.minutes) < len(found.silver["Orders"]), "too late"
    assert len(found.unpaid) > 20
    assert len(found.payments) > 100
    assert make_hour(1) == hours[1]


class Following:
    """A driver that follows the topics: one that dies because the machine is busy, as in `drive`, is started again."""

    def __init__(self, home: Path, names: str) -> None:
        self._home = home
        self._words = [sys.executable, "-m", "tests.spark.shop_driver", str(home / "streaming.py"), names, "--follow"]
        self._crashes = 0
        self._start()

    def _start(self) -> None:
        with (self._home / "log").open("wb") as log:
            self._driver = subprocess.Popen(self._words, cwd=ROOT, start_new_session=True, stdout=log, stderr=log)

    @property
    def log(self) -> str:
        return (self._home / "log").read_text(encoding="utf-8", errors="replace")

    def wait_for(self, wanted: Tables) -> None:
        """Wait until the tables are as expected. They are read after each commit of a query."""
        commits, looked = self._home / "checkpoints", -1

        def is_done() -> bool:
            nonlocal looked
            if self._driver.poll() is not None:
                self._crashes += 1
                assert SLOW.decode() in self.log and self._crashes < CRASHES_MAX, self.log[-5_000:]
                self._start()
            count = sum(1 for _ in commits.glob("*/commits/[0-9]*"))
            if count == looked:
                return False
            looked = count
            return are_equal(self._home, wanted)

        try:
            wait_until(is_done, "the tables are as expected", seconds=SECONDS_MAX)
        except AssertionError:
            assert_equal(tables(self._home), wanted)
            raise

    def end(self, number: signal.Signals) -> int:
        """Send a signal to the driver; returns its exit code."""
        self._driver.send_signal(number)
        return self._driver.wait(SECONDS_MAX)

    def close(self) -> None:
        """Kill the driver and its JVM, if they run."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._driver.pid, signal.SIGKILL)
        self._driver.wait()


@pytest.fixture
def follow() -> Iterator[Callable[[Path, str], Following]]:
    """Start drivers that follow the topics, and end them after the test."""
    with contextlib.ExitStack() as stack:

        def start(home: Path, names: str) -> Following:
            driver = Following(home, names)
            stack.callback(driver.close)
            return driver

        yield start


def check_end(driver: Following, home: Path, number: signal.Signals) -> None:
    """Stop a driver by a signal: it ends without error and without stack trace of the signal."""
    assert driver.end(number) == 0, driver.log[-5_000:]
    assert "Interrupt" not in driver.log
    assert "py4j" not in driver.log
    queries = read_project(home).queries
    assert {query.state for query in queries} == {ENDED}
    assert [query.error for query in queries] == [""] * 7


@spec("P18")
def test_tables_are_exact(spark: SparkSession, names: str, tmp_path: Path) -> None:
    home = tmp_path / "shop"
    write_example(home, "orders", names)
    hours = [send_hour(names, 0)]
    run_here(spark.newSession(), home, names)
    assert_equal(tables(home), expected(hours))


@spec("P18")
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tables_are_exact_after_a_kill_between_the_two_commits_and_follow_new_messages(
    tandemq_broker: LocalCluster, follow: Callable[[Path, str], Following], tmp_path: Path
) -> None:
    names, home = tandemq_broker.name_servers, tmp_path / "shop"
    for topic in FIELDS:
        make_topic(names, topic, 1)  # a micro-batch may begin while they are sent, so that they need their order
    write_example(home, "orders", names)
    hours = [send_hour(names, 0)]
    assert drive(home, names, "committed", "gold_minutes", "0") == -signal.SIGKILL
    before = gold(home, "minutes")
    assert before
    assert not (home / "checkpoints" / "gold_minutes" / "commits" / "0").exists()
    driver = follow(home, names)
    driver.wait_for(expected(hours))
    assert gold(home, "minutes") == before
    hours.append(send_hour(names, 1))
    driver.wait_for(expected(hours))
    check_end(driver, home, signal.SIGTERM)


@spec("P18")
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_driver_stopped_by_signals_continues_in_either_way_of_running(
    spark: SparkSession, follow: Callable[[Path, str], Following], tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names, home = tandemq_broker.name_servers, tmp_path / "shop"
    for topic in FIELDS:
        make_topic(names, topic, 1)
    write_example(home, "orders", names)
    hours: list[list[Event]] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        hours.append(send_hour(names, len(hours)))  # while it is stopped
        driver = follow(home, names)
        driver.wait_for(expected(hours))
        hours.append(send_hour(names, len(hours)))
        driver.wait_for(expected(hours))
        check_end(driver, home, number)
        hours.append(send_hour(names, len(hours)))
        run_here(spark.newSession(), home, names)
        assert_equal(tables(home), expected(hours))


MOMENTS = (
    ("exists", "checkpoints/bronze/offsets/0"),
    ("exists", "tables/bronze/_spark_metadata/1"),
    ("exists", "checkpoints/silver_orders/offsets/0"),
    ("exists", "tables/silver_payments/_spark_metadata/0"),
    ("before", "gold_unpaid", "0"),
    ("committed", "gold_payments", "0"),
    ("committed", "gold_customers", "0"),
    ("exists", "checkpoints/gold_unpaid/commits/0"),
    ("committed", "gold_unpaid", "1"),
)
"""Of the first hour; those of others have higher numbers."""


@spec("P18")
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_tables_are_exact_after_kills_at_every_layer(names: str, tmp_path: Path) -> None:
    home = tmp_path / "shop"
    write_example(home, "orders", names)
    hours: list[list[Event]] = []
    kills = 0
    for hour in range(3):
        hours.append(send_hour(names, hour))
        for when in MOMENTS if not hour else [("committed", f"gold_{one}", "0") for one in ("minutes", "unpaid")]:
            kills += drive(home, names, *when) == -signal.SIGKILL
        assert drive(home, names) == 0
        assert_equal(tables(home), expected(hours))
    assert kills >= len(MOMENTS)
