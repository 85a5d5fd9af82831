"""Work beside the load of a broker: it is counted, and a cell without it fails."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench import live
from bench.cells import OURS, chosen
from bench.loads import LoadFailed
from bench.servers import BrokerGroup
from bench.setting import QUICK, Bench


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return what the session gets; no broker is started and no load put on it."""
    latency = {"p50_ms": 1.0, "p99_ms": 2.0}
    result: dict[str, Any] = {"acknowledged": latency, "latency": {"p50_ms": 3.0, "p99_ms": 4.0}}
    monkeypatch.setattr(BrokerGroup, "start_master", lambda _: None)
    monkeypatch.setattr(live, "fill", lambda *_, **__: None)
    monkeypatch.setattr(live, "_end_to_end", lambda *_: result)
    return Bench(OURS, chosen(["beside/nothing", "beside/scrubber"]), tmp_path, QUICK, lambda _: None)


def _amount(count: int) -> Callable[[BrokerGroup], Any]:
    @contextmanager
    def running(_: BrokerGroup) -> Iterator[Callable[[], int]]:
        yield lambda: count

    return running


def test_sends_and_deliveries_beside_other_work_are_figures_with_its_amount(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(live._BESIDE, "scrubber", live._Work({}, _amount(4096), "bytes verified"))
    found = {figure.cell: figure for figure in live.beside(bench)}
    assert {name: figure.value for name, figure in found.items()} == {
        "beside/nothing/send-p99": 2.0,
        "beside/nothing/e2e-p99": 4.0,
        "beside/scrubber/send-p99": 2.0,
        "beside/scrubber/e2e-p99": 4.0,
    }
    detail = found["beside/scrubber/send-p99"].detail
    assert (detail["work"], detail["work_unit"]) == (4096, "bytes verified")


def test_cell_fails_if_the_other_work_did_not_happen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(live._BESIDE, "scrubber", live._Work({}, _amount(0), "bytes verified"))
    with pytest.raises(LoadFailed, match="beside/scrubber: the work beside the load did not happen"):
        list(live.beside(bench))


def test_old_files_are_all_but_the_last_and_those_that_vanish_are_counted(tmp_path: Path) -> None:
    group = BrokerGroup(OURS, tmp_path / "group")
    log = Path(str(group.master.conf["storePathCommitLog"]))
    log.mkdir(parents=True)
    files = [log / f"{number:020d}" for number in range(4)]
    for path in files:
        path.touch()
    with live._deleted(group) as deleted:
        ages = [time.time() - path.stat().st_mtime > 300 * 86_400 for path in files]
        assert deleted() == 0
        files[0].unlink()
        assert deleted() == 1
    assert ages == [True, True, True, False]
