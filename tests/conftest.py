"""What every test gets: a Hypothesis profile that does not depend on the machine, and nothing left open unnoticed."""

import gc
import time
from collections.abc import Callable, Iterator

import hypothesis
import pytest

# A deadline per example measures the machine, not the code; a failing example is printed with what reproduces it.
hypothesis.settings.register_profile("commit", deadline=None, print_blob=True, database=None)
hypothesis.settings.load_profile("commit")

Tell = Callable[[str], None]


@pytest.fixture
def tell(capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Tell:
    """Says a line on the terminal at once, with the seconds since the test began: for tests that take minutes."""
    began = time.monotonic()

    def say(line: str) -> None:
        with capfd.disabled():
            print(f"\n{request.node.name} {time.monotonic() - began:.0f} s: {line}", end="", flush=True)

    return say


@pytest.fixture(autouse=True, scope="module")
def _leave_nothing_open() -> Iterator[None]:
    """Collect garbage after each file, so that a socket or file left open is reported there and not somewhere later."""
    yield
    gc.collect()
