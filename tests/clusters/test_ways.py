"""Ways to run a program on a cluster, with the commands of docs/guides/pipeline-clusters.md."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tandemq.run.local import LocalCluster
from tests.blackbox.programs import wait_until
from tests.clusters.conftest import RECORDS
from tests.clusters.nodes import START_S, Nodes, site_packages
from tests.clusters.page import blocks, replaced
from tests.spark import on_connect
from tests.spark.logs import LogWriter
from tests.spark.test_connect import check_results, make_topics
from tests.spec import spec

MASTER = "spark://master:7077"
STORE = "/var/lib/tandemq/broker-a"


def test_workers_have_environments_of_their_own(nodes: Nodes) -> None:
    where = "python3 -c 'import tandemq; print(tandemq.__file__)'"
    for environment in (nodes.env_a, nodes.env_b):
        found = nodes.check(where, activated=environment).strip()
        assert Path(found).is_relative_to(site_packages(environment))
    assert "No module named 'tandemq'" in nodes.run(where, activated=nodes.env_c).stderr


def test_submitted_program_runs_on_the_workers(nodes: Nodes, program: Path, writer: LogWriter) -> None:
    (command,) = blocks("spark-submit")[:1]
    text = replaced(command, {MASTER: nodes.address, STORE: writer.store})
    assert nodes.check(text, activated=nodes.env_a, cwd=program.parent).split()[-1] == str(RECORDS)


def test_cluster_mode_is_refused_by_spark_with_the_documented_message(
    nodes: Nodes, program: Path, writer: LogWriter
) -> None:
    command = blocks("spark-submit")[1]
    done = nodes.run(
        replaced(command, {MASTER: nodes.address, STORE: writer.store}), activated=nodes.env_a, cwd=program.parent
    )
    assert done.returncode != 0
    (message,) = blocks("spark-submit", "text")
    assert message.strip() in done.stderr, done.stderr[-6_000:]


@pytest.mark.slow
def test_modules_are_shipped_to_workers_that_lack_them(nodes: Nodes, program: Path, writer: LogWriter) -> None:
    without, fetch, ship = blocks("Modules in an archive")
    text = replaced(fetch + ship, {MASTER: nodes.address, STORE: writer.store})
    done = nodes.run(
        replaced(without, {MASTER: nodes.address, STORE: writer.store}),
        activated=nodes.env_a,
        cwd=program.parent,
        PYSPARK_PYTHON=str(nodes.env_c / "bin" / "python3"),
        PYSPARK_DRIVER_PYTHON=str(nodes.env_a / "bin" / "python3"),
    )
    assert done.returncode != 0
    (message,) = blocks("Modules in an archive", "text")
    assert message.strip() in done.stdout, done.stdout[-6_000:]  # Spark joins both outputs of the program
    shipped = nodes.check(
        text,
        activated=nodes.env_a,
        cwd=program.parent,
        PYSPARK_PYTHON=str(nodes.env_c / "bin" / "python3"),
    )
    assert shipped.split()[-1] == str(RECORDS)


@pytest.mark.slow
def test_environment_is_shipped_to_workers(nodes: Nodes, program: Path, writer: LogWriter, tmp_path: Path) -> None:
    make, run = blocks("An environment in an archive")
    (tmp_path / program.name).write_bytes(program.read_bytes())
    nodes.check(replaced(make, {"install . ": "install tandemq "}), activated=None, cwd=tmp_path)  # the wheel
    text = replaced(run, {MASTER: nodes.address, STORE: writer.store})
    assert nodes.check(text, activated=nodes.env_a, cwd=tmp_path).split()[-1] == str(RECORDS)
    unpacked = {path.parent.name for path in nodes.directory.glob("work-*/app-*/*/environment")}
    assert unpacked, "no executor has unpacked the archive"


@contextmanager
def connect_server(nodes: Nodes) -> Iterator[str]:
    """Run the page's server; yield its address."""
    log = nodes.directory / "connect.log"
    port = "spark.connect.grpc.binding.port=15002"
    text = replaced(blocks("Spark Connect")[0], {MASTER: nodes.address, port: "spark.connect.grpc.binding.port=0"})
    server = nodes.start(text, activated=nodes.env_a, log=log, SPARK_DAEMON_MEMORY="768m")
    started = r"Spark Connect server started at: \S+?:(\d+)"
    wait_until(
        lambda: re.search(started, log.read_text()) is not None or server.poll() is not None,
        "the server has started",
        seconds=START_S,
    )
    found = re.search(started, log.read_text())
    assert found is not None, log.read_text()[-6_000:]
    yield f"127.0.0.1:{found[1]}"
    assert server.poll() is None
    nodes.stop(server)


@spec("P40")
@pytest.mark.slow
def test_connect_client_runs_the_same_program_and_streams(
    nodes: Nodes, program: Path, writer: LogWriter, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names = tandemq_broker.name_servers
    make_topics(names)
    client = tmp_path / "client.py"
    client.write_bytes(Path(on_connect.__file__).read_bytes())
    with connect_server(nodes) as address:
        text = replaced(blocks("Spark Connect")[1], {"spark-server:15002": address, STORE: writer.store})
        output = nodes.check(text, activated=nodes.env_b, cwd=program.parent, JAVA_HOME="/nowhere")
        assert output.split()[-1] == str(RECORDS)
        text = f"python3 {client} sc://{address} {names} {tmp_path / 'queries'}"
        check_results(nodes.check(text, activated=nodes.env_b, JAVA_HOME="/nowhere"), names)
