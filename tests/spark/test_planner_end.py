"""End of the process that plans a stream: without stack traces if its query has ended, with them if it failed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.logs import LogWriter

RUNNER = """
import pickle
import sys

from tandemq.spark.sources.log.source import RocketMQLogDataSource

# As PySpark's python_streaming_source_runner.main does.
source = pickle.loads(pickle.dumps(RocketMQLogDataSource({"path": sys.argv[1]})))
try:
    reader = source.streamReader(source.schema())
    try:
        raise {error}
    finally:
        reader.stop()
except BaseException:
    sys.stdout.close()
    raise
"""


@pytest.mark.parametrize(
    ("error", "code"), [("EOFError", 0), ("ConnectionResetError", 0), ("ValueError('wrong offset')", 1)]
)
def test_planner_shows_errors_of_the_query_but_not_its_end(tmp_path: Path, error: str, code: int) -> None:
    LogWriter(tmp_path / "broker-a").write_many(1)
    script = tmp_path / "runner.py"
    script.write_text(RUNNER.replace("{error}", error))
    words = [sys.executable, str(script), str(tmp_path / "broker-a")]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, "Traceback" in ended.stderr) == (code, bool(code)), ended.stderr
