"""Jobs on a standalone cluster of two workers, one of whose executors is killed with SIGKILL."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import pyarrow.dataset as ds
import pytest

from tandemq.run.local import LocalCluster
from tandemq.spark.lake.delta import DeltaLake
from tests.spark.logs import LogWriter
from tests.spark.messages import make_topic
from tests.spark.on_cluster import SEGMENT_BYTES, TOPIC
from tests.spark.standalone import StandaloneCluster
from tests.spec import spec

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 4_000
ENTRY = Struct(">qiq")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        yield cluster


@spec("P10")
@pytest.mark.timeout(1_200)
@pytest.mark.slow
def test_jobs_on_a_cluster_survive_a_killed_executor(
    cluster: StandaloneCluster, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    writer, replica = (LogWriter(tmp_path / name / "broker-a", SEGMENT_BYTES) for name in ("master", "slave"))
    writer.write_many(RECORDS)
    replica.write_many(RECORDS)
    replica.flip(replica.made[1_234].log_offset + 90)
    lake = tmp_path / "lake"
    (tmp_path / "made").mkdir()
    make_topic(tandemq_broker.name_servers, TOPIC)
    words = [
        sys.executable,
        "-m",
        "tests.spark.on_cluster",
        cluster.address,
        str(writer.store),
        str(replica.store),
        str(lake),
        str(tmp_path / "made"),
        tandemq_broker.name_servers,
    ]
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    with subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        lines: list[dict[str, Any]] = [json.loads(driver.stdout.readline())]
        assert lines[0]["what"] == "commit"
        assert lines[0]["rows"] < RECORDS
        victim = cluster.executors()[0]
        os.kill(victim, signal.SIGKILL)
        cluster.wait_for_lost_executor()
        lines += [json.loads(line) for line in driver.stdout]
    assert driver.returncode == 0
    assert victim not in cluster.executors()
    commits = [one for one in lines if one["what"] == "commit"]
    assert len(commits) > 5
    archived, audited, scrubbed, *others = lines[len(commits) :]
    assert archived == {"what": "archived", "rows": RECORDS, "commits": len(commits)}
    offsets = ds.dataset(DeltaLake(lake).data_files()).to_table(["commitLogOffset"]).column(0).to_pylist()
    assert sorted(offsets) == [made.log_offset for made in writer.made]
    assert audited["counts"] == {"different": 0, "corrupt": 1, "missing": 0, "extra": 0}
    assert 0 < audited["bytes_equal"] < audited["end"]
    assert scrubbed == {"what": "scrubbed", "records": RECORDS - 1, "damages": [replica.made[1_234].log_offset]}
    counted = {"what": "counted", "messages": {"T0": RECORDS // 2, "T1": RECORDS // 2}}
    assert others == [
        counted,
        counted,
        {"what": "rebuilt", "queues": 4, "entries": RECORDS},
        {"what": "replayed", "rows": RECORDS, "end": writer.end},
        {"what": "sent", "rows": RECORDS // 2},
    ]
    ends = [tandemq_broker.broker().node.store.queues[TOPIC, number].max_offset for number in range(4)]
    assert sum(ends) == RECORDS // 2
    assert f"diverges at {replica.made[1_234].log_offset:,}" in (tmp_path / "made" / "report.html").read_text()
    check_queues(tmp_path / "made" / "rebuilt" / "consumequeue", writer)
    laid = [path.read_bytes() for path in sorted((tmp_path / "made" / "store" / "commitlog").iterdir())]
    assert (
        b"".join(laid)[: writer.end]
        == b"".join(path.read_bytes() for path in sorted((writer.store / "commitlog").iterdir()))[: writer.end]
    )


def check_queues(queues: Path, writer: LogWriter) -> None:
    """Check that the entries of each queue refer to its messages, in order."""
    for topic in ("T0", "T1"):
        for queue in sorted((queues / topic).iterdir()):
            raw = b"".join(path.read_bytes() for path in sorted(queue.iterdir()))
            wanted = [made for made in writer.made if (made.topic, made.queue_id) == (topic, int(queue.name))]
            entries = [ENTRY.unpack_from(raw, at)[:2] for at in range(0, 20 * len(wanted), 20)]
            assert entries == [(made.log_offset, made.size) for made in wanted]
