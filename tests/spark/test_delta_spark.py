"""Delta's own library for Spark reads our tables, and our jobs read its tables, or refuse them in one line.

The library is made for Spark 4.2 at most, which `make soak` installs into build/: with 4.3 it reads no table.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.java import JavaJars
from tests.spark.installed import ROOT, installed
from tests.spark.logs import LogWriter
from tests.spark.on_delta import SLAVE
from tests.spec import spec

DELTA = "4.4.0"
MESSAGES = 1_500


@spec("P36")
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_tables_are_exchanged_with_the_library_of_delta(tmp_path: Path) -> None:
    jars = sorted(JavaJars.resolve("delta", DELTA).glob("delta-*.jar"))
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(MESSAGES)
    words = [sys.executable, "-m", "tests.spark.on_delta", ",".join(map(str, jars)), str(writer.store), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": f"{installed('4.2')}:{ROOT}"}
    done = subprocess.run(words, env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    print(done.stdout.decode())
    assert done.returncode == 0
    results = {one.pop("what"): one for one in map(json.loads, done.stdout.splitlines())}

    assert results["lake"].pop("files") >= 2
    assert results["lake"] == {"same": [True] * 3, "newest": True, "rows": MESSAGES - 100}
    assert results["upserted"] == {"same": True, "rows": 4}
    assert results["theirs"] == {
        "counted": {"T0": MESSAGES // 2, "T1": MESSAGES // 2},
        "compacted": {"filesAdded": 1, "filesRemoved": 3},
        "deleted": 3,
        "after": MESSAGES,
    }
    logs = sorted((writer.store / "commitlog").iterdir())
    assert len(logs) > 1
    for log in logs:
        assert (tmp_path / SLAVE / "commitlog" / log.name).read_bytes() == log.read_bytes().ljust(
            writer.segment_bytes, b"\0"
        )

    assert results["vectors"] == {"files": 1}
    assert len(results["refused"]["errors"]) == 10
    for error in results["refused"]["errors"]:
        assert "has deletion vectors" in error
        assert "REORG TABLE delta.`" in error
    assert results["purged"] == {"left": {"T0": MESSAGES // 2 - 20, "T1": MESSAGES // 2}, "compacted": 0, "held": 1}
    assert len(results["mapped"]["errors"]) == 8
    for error in results["mapped"]["errors"]:
        assert "maps column names (delta.columnMapping.mode), which is not supported" in error
    assert len(results["partitioned"]["errors"]) == 8
    for error in results["partitioned"]["errors"]:
        assert "is partitioned by topic, queueId; lakes of messages are not" in error
        assert "write it without partitions" in error
    for table in ("groups", "renamed"):
        assert results[f"upserted {table}"] == {"topics": ["T0"] * 2 + ["T1"] * 2 + ["T9"], "last": 3}
