"""What machines with shards have logged, and the processes of their shards."""

import json
import os
from contextlib import closing
from pathlib import Path

import pytest

from chaos.machines import SHARDS, Machine
from chaos.permissions import overlaps, spans_of
from chaos.processes import mono_ms
from chaos.proxy import ProxyLoop
from tandemq.errors import LocalError
from tests.chaos.test_permissions import BOTH, NOTHING, NOW

STARTED = "2026-01-02 03:04:05,678 INFO"


def machine(tmp_path: Path, number: int, lines: list[str]) -> Machine:
    loop = ProxyLoop()
    with closing(_Stopped(loop)):
        made = Machine(number, tmp_path, None, loop, {}, shard=1)
    made.log_path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return made


class _Stopped:
    """Ends a loop of proxies that nobody uses."""

    def __init__(self, loop: ProxyLoop) -> None:
        self.close = loop.stop


def line(name: str, at: int, may: str) -> str:
    return f"2026-01-02 03:04:05,678 WARNING {name}: failover: epoch=3 mono_ms={at} may {may}: because"


def test_permissions_are_compared_shard_by_shard(tmp_path: Path) -> None:
    first = machine(tmp_path, 0, [line("broker-a", 1_000, BOTH), line("broker-a-1", 1_000, BOTH), f"{STARTED} shards:"])
    second = machine(tmp_path, 1, [line("broker-a-1", 1_000, NOTHING), line("broker-a-1", 3_000, BOTH)])
    for shard, count in ((0, 0), (1, 2)):
        lines = {each.name: each.lines_of(shard) for each in (first, second)}
        assert len(overlaps(lines, {each.name: [] for each in (first, second)}, NOW)) == count


def test_permissions_of_a_shard_end_when_its_machine_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = mono_ms() - 1_000
    found = machine(tmp_path, 0, [line("broker-a-1", begun, BOTH)])

    def refuse() -> None:
        raise LocalError("shard broker-a did not start")

    monkeypatch.setattr(found, "start", refuse)
    assert not found.start_if_it_can()
    ended = mono_ms()
    spans = spans_of(found.name, found.lines_of(1), "read", found.shard_deaths[1], ended + 5_000)
    assert [span.start for span in spans] == [begun]
    assert spans[0].end <= ended


@pytest.mark.parametrize(
    ("how", "count"), [("killed by SIGKILL", 0), ("unknown exit code", 0), ("exit code 1", 1), ("exit code 0", 1)]
)
def test_shard_that_ends_by_itself_is_a_violation(tmp_path: Path, how: str, count: int) -> None:
    text = f"2026-01-02 03:04:05,678 ERROR shard broker-a-1 ended ({how}); it is started again in 0 s"
    found = machine(tmp_path, 0, [f"{STARTED} x", text]).ended_shards()
    assert len(found) == count
    assert all("I16: shard broker-a-1 of broker-a-0 ended: exit code" in each for each in found)


def test_processes_are_those_of_the_supervisors_record(tmp_path: Path) -> None:
    found = machine(tmp_path, 0, [])
    assert found.shard_pids() == [0] * SHARDS
    file = found.store / "shards" / "run" / "shards.json"
    file.parent.mkdir(parents=True)
    table = {"broker-a": {"process": [os.getpid(), 1, "boot"]}, "broker-a-1": {"process": [1 << 22, 1, "boot"]}}
    file.write_text(json.dumps({"shards": table}))
    assert found.shard_pids() == [os.getpid(), 0]
    assert found.judged_store == found.store / "shards" / "1"
