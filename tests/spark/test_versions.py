"""The formats on older versions of PySpark, which `make soak` installs into build/."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandemq.config.samples import ON_ANY_DISK
from tandemq.run.children import ChildCluster
from tests.spark.installed import ROOT, installed
from tests.spark.logs import LogWriter
from tests.spark.messages import make_topic, numbered, send


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", ["4.0", "4.1", "4.2"])
def test_formats_work_on_older_spark_versions(version: str, tmp_path: Path) -> None:
    has_admission_control = version == "4.2"
    place = installed(version)
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(1_500)
    with ChildCluster(tmp_path / "cluster", groups=2, settings=ON_ANY_DISK) as cluster:
        for topic in ("Orders", "Copies"):
            make_topic(cluster.name_servers, topic)
        send(cluster.name_servers, numbered("Orders", 0, 1_000))
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.on_version", cluster.name_servers, writer.store, tmp_path / "query"],
            env=os.environ | {"PYTHONPATH": f"{place}:{ROOT}"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            check=True,
        )
    print(done.stdout.decode())
    results = {one.pop("what"): one for one in map(json.loads, done.stdout.splitlines())}
    assert results["spark"]["version"].startswith(f"{version}.")
    # PySpark 4.0 has no filter pushdown; newer ones have, and there are fewer messages than requested tasks.
    assert results["narrowed"] == {"rows": 20, "tasks": 40 if version == "4.0" else 20}
    assert results["batch"] == {"rows": 1_000, "log": 1_500, "log_some": 750}
    for what, count, most in (("stream", 1_000, 90), ("log", 1_500, 130)):
        assert results[what]["died"]
        assert results[what]["exactly"]
        assert sum(results[what]["sizes"]) == count
        assert max(results[what]["sizes"]) <= most
    # With admission control Spark itself makes as many micro-batches as the limit needs, and uses no wrapper.
    seen = [1_000] * 4 if has_admission_control else [400, 800, 1_000, 1_000]
    assert results["now"] == {"seen": seen, "exactly": True}
    assert results["wrapper"] == {"refused": not has_admission_control, "more": 0}
    assert results["sink"] == {"rows": 2_000, "numbers": 1_000}
