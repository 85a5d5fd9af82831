"""What every test gets: a Hypothesis profile that does not depend on the machine, and nothing left open unnoticed.

A run with `--durations-to` writes to a file how long the tests of each directory and each test took, the longest first;
one that selects no tests by name also leaves its outcome beside it, for tools/tested.py.
"""

import functools
import gc
import itertools
import json
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# A deadline per example measures the machine, not the code; a failing example is printed with what reproduces it.
hypothesis.settings.register_profile("commit", deadline=None, print_blob=True, database=None)
hypothesis.settings.load_profile("commit")


# Some tests press Ctrl-C. What a shell starts in the background ignores that, and so would all that is started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


BEGUN = time.monotonic()
ROOT = Path(__file__).parent
OF_SYSTEMS = tuple(
    ROOT / name for name in ("spark", "blackbox", "interop", "browser", "clusters", "packaging", "versions")
)
"""Directories whose tests start processes."""
LONGEST = tuple(
    ROOT / name
    for name in (
        "spark",
        "blackbox",
        "interop/test_promoted_slaves.py",
        "interop/test_mqadmin_table.py",
        "interop/test_spark.py",
    )
)
"""Directories and files whose tests take longest."""


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark the tests of processes and of Spark, and let a worker begin with each group of the longest ones.

    So none of these is left for the end, where it would run alone, and only one worker starts and warms up a JVM for
    Spark. Each worker begins with its part of the list; all have one length.
    """
    for item in items:
        if item.path.parent == ROOT or _place(item.path, OF_SYSTEMS) is not None:
            item.add_marker(pytest.mark.system)
    yield  # for the selection by markers
    part = len(items) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    others = [item for item in items if _place(item.path, LONGEST) is None]
    ordered: list[pytest.Item] = []
    for place in LONGEST:
        group = [item for item in items if _place(item.path, LONGEST) == place]
        rest = max(0, part - len(group)) if group else 0
        ordered += group + others[:rest]
        del others[:rest]
    items[:] = ordered + others


@functools.cache
def _place(path: Path, places: tuple[Path, ...]) -> Path | None:
    return next((place for place in places if path.is_relative_to(place)), None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep modules and tests out of garbage collection: a quarter of the time here, and 0.1 s after each file."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the transcripts of scripts again")
    parser.addoption("--durations-to", type=Path, metavar="FILE", help="write the seconds of directories and tests")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    path: Path | None = config.getoption("--durations-to")
    if path is None:
        return
    places, tests = defaultdict[str, float](float), defaultdict[str, float](float)
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            tests[report.nodeid] += report.duration
            places[report.nodeid.partition("::")[0].rpartition("/")[0]] += report.duration
    lines = [
        f"{seconds:9.2f} {name}\n"
        for found in (places, tests)
        for name, seconds in sorted(found.items(), key=lambda item: -item[1])
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")
    terminalreporter.write_line(f"seconds of all tests: {path}")
    if not config.option.keyword:
        count = {name: len(terminalreporter.getreports(name)) for name in ("passed", "failed", "error")}
        outcome = {
            "passed": count["passed"],
            "failed": count["failed"] + count["error"],
            "seconds": round(time.monotonic() - BEGUN),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }
        path.with_suffix(".json").write_text(json.dumps(outcome), encoding="utf-8")


@pytest.fixture
def rewrites(request: pytest.FixtureRequest) -> bool:
    """Whether the transcripts of scripts are written again; read the diff."""
    return bool(request.config.getoption("--rewrite"))


@pytest.fixture(autouse=True, scope="module")
def _leave_nothing_open() -> Iterator[None]:
    """Collect garbage after each file, so that a socket or file left open is reported there and not somewhere later."""
    yield
    gc.collect()


_starts: list[str] = []
"""Processes started since the present test began."""


def _recorded(start: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(start)
    def record(*arguments: Any, **named: Any) -> Any:
        _starts.append(str(named.get("args", arguments[1] if len(arguments) > 1 else arguments[0])))
        return start(*arguments, **named)

    return record


subprocess.Popen.__init__ = _recorded(subprocess.Popen.__init__)  # type: ignore[method-assign]
BaseProcess.start = _recorded(BaseProcess.start)  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    _starts.clear()
    return (yield)


@pytest.fixture(autouse=True)
def _start_processes_only_if_marked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that starts a process and would be part of `make test`."""
    yield
    excluded = any(request.node.get_closest_marker(name) for name in ("system", "services", "slow"))
    if _starts and not excluded:
        pytest.fail(f"a test without the marker `system` started {_starts}")
