"""What every test gets: a Hypothesis profile that does not depend on the machine, and nothing left open unnoticed."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# A deadline per example measures the machine, not the code; a failing example is printed with what reproduces it.
hypothesis.settings.register_profile("commit", deadline=None, print_blob=True, database=None)
hypothesis.settings.load_profile("commit")


# Some tests press Ctrl-C. What a shell starts in the background ignores that, and so would all that is started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


SLOWEST = Path(__file__).parent / "spark"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two of the processes begin with the tests of Spark, half each: they are slow, and none is left for the end.

    Each process begins with its part of the list, all parts of one length.
    """
    slow = [item for item in items if item.path.is_relative_to(SLOWEST)]
    quick = [item for item in items if not item.path.is_relative_to(SLOWEST)]
    half = len(slow) // 2
    part = len(items) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    rest = max(0, part - half)
    items[:] = slow[:half] + quick[:rest] + slow[half:] + quick[rest:]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the transcripts of stories anew")


@pytest.fixture
def rewrites(request: pytest.FixtureRequest) -> bool:
    """Whether the transcripts of stories are written anew; the diff is then read by somebody."""
    return bool(request.config.getoption("--rewrite"))


@pytest.fixture(autouse=True, scope="module")
def _leave_nothing_open() -> Iterator[None]:
    """Collect garbage after each file, so that a socket or file left open is reported there and not somewhere later."""
    yield
    gc.collect()
