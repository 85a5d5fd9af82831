"""The fuzzer finds nothing in a short run, and reports an engine that judges otherwise."""

from types import ModuleType, SimpleNamespace

import pytest

from tandemq.engine import NAME, python
from tests.fuzz.fuzzer import ROUND, Different, Fuzzer
from tests.unit.engine.modules import compiled_engine


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    return compiled_engine()


def test_short_run_finds_nothing(compiled: ModuleType) -> None:
    if NAME == "python":
        return
    fuzzer = Fuzzer(compiled, 7)
    for _ in range(13):
        fuzzer.run_round()
    assert fuzzer.counts.frames == 13 * ROUND
    assert fuzzer.counts.taken > 1_000
    assert fuzzer.counts.ends > 100
    assert fuzzer.counts.large > 10
    assert fuzzer.counts.compared == 128
    assert fuzzer.counts.copied > 100
    assert fuzzer.counts.responses > 200


def test_wrong_results_are_reported(compiled: ModuleType) -> None:
    if NAME == "python":
        return
    engine = SimpleNamespace(**vars(compiled))
    engine.record_entries = lambda data: python.record_entries(data)[1:]
    fuzzer = Fuzzer(engine, 7)  # type: ignore[arg-type]
    with pytest.raises(Different):
        for _ in range(20):
            fuzzer.run_round()
