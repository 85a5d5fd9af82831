"""Foreseeable errors of `tandemq spark`: one line each, with a hint."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from tandemq.cli import main
from tandemq.errors import ConfigError, LocalError, NetworkError, OffsetGone, TandemError
from tandemq.spark.jobs.archive import position_mark
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.runtime.causes import SET_PYTHON, parse_error
from tests.spark.logs import LogWriter
from tests.spec import spec

OF_A_WORKER = """[PYTHON_DATA_SOURCE_ERROR] Failed to initialize the writer: Traceback (most recent call last):
  File "tandemq/spark/runtime/client_pool.py", line 76, in tell
    raise NetworkError(
tandemq.errors.NetworkError: no answer within 30000 ms: 127.0.0.1:1 cannot be reached (is it up?)
 SQLSTATE: 38000"""
OF_PYTHON = """An error occurred while calling o9.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Lost task 0.0: Traceback (most recent call last):
  File "tasks.py", line 98, in _work
OSError: [Errno 28] No space left on device
\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)"""
OF_THE_JVM = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'local[zz]'
\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:1)"""

UNKNOWN_FORMAT = (
    "Spark does not know the format rocketmq-log "
    "(call tandemq.spark.register(spark), or set PYSPARK_PYTHON to a Python with tandemq[spark])"
)


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["spark", *map(str, words)])


def line_of(result: Result, code: int) -> str:
    """Return the single line of the error."""
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if not line.startswith("Java ")]
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        (OF_A_WORKER, NetworkError, "no answer within 30000 ms: 127.0.0.1:1 cannot be reached (is it up?)"),
        (OF_PYTHON, LocalError, "Spark: OSError: [Errno 28] No space left on device"),
        (OF_THE_JVM, LocalError, "Spark: org.apache.spark.SparkException: Could not parse Master URL: 'local[zz]'"),
        (
            ": java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.",
            LocalError,
            "Spark was stopped (is the cluster named by --master up? See the reason above)",
        ),
        (
            "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.",
            LocalError,
            "Spark's JVM did not start (see its output above, and check --master and --conf)",
        ),
        (
            'java.io.IOException: Cannot run program "/opt/none/python": error=2, No such file or directory',
            ConfigError,
            f"Spark cannot start the Python /opt/none/python ({SET_PYTHON})",
        ),
        (
            "ModuleNotFoundError: No module named 'tandemq.spark'",
            ConfigError,
            f"the Python of Spark's workers has no module tandemq.spark ({SET_PYTHON})",
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: 3.11, PySpark",
            ConfigError,
            "Spark's workers run Python 3.12, the driver 3.11 (set PYSPARK_PYTHON to one of 3.11 on every machine)",
        ),
        (
            "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: rocketmq-log. Make sure",
            ConfigError,
            UNKNOWN_FORMAT,
        ),
        (
            "ModuleNotFoundError: No module named 'mine'",
            LocalError,
            "Spark: ModuleNotFoundError: No module named 'mine'",
        ),
        ("tandemq.errors.OffsetGone: gone (so)", OffsetGone, "gone (so)"),
        ("tandemq.errors.NoSuch: gone", LocalError, "gone"),
        ("py4j.reflection.TypeUtil does not exist in the JVM", LocalError, "Spark's JVM has ended"),
        ("", LocalError, "Spark: no reason given"),
    ],
)
def test_error_of_a_worker_is_raised_again_and_others_keep_their_last_line(
    text: str, kind: type[TandemError], says: str
) -> None:
    found = parse_error(text)
    assert type(found) is kind
    assert str(found) == says


@spec("P15")
def test_archive_of_deleted_records_names_the_option_to_continue(spark: SparkSession, tmp_path: Path) -> None:
    assert spark.version
    writer, lake = LogWriter(tmp_path / "broker-a"), tmp_path / "lake"
    writer.write_many(600)
    DeltaLake(lake, create=True).commit([], {position_mark("broker-a"): writer.made[5].log_offset})
    writer.path(0).unlink()
    line = line_of(run("archive", writer.store, lake), 1)
    assert line.startswith(f"tandemq: {writer.store}: log offset {writer.made[5].log_offset} is gone")
    assert line.endswith("(--allow-loss continues without them)")
    assert run("archive", writer.store, lake, "--allow-loss").exit_code == 0
    assert DeltaLake(lake).rows() == sum(made.log_offset >= writer.segment_bytes for made in writer.made)


@spec("P15")
def test_malformed_condition_and_malformed_master_are_named(spark: SparkSession, tmp_path: Path) -> None:
    assert spark.version
    writer, lake = LogWriter(tmp_path / "broker-a"), tmp_path / "lake"
    writer.write_many(10)
    assert run("archive", writer.store, lake).exit_code == 0
    line = line_of(run("replay", lake, "--to-topic", "T", "--where", "colour = 1"), 1)
    assert "colour" in line
    assert "Spark knows no master 'nonsense'" in line_of(run("scrub", writer.store, "--master", "nonsense"), 2)


@spec("P15")
@pytest.mark.parametrize("name", ["pyspark", "deltalake"])
def test_every_command_says_how_to_install_its_dependencies(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in list(sys.modules):
        if module == name or module.startswith((f"{name}.", "tandemq.spark.")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    here = tmp_path
    for words in (
        ["archive", here, here / "lake"],
        ["compact", here],
        ["vacuum", here],
        ["scrub", here],
        ["audit", here, here],
        ["rebuild", here, here / "out"],
        ["stats", here],
        ["report", here, here / "page"],
        ["replay", here, "--to-topic", "T"],
        ["pipeline", here / "project", "--store", here],
    ):
        line = line_of(run(*words), 2)
        assert line.startswith("tandemq: Spark is not installed"), words
        assert line.endswith("(pip install 'tandemq[spark]')"), words
