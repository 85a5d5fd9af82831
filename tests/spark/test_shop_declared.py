"""The example project as a declarative pipeline: exact tables after kills."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tandemq.console.query_files import read_project
from tandemq.run.local import LocalCluster
from tandemq.spark.pipelines.orders.produce import Event
from tandemq.spark.pipelines.projects import write_example
from tests.blackbox.programs import wait_until
from tests.spark.messages import make_topic
from tests.spark.shop import FIELDS, assert_equal, declared_tables, expected
from tests.spark.short import SHORT
from tests.spark.test_shop import SECONDS_MAX, send_hour
from tests.spec import spec

MOMENTS = ("bronze/*/offsets/1", "gold_payments/*/offsets/0"), ("silver_orders/*/offsets/2",)
"""Files of checkpoints, by hour: the run is ended as soon as each exists, in the first hour by SIGKILL."""


def processes(home: Path) -> list[int]:
    """Return the processes that Spark started for a project: JVMs and the program that defines the pipeline."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if bytes(home / "conf") in path.read_bytes() or bytes(home / "spark-pipeline.yml") in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def run(home: Path, kill_when: str = "", number: signal.Signals = signal.SIGKILL) -> bool:
    """Run the project; kill it, or send a signal to the command, as soon as a file of its checkpoints exists.

    Returns whether it was ended like that.
    """
    words = [sys.executable, "-m", "tandemq", "spark", "pipeline", str(home), "--run"]
    with (home / "log").open("ab") as log:
        process = subprocess.Popen(words, start_new_session=True, stdout=log, stderr=log)
    try:
        if kill_when:
            files = home / "storage"
            wait_until(
                lambda: any(files.glob(f"_checkpoints/**/{kill_when}")) or process.poll() is not None,
                f"{kill_when} exists",
                seconds=SECONDS_MAX,
            )
        else:
            process.wait(SECONDS_MAX)
        killed = process.poll() is None
        if killed and number is not signal.SIGKILL:
            process.send_signal(number)
            assert process.wait(SECONDS_MAX) == 128 + number
            assert not processes(home), "the run continues"
    finally:
        process.kill()
        code = process.wait()
        for pid in processes(home):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not processes(home), "all processes of the run have ended", seconds=SECONDS_MAX)
    assert killed or code == 0, (home / "log").read_text(encoding="utf-8")[-5_000:]
    return killed


@spec("P18", "C11")
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_declared_tables_are_exact_after_kills_in_every_layer_and_ctrl_c(
    tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names, home = tandemq_broker.name_servers, tmp_path / "shop"
    for topic in FIELDS:
        make_topic(names, topic, 2)
    write_example(home, "orders", names)
    conf = home / "conf" / "spark-defaults.conf"
    settings = {name: value for name, value in SHORT.items() if "daemon" not in name}
    conf.write_text(conf.read_text() + "".join(f"{name} {value}\n" for name, value in settings.items()))
    hours: list[list[Event]] = []
    kills = 0
    for hour, moments in enumerate(MOMENTS):
        hours.append(send_hour(names, hour))
        for moment in moments:
            kills += run(home, moment, signal.SIGINT if hour else signal.SIGKILL)
        run(home)
        assert_equal(declared_tables(home), expected(hours).with_final_minutes())
    assert kills >= 2
    queries = {one.name: one for one in read_project(home).queries}
    gold = {f"gold_{name}" for name in ("minutes", "payments", "unpaid")}
    assert set(queries) == {"bronze", "silver_orders", "silver_payments", *gold}
    assert [one.error for one in queries.values()] == [""] * 6
    assert sum(queries["bronze"].history) == sum(map(len, hours))
    mark_ms = int(expected(hours).watermark.timestamp() * 1000)
    assert {queries[name].watermark_ms for name in gold} == {mark_ms}
