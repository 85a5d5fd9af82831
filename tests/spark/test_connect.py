"""Streams of a client of Spark Connect, with a server on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tandemq.run.local import LocalCluster
from tests.spark import on_connect
from tests.spark.installed import ROOT
from tests.spark.messages import make_topic, numbered, received, send, unique_numbers
from tests.spark.short import SHORT
from tests.spec import spec

MESSAGES = 500


def make_topics(name_servers: str) -> None:
    """Create the topics of the program, and send its messages."""
    for topic in ("Orders", "Streamed", "Named", "Batched"):
        make_topic(name_servers, topic)
    send(name_servers, numbered("Orders", 0, MESSAGES))


def check_results(output: str, name_servers: str) -> None:
    """Check what the program printed, and what is in its topics."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"what"')]
    found: dict[str, Any] = {line.pop("what"): line for line in lines}
    copied = found.pop("copied")
    assert copied["stopped"]
    assert max(copied["sizes"]) == on_connect.PER_BATCH
    batches = found.pop("batches")["count"]
    assert batches >= MESSAGES / on_connect.PER_BATCH
    assert found == {
        "session": {"is_remote": True},
        "tables": {"saved": MESSAGES, "named": MESSAGES + 5},
        "error": {"is_ours": True},
        "progress": {"some": True, "lag": 0},
    }
    numbers = list(range(MESSAGES))
    assert sorted(unique_numbers(name_servers, "Streamed", MESSAGES)) == numbers  # a stopped batch is sent again
    batched = received(name_servers, "Batched", MESSAGES)
    assert sorted(int(message.body) for message in batched) == numbers
    assert len({message.tags for message in batched}) == batches
    named = received(name_servers, "Named", MESSAGES + 5)
    assert sorted(int(message.body) for message in named if message.tags != "new") == numbers


@spec("P40")
@pytest.mark.slow
def test_client_of_spark_connect_follows_and_writes_topics(tandemq_broker: LocalCluster, tmp_path: Path) -> None:
    make_topics(tandemq_broker.name_servers)
    words = [sys.executable, on_connect.__file__, "local[2]", tandemq_broker.name_servers, str(tmp_path / "queries")]
    (tmp_path / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in SHORT.items()))
    environment = os.environ | {
        # The server looks for `python3` in its path unless PYSPARK_PYTHON names another one.
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": f"{ROOT}/src:{ROOT}",
        "SPARK_CONF_DIR": str(tmp_path),
    }
    done = subprocess.run(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    check_results(done.stdout, tandemq_broker.name_servers)
