"""`tandemq sim`: output and exit codes, and `--forever` as a process that is interrupted."""

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
    """Disable a safety check, so that invariant I7 is violated early in seed 1."""
    with offsets_go_back():
        yield


@pytest.mark.parametrize("seed", [STATIC_SEED, GROUP_SEED])
def test_run_names_faults_and_requests_in_tables_and_as_json(run: Run, seed: int) -> None:
    words = ("sim", "--first", seed, "--seeds", 1, "--jobs", 1)
    found = json.loads(run(*words, "--json").stdout)
    assert "kill" in " ".join(found["faults"])
    assert {"SEND_MESSAGE_V2", "PULL_MESSAGE", "HEART_BEAT", "REGISTER_BROKER"} <= found["requests"].keys()
    assert found["requests"].keys() <= RequestCode.__members__.keys()
    printed = run(*words).stdout
    assert "no invariant was violated" in printed
    for name, number in (found["faults"] | found["requests"]).items():
        assert re.search(rf"^{name} +{number:,} *$", printed, re.MULTILINE), name


def test_one_seed_is_run_alone(run: Run) -> None:
    found = json.loads(run("sim", "--seed", STATIC_SEED, "--json").stdout)
    assert (found["seed"], found["rule"]) == (STATIC_SEED, "")
    assert found["requests"][str(RequestCode.SEND_MESSAGE_V2)]
    printed = run("sim", "--seed", STATIC_SEED).stdout
    assert printed.startswith("1 seeds, ")
    assert f"{found['sends']:,} sends, {found['given']:,} deliveries" in printed


@pytest.mark.usefixtures("failing")
def test_failed_seed_is_reported_with_exit_code_3(run: Run) -> None:
    printed = run("sim", "--seed", 1, code=3).stdout
    assert "seed 1: I7 " in printed
    assert "1 seeds failed" in printed
    assert json.loads(run("sim", "--seed", 1, "--json", code=3).stdout)["rule"] == "I7"


@pytest.mark.usefixtures("failing")
def test_forever_stops_at_the_first_failed_seed(run: Run) -> None:
    printed = run("sim", "--forever", "--jobs", 1, "--json", code=3)
    assert "seed 1: I7 " in printed.stderr
    found = json.loads(printed.stdout)
    assert (found["seeds"], [failed["seed"] for failed in found["failed"]]) == (1, [1])


@pytest.mark.system
def test_forever_prints_progress_and_a_summary_when_interrupted() -> None:
    command = [sys.executable, "-m", "tandemq", "sim", "--forever", "--jobs", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        kill = threading.Timer(200, running.kill)
        kill.start()
        assert running.stderr is not None
        assert running.stderr.readline() == "1 seeds\n"
        running.send_signal(signal.SIGINT)
        shown, printed = running.communicate()
        kill.cancel()
    assert (running.returncode, printed) == (0, "")
    assert " seeds, " in shown
    assert "no invariant was violated" in shown
