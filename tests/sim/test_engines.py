"""A seed has the same history with the compiled engine and with the one in Python."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tandemq.sim.simulation import GROUP_SEEDS
from tests.unit.engine.modules import compiled_engine

pytestmark = pytest.mark.system
FEW = (1, 163, GROUP_SEEDS + 1)
"""In 163 a slave copies half of what a connection sent in one turn."""
MANY = 500
PROGRAM = """
import json, sys
from dataclasses import asdict
from tandemq.engine import NAME
from tandemq.sim.simulation import quiet, run_seed
assert NAME == sys.argv[1], NAME
with quiet():
    print(json.dumps([asdict(run_seed(int(seed))) for seed in sys.argv[2:]]))
"""


def output(engine: str, *command: str) -> Any:
    """Return the JSON that a process with an engine prints."""
    environment = os.environ | {"TANDEMQ_ENGINE": engine, "PYTHONPATH": ":".join(sys.path)}
    found = subprocess.run([sys.executable, *command], env=environment, capture_output=True, check=True, text=True)
    return json.loads(found.stdout)


def test_seeds_have_the_same_result_with_both_engines() -> None:
    name = compiled_engine().NAME
    found, expected = (output(engine, "-c", PROGRAM, engine, *map(str, FEW)) for engine in (name, "python"))
    assert found == expected
    assert len({result["digest"] for result in found}) == len(FEW)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_many_seeds_have_the_same_result_with_both_engines() -> None:
    """As `TANDEMQ_ENGINE=python tandemq sim --seeds 500 --json` and the same with `compiled`."""
    results = []
    for engine in (compiled_engine().NAME, "python"):
        found = output(engine, "-m", "tandemq", "sim", "--seeds", str(MANY), "--json")
        del found["realSeconds"]
        results.append(found)
    assert results[0] == results[1]
    assert results[0]["seeds"] == MANY
