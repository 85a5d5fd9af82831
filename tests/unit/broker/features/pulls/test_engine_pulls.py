"""Pulls that the engine answers get the same bytes as from the code in Python."""

from tandemq.engine import NAME
from tests.fuzz.pulls import run_pair


def test_brokers_with_and_without_engine_send_the_same_bytes() -> None:
    answered = sum(run_pair(seed, steps=200) for seed in range(10))
    assert NAME == "python" or answered > 500
