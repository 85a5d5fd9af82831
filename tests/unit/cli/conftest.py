"""Fixtures that run the command line in this process, against a cluster in this process."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tandemq.cli import main
from tandemq.run.local import LocalCluster

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """Run a command line; `code` is the expected exit code."""

    def command(*words: object, code: int = 0, typed: str | None = None) -> Result:
        result = CliRunner().invoke(main, [str(word) for word in words], input=typed)
        assert result.exit_code == code, f"{words}: exit code {result.exit_code}\n{result.output}{result.exception!r}"
        return result

    return command


@pytest.fixture
def run_json(run: Run, cluster: LocalCluster) -> Callable[..., Any]:
    """Run a command with --json against the cluster, and return its parsed output."""

    def command(*words: object, code: int = 0, typed: str | None = None) -> Any:
        return json.loads(run(*words, "--json", "--namesrv", cluster.name_servers, code=code, typed=typed).stdout)

    return command


@pytest.fixture
def run_text(run: Run, cluster: LocalCluster) -> Callable[..., str]:
    """Run a command without --json against the cluster, and return its output."""

    def command(*words: object, code: int = 0) -> str:
        return run(*words, "--namesrv", cluster.name_servers, code=code).output

    return command


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two pairs, shared by the tests of this directory; each test uses its own topics and groups."""
    with LocalCluster(
        tmp_path_factory.mktemp("cluster"), groups=2, slaves=1, settings={"recallMessageEnable": "true"}
    ) as running:
        yield running
