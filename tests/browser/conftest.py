"""One browser per run, one cluster and one console per file."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tandemq.config.samples import ON_ANY_DISK
from tandemq.coordination.registry.records import Mode
from tandemq.run.children import ChildCluster
from tests.browser.served import ServedConsole, Visitor, chromium
from tests.unit.console.lakes import write_checks, write_lake, write_project

SMALL: dict[str, str | int | float | bool] = {
    "mappedFileSizeCommitLog": 16 << 20,
    "traceTopicEnable": True,
    "mappedFileSizeConsumeQueue": 60_000,
    **ON_ANY_DISK,
}
NewVisitor = Callable[..., Visitor]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=chromium(),
            args=["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"],
        )
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(directory: Path) -> Iterator[ChildCluster]:
    """Two groups of a master and a slave, mode elect."""
    with ChildCluster(directory, groups=2, slaves=1, mode=Mode.ELECT, settings=SMALL) as running:
        yield running


@pytest.fixture(scope="module")
def console(cluster: ChildCluster, directory: Path) -> Iterator[ServedConsole]:
    """A console that publishes, with files of a pipeline; viewers see no bodies."""
    pipeline = ["--lake", str(write_lake(directory / "lake")), "--report", str(directory / "report.html")]
    pipeline += ["--project", str(write_project(directory / "shop"))]
    pipeline += [word for path in write_checks(directory) for word in ("--job-state", str(path))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TANDEMQ_SECRET_FILE", cluster.secret_file)
        with ServedConsole(
            directory, cluster.name_servers, "--publish", "--registry", cluster.registry, "--hide-bodies", *pipeline
        ) as served:
            yield served


@pytest.fixture
def new_visitor(browser: Browser, console: ServedConsole) -> Iterator[NewVisitor]:
    """Make browsers with no session; at the end none may have reported anything."""
    made: list[Visitor] = []

    def make(**options: object) -> Visitor:
        made.append(Visitor(browser, console, **options))
        return made[-1]

    yield make
    for visitor in made:
        visitor.close()
