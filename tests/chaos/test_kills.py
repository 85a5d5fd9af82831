"""The plan of a run of `chaos.kills`, and its command line."""

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from chaos import kills
from chaos.kill_groups import FIXED_KINDS, KINDS, turns
from tests.interop.java import PeerError


def test_every_kind_of_fault_comes_once_before_one_comes_again() -> None:
    drawn = list(islice(turns(KINDS, Random(1), 1e9), 3 * len(KINDS)))
    parts = [drawn[first : first + len(KINDS)] for first in range(0, len(drawn), len(KINDS))]
    assert all(sorted(part) == sorted(KINDS) for part in parts)
    assert parts[0] != parts[1], "in an order of their own"
    assert drawn == list(islice(turns(KINDS, Random(1), 1e9), len(drawn))), "the seed draws it"
    assert list(turns(KINDS, Random(1), 0.0)) == []


@pytest.mark.parametrize(
    ("role", "clients", "expected"),
    [
        ("elect", "java-5.2.0", KINDS),
        ("elect", "go", [kind for kind in KINDS if kind != "kill-proxy"]),
        ("SYNC_MASTER", "node", FIXED_KINDS),
        ("ASYNC_MASTER", "ours", [kind for kind in FIXED_KINDS if kind != "kill-proxy"]),
    ],
)
def test_faults_are_those_that_brokers_can_have_and_clients_notice(
    role: str, clients: str, expected: Sequence[str]
) -> None:
    assert kills.Plan(role=role, clients=clients).kinds() == tuple(expected)
    assert kills.Plan(role=role, clients=clients, faults=("kill",)).kinds() == ("kill",)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--faults", "kill,flood"], "no faults flood: choose of apart, kill,"),
        (["--role", "SYNC_MASTER", "--faults", "switch"], "--role SYNC_MASTER has no faults switch"),
        (["--clients", "cobol"], "invalid choice: 'cobol'"),
        (["--clients", "go", "--faults", "kill-proxy"], "go does not use a gRPC proxy"),
    ],
)
def test_command_says_what_is_wrong(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        kills.main(words)
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


def test_run_that_fails_leaves_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise PeerError("there is no Go")

    monkeypatch.setattr(kills, "run", fail)
    words = ["--clients", "go", "--role", "elect", "--seed", "4", "--reports", str(tmp_path), "--json"]
    assert kills.main(words) == kills.EXIT_FAILED
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "kills-go-ours-elect-4.json").read_text())
    assert (report["seed"], report["mode"], report["clients"]) == (4, "elect", "go")
    assert report["violations"] == ["I14: the run failed: there is no Go"]
