"""`tandemq sim`: what a run tells and exits with; and `--forever` as a process, when it is interrupted."""

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tandemq.model.codes import RequestCode
from tests.mutations.cluster import offsets_go_back
from tests.unit.cli.conftest import Run

STATIC_SEED, GROUP_SEED = 7, 1_000_007


@pytest.fixture
def failing() -> Iterator[None]:
    """Switch off a safety whose loss rule I7 notices in seed 1, within the first moments."""
    with offsets_go_back():
        yield


@pytest.mark.parametrize("seed", [STATIC_SEED, GROUP_SEED])
def test_run_names_faults_and_requests_in_tables_and_as_json(run: Run, seed: int) -> None:
    words = ("sim", "--first", seed, "--seeds", 1, "--jobs", 1)
    found = json.loads(run(*words, "--json").stdout)
    assert "kill" in " ".join(found["faults"])
    assert {"SEND_MESSAGE_V2", "PULL_MESSAGE", "HEART_BEAT", "REGISTER_BROKER"} <= found["requests"].keys()
    assert found["requests"].keys() <= RequestCode.__members__.keys()
    told = run(*words).stdout
    assert "nothing was violated" in told
    for name, number in (found["faults"] | found["requests"]).items():
        assert re.search(rf"^{name} +{number:,} *$", told, re.MULTILINE), name


def test_one_seed_is_run_alone(run: Run) -> None:
    found = json.loads(run("sim", "--seed", STATIC_SEED, "--json").stdout)
    assert (found["seed"], found["rule"]) == (STATIC_SEED, "")
    assert found["requests"][str(RequestCode.SEND_MESSAGE_V2)]
    told = run("sim", "--seed", STATIC_SEED).stdout
    assert told.startswith("1 seeds, ")
    assert f"{found['sends']:,} sends, {found['given']:,} deliveries" in told


@pytest.mark.usefixtures("failing")
def test_seed_that_fails_is_told_with_exit_code_3(run: Run) -> None:
    told = run("sim", "--seed", 1, code=3).stdout
    assert "seed 1: I7 " in told
    assert "1 seeds failed" in told
    assert json.loads(run("sim", "--seed", 1, "--json", code=3).stdout)["rule"] == "I7"


@pytest.mark.usefixtures("failing")
def test_run_without_end_ends_at_the_first_seed_that_fails(run: Run) -> None:
    told = run("sim", "--forever", "--jobs", 1, "--json", code=3)
    assert "seed 1: I7 " in told.stderr
    found = json.loads(told.stdout)
    assert (found["seeds"], [failed["seed"] for failed in found["failed"]]) == (1, [1])


def test_seeds_without_end_tell_their_number_and_end_with_a_summary_when_interrupted() -> None:
    command = [sys.executable, "-m", "tandemq", "sim", "--forever", "--jobs", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        kill = threading.Timer(50, running.kill)
        kill.start()
        assert running.stderr is not None
        assert running.stderr.readline() == "1 seeds\n"
        running.send_signal(signal.SIGINT)
        shown, told = running.communicate()
        kill.cancel()
    assert (running.returncode, told) == (0, "")
    assert " seeds, " in shown
    assert "nothing was violated" in shown
