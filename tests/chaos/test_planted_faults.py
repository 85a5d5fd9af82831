"""A run of real processes notices a fault of each kind: brokers that cannot live with it break a rule.

Damaged logs and tables and older registries have tests of their own, beside those of good brokers.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from chaos.cgroups import CPU, MEMORY, limit_refusal
from chaos.faults import KINDS

SECONDS = 8
OTHER_TESTS = {"damage-log", "damage-table", "older-registry"}
"""Faults with a defect in `test_storage_faults` and `test_registries`."""
BEYOND = ("--no-shards", "--beyond")
LIMITS = {"quota": CPU, "memory-limit": MEMORY}


class Case(NamedTuple):
    """A defect that a kind of fault shows. `seeds`: draw runs of which one does; `rules`: those that may find it."""

    fault: str
    defect: str
    seeds: tuple[int, ...]
    rules: tuple[str, ...]
    options: tuple[str, ...] = ("--no-shards",)


CASES = (
    Case("apart", "lease-for-ever", (3,), ("I6",)),
    Case("clock", "ends-when-the-clock-goes-back", (3,), ("I16",)),
    Case("configure", "permission-not-looked-up", (19, 32), ("I6",)),
    Case("cpu", "ends-when-slow", (3, 18), ("I14", "I16")),
    Case("eio", "ignores-failed-syncs", (3,), ("I14",)),
    Case("emfile", "fails-without-descriptors", (3, 4, 6, 18), ("I14", "I16")),
    Case("enospc", "failed-write-is-acked", (3,), ("I1", "I5")),
    Case("eread", "ends-at-errors", (3, 18), ("I16",)),
    Case("ewrite", "failed-write-is-acked", (3,), ("I1", "I5", "I14", "I25")),
    Case("files", "starts-after-clean-stops-only", (3, 18), ("I14",)),
    Case("kill", "queue-offset-reused", (4, 3), ("I1", "I5", "I7")),
    Case("kill-registry", "ends-without-registry", (3,), ("I16",)),
    Case("kill-shard", "leaves-dead", (1,), ("I14",), ("--shards",)),
    Case("kill-supervisor", "shards-end-with-parent", (1,), ("I6", "I16"), ("--shards",)),
    Case("lose-disk", "ends-when-emptied", (4, 5), ("I16",), (*BEYOND, "--at-once", "1")),
    Case("lose-log", "crashes-at-damage", (3, 4), ("I16",), BEYOND),
    Case("lose-table", "crashes-at-damage", (3, 6, 7, 8), ("I16",), BEYOND),
    Case("memory", "hangs-without-memory", (3, 5, 18, 7), ("I14",)),
    Case("memory-limit", "starts-after-clean-stops-only", (51, 57), ("I14",)),
    Case("network", "slave-never-returns", (340, 106), ("I14",)),
    Case("pause", "lease-for-ever", (3,), ("I6",)),
    Case("restart", "ends-at-once", (3,), ("I16",)),
    Case("quota", "ends-when-slow", (51, 3), ("I14", "I16")),
    Case("switch", "ends-when-switched", (3,), ("I16",)),
    Case("thread", "lease-for-ever", (3, 18), ("I6",)),
)


def test_every_kind_of_fault_has_a_defect() -> None:
    assert {case.fault for case in CASES} | OTHER_TESTS == {*KINDS, "restart"}


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.fault)
def test_defect_is_found(case: Case, tmp_path: Path) -> None:
    controller = LIMITS.get(case.fault)
    if controller is not None and limit_refusal(controller):
        return  # no run on this machine has the fault, see `test_cgroups`
    found = ["no run"]
    for seed in case.seeds:
        found = _violations(case, seed, tmp_path / str(seed))
        if any(text.startswith(case.rules) for text in found):
            return
    pytest.fail(f"{case.defect}: {case.fault} of seeds {case.seeds} found {found}")


def _violations(case: Case, seed: int, directory: Path) -> list[str]:
    words = ["--seed", str(seed), "--runs", "1", "--seconds", str(SECONDS), "--registry", "namesrv", *case.options]
    if case.fault != "restart":  # of a proxy, and each run stops its proxies
        words += ["--only", case.fault]
    command = [sys.executable, "-m", "tests.chaos.planted_runs", case.defect, *words]
    done = subprocess.run([*command, "--reports", str(directory)], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    (report,) = (json.loads(path.read_text(encoding="utf-8")) for path in directory.glob("*.json"))
    found: list[str] = report["violations"]
    return found
