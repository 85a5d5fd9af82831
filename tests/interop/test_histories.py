"""The judge of histories, with Java's brokers and clients while masters are killed."""

from pathlib import Path

import pytest

from chaos import kills
from judge.verdict import judge
from tests.samples import slow


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("brokers", "role", "clients"),
    [
        slow(("5.3.3", "ASYNC_MASTER", "ours")),
        slow(("4.9.7", "SYNC_MASTER", "ours")),
        slow(("ours", "SYNC_MASTER", "ours")),
        slow(("ours", "elect", "ours")),
        slow(("ours", "elect", "5.3.3")),
    ],
)
def test_kills_of_masters_lose_and_reorder_nothing(brokers: str, role: str, clients: str, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    count = kills.run(brokers, role, clients, 15.0, 3.0, tmp_path / "run", path)
    with path.open(encoding="utf-8") as file:
        verdict = judge(file)
    assert count > 0
    assert verdict.operations["send ok"] > 100
    assert not verdict.not_judged
    # With fixed roles a killed process loses commits that it had not saved; Java's, acknowledgements of pops too.
    known = set() if role == "elect" else {"offset-back", "pop-again"} if brokers == "5.3.3" else {"offset-back"}
    assert verdict.counts.keys() <= known
