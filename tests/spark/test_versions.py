"""The formats on older versions of PySpark, really: `make soak` installs them beside ours, into build/."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandemq.run.children import ChildCluster
from tests.spark.logs import LogWriter
from tests.spark.messages import make_topic, numbered, send

ROOT = Path(__file__).resolve().parents[2]


def installed(version: str) -> Path:
    """A directory with the newest PySpark of a version and nothing else; the rest is that of the environment."""
    place = ROOT / "build" / f"pyspark-{version}"
    ready = place / ".ready"
    if not ready.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps", "--no-build-isolation"]
        subprocess.run([*command, "--target", str(place), f"pyspark=={version}.*"], check=True)
        ready.touch()
    return place


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", ["4.0", "4.1"])
def test_formats_keep_their_promises_on_an_older_spark(version: str, tmp_path: Path) -> None:
    place = installed(version)
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(1_500)
    with ChildCluster(tmp_path / "cluster", groups=2) as cluster:
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
    told = {one.pop("what"): one for one in map(json.loads, done.stdout.splitlines())}
    assert told["spark"]["version"].startswith(f"{version}.")
    # PySpark 4.0 hands sources no conditions; 4.1 does, and there are fewer messages than tasks were asked for.
    assert told["narrowed"] == {"rows": 20, "tasks": {"4.0": 40, "4.1": 20}[version]}
    assert told["batch"] == {"rows": 1_000, "log": 1_500, "log_some": 750}
    for what, count, most in (("stream", 1_000, 90), ("log", 1_500, 130)):
        assert told[what]["died"]
        assert told[what]["exactly"]
        assert sum(told[what]["sizes"]) == count
        assert max(told[what]["sizes"]) <= most
    assert told["now"] == {"seen": [400, 800, 1_000, 1_000], "exactly": True}
    assert told["wrapper"] == {"refused": True, "more": 0}
    assert told["sink"] == {"rows": 2_000, "numbers": 1_000}
