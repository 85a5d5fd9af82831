"""Pulls that the engine answers get the same bytes as from the code in Python."""

from pathlib import Path

from tandemq.engine import NAME
from tests.fuzz.pulls import run_pair
from tests.unit.broker.harness import Harness


def test_brokers_with_and_without_engine_send_the_same_bytes() -> None:
    answered = sum(run_pair(seed, steps=200) for seed in range(10))
    assert NAME == "python" or answered > 500


def test_targets_have_a_memory_budget(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("T")
    engine = broker.node.pull.engine_pulls.engine
    engine.kept_bytes_max = 100_000
    most = 0
    for number in range(100):
        answer = broker.pull("T", expression=" || ".join(f"tag{number}-{tag}" for tag in range(80)))
        assert answer is not None
        most = max(most, engine.kept_bytes)
    assert most < 100_000 and (NAME == "python" or most > 90_000)
