"""Jobs on a standalone cluster of two workers, one of whose executors is killed with SIGKILL."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from tandemq.spark.lake import DeltaLake
from tests.spark.logs import LogWriter
from tests.spark.standalone import StandaloneCluster
from tests.spec import spec

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 4_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        yield cluster


@spec("P10")
def test_jobs_on_a_cluster_end_rightly_though_an_executor_is_killed(cluster: StandaloneCluster, tmp_path: Path) -> None:
    writer, twin = (LogWriter(tmp_path / name / "broker-a") for name in ("master", "slave"))
    writer.write_many(RECORDS)
    twin.write_many(RECORDS)
    twin.flip(twin.made[1_234].log_offset + 90)
    lake = tmp_path / "lake"
    words = [
        sys.executable,
        "-m",
        "tests.spark.on_cluster",
        cluster.address,
        str(writer.store),
        str(twin.store),
        str(lake),
    ]
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    with subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        told: list[dict[str, Any]] = [json.loads(driver.stdout.readline())]
        assert told[0]["what"] == "commit"
        assert told[0]["rows"] < RECORDS
        victim = cluster.executors()[0]
        os.kill(victim, signal.SIGKILL)
        cluster.wait_for_lost_executor()
        told += [json.loads(line) for line in driver.stdout]
    assert driver.returncode == 0
    assert victim not in cluster.executors()
    commits = [one for one in told if one["what"] == "commit"]
    assert len(commits) > 5
    archived, audited = told[-2:]
    assert archived == {"what": "archived", "rows": RECORDS, "commits": len(commits)}
    offsets = ds.dataset(DeltaLake(lake).data_files()).to_table(["commitLogOffset"]).column(0).to_pylist()
    assert sorted(offsets) == [made.log_offset for made in writer.made]
    assert audited["counts"] == {"different": 0, "corrupt": 1, "missing": 0, "extra": 0}
    assert 0 < audited["bytes_equal"] < audited["end"]
