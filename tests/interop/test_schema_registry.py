"""The blocks of docs/guides/pipeline-schemas.md with a real schema registry: Apicurio's API for Kafka's clients."""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tandemq.run.local import LocalCluster
from tests.interop.java import LOOPBACK, JavaJars, Process, free_port, java_executable
from tests.spark.kills import ROOT
from tests.spec import spec

VERSION = "2.6.13.Final"


@contextmanager
def registry(directory: Path) -> Iterator[str]:
    """Run an empty registry; yield the URL of its API for Kafka's clients."""
    (archive,) = JavaJars.resolve("registry", VERSION).glob("apicurio-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(directory, filter="data")
    (jar,) = directory.glob("*-runner.jar")
    port = free_port()
    settings = [f"-Dquarkus.http.host={LOOPBACK}", f"-Dquarkus.http.port={port}"]
    command = [java_executable(), "-Xmx256m", "-XX:TieredStopAtLevel=1", *settings, "-jar", str(jar)]
    with Process("registry", directory, command=lambda: command, ready=port) as process:
        process.start()
        yield f"http://{LOOPBACK}:{port}/apis/ccompat/v7"


@spec("P47")
def test_bodies_with_schemas_in_a_registry_are_decoded(tandemq_broker: LocalCluster, tmp_path: Path) -> None:
    (jar,) = JavaJars.resolve("registry", VERSION).glob("spark-avro*.jar")
    words = [sys.executable, "-m", "tests.spark.on_registry", str(jar), tandemq_broker.name_servers]
    with registry(tmp_path / "registry") as url:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run([*words, url], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, check=True)
    found = {one.pop("what"): one["rows"] for one in map(json.loads, done.stdout.splitlines())}
    assert (
        sorted((row["id"], row["amount"], row["note"]) for row in found["orders"])
        == [
            ("old", -7, "none"),
            ("new", 1 << 20, "gift"),
        ][::-1]
    )
    assert found["payments"] == [{"id": "p", "amount": 1 << 40}]
    assert found["visits"] == [{"page": "/home", "seconds": 1.5, "tags": ["a", "b"], "user": {"name": "ann", "age": 7}}]
