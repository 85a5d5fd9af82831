"""One Spark cluster for all tests of a run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters.nodes import Nodes
from tests.clusters.page import blocks
from tests.spark.logs import LogWriter

SECONDS_MAX = 2_400
RECORDS = 4_000
SEGMENT_BYTES = 1 << 16
"""Of the files of the log, so that it has many."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set a longer timeout for every test in this directory."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(SECONDS_MAX))


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A master and two workers, which see neither the repository nor its environment."""
    with Nodes(tmp_path_factory.mktemp("nodes")) as nodes:
        yield nodes


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> LogWriter:
    """A log that no test changes."""
    writer = LogWriter(tmp_path_factory.mktemp("stores") / "broker-a", SEGMENT_BYTES)
    writer.write_many(RECORDS)
    return writer


@pytest.fixture(scope="session")
def program(nodes: Nodes) -> Path:
    """The program of the page."""
    path = nodes.directory / "count.py"
    path.write_text(blocks("A program", "python")[0])
    return path
