"""`python -m lab.sim`: output and exit codes, and as a process that is interrupted."""

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lab.sim.__main__ import main
from tandemq.model.codes import RequestCode
from tests.mutations.cluster import offsets_go_back

ROOT = Path(__file__).parents[2]
STATIC_SEED, GROUP_SEED = 7, 1_000_007


def run(*words: object, code: int = 0) -> Result:
    """Run the command in this process; `code` is the expected exit code."""
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, f"{words}: exit code {result.exit_code}\n{result.output}{result.exception!r}"
    return result


@pytest.fixture
def failing() -> Iterator[None]:
    """Disable a safety check, so that I7 or I25 is violated early in seed 1."""
    with offsets_go_back():
        yield


@pytest.mark.parametrize("seed", [STATIC_SEED, GROUP_SEED])
def test_run_names_faults_and_requests_in_tables_and_as_json(seed: int) -> None:
    words = ("--first", seed, "--seeds", 1, "--jobs", 1)
    found = json.loads(run(*words, "--json").stdout)
    assert "kill" in " ".join(found["faults"])
    assert {"SEND_MESSAGE_V2", "PULL_MESSAGE", "HEART_BEAT", "REGISTER_BROKER"} <= found["requests"].keys()
    assert found["requests"].keys() <= RequestCode.__members__.keys()
    printed = run(*words).stdout
    assert "no invariant was violated" in printed
    for name, number in (found["faults"] | found["requests"]).items():
        assert re.search(rf"^{name} +{number:,} *$", printed, re.MULTILINE), name


def test_one_seed_is_run_alone() -> None:
    found = json.loads(run("--seed", STATIC_SEED, "--json").stdout)
    assert (found["seed"], found["rule"]) == (STATIC_SEED, "")
    assert found["requests"][str(RequestCode.SEND_MESSAGE_V2)]
    printed = run("--seed", STATIC_SEED).stdout
    assert printed.startswith("1 seeds, ")
    assert f"{found['sends']:,} sends, {found['given']:,} deliveries" in printed


def test_results_of_each_seed_are_written(tmp_path: Path) -> None:
    file = tmp_path / "seeds.jsonl"
    run("--first", STATIC_SEED, "--seeds", 2, "--jobs", 1, "--results", file)
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [one["seed"] for one in found] == [STATIC_SEED, STATIC_SEED + 1]
    assert all(one["faults"] and one["requests"]["SEND_MESSAGE_V2"] for one in found)
    assert "--results is of many seeds" in run("--seed", STATIC_SEED, "--results", file, code=2).output


def test_help_names_every_option() -> None:
    helped = run("--help").stdout
    assert run("-h").stdout == helped
    for option in ("--seed ", "--seeds ", "--first ", "--jobs ", "--forever ", "--json "):
        assert option in helped


@pytest.mark.usefixtures("failing")
def test_failed_seed_is_reported_with_exit_code_3() -> None:
    printed = run("--seed", 1, code=3).stdout
    assert re.search(r"seed 1: (I7|I25) ", printed)
    assert "1 seeds failed" in printed
    assert json.loads(run("--seed", 1, "--json", code=3).stdout)["rule"] in ("I7", "I25")


@pytest.mark.usefixtures("failing")
def test_forever_stops_at_the_first_failed_seed() -> None:
    printed = run("--forever", "--jobs", 1, "--json", code=3)
    assert re.search(r"seed 1: (I7|I25) ", printed.stderr)
    found = json.loads(printed.stdout)
    assert (found["seeds"], [failed["seed"] for failed in found["failed"]]) == (1, [1])


@pytest.mark.system
@pytest.mark.parametrize(("length", "code"), [(("--forever",), 0), (("--seeds", "1000"), 130)])
def test_interrupted_run_prints_its_summary_if_it_had_no_end(length: tuple[str, ...], code: int) -> None:
    command = [sys.executable, "-m", "lab.sim", *length, "--jobs", "1"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        kill = threading.Timer(200, running.kill)
        kill.start()
        assert running.stderr is not None
        assert running.stderr.readline() == "1 seeds\n"
        running.send_signal(signal.SIGINT)
        shown, printed = running.communicate()
        kill.cancel()
    assert (running.returncode, printed) == (code, "")
    assert ("no invariant was violated" in shown) == (code == 0)
