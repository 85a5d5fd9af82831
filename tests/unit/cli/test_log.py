"""`tandemq log`: offline tools on stores of TandemQ and RocketMQ, also damaged ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemq import Message
from tandemq.cli.log import check_log
from tandemq.client.blocking import BlockingProducer
from tandemq.run.local import LocalCluster
from tests.golden import GOLDEN, unpack
from tests.unit.cli.conftest import Run

COUNT = 300


@pytest.fixture(scope="module")
def valid_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with several log files."""
    directory = tmp_path_factory.mktemp("valid_store")
    settings = {"mappedFileSizeCommitLog": 128 << 10, "maxMessageSize": 8 << 10}
    with LocalCluster(directory, settings=settings) as cluster:
        with BlockingProducer(cluster.name_servers, group="g") as producer:
            for i in range(COUNT):
                producer.send(Message("T", b"x" * 1_000, tags="t", keys=[f"k{i}"]))
        return cluster.broker().store


@pytest.fixture
def store(valid_store: Path, tmp_path: Path) -> Path:
    """A copy of the valid store, for one test to damage."""
    import shutil

    return Path(shutil.copytree(valid_store, tmp_path / "store"))


def verified(run: Run, store: Path, *, code: int = 0, jobs: int = 1) -> Any:
    return json.loads(run("log", "verify", store, "--jobs", jobs, "--json", code=code).stdout)


def damage(store: Path, offset: int, data: bytes, segment_bytes: int = 128 << 10) -> None:
    with (store / "commitlog" / f"{offset - offset % segment_bytes:020d}").open("r+b") as file:
        file.seek(offset % segment_bytes)
        file.write(data)


def test_valid_store_verifies(run: Run, store: Path) -> None:
    found = verified(run, store)
    assert (found["records"], found["damages"]) == (COUNT, 0)
    assert found["segments"] == len(found["reports"]) > 2
    assert "valid" in run("log", "verify", store, "--jobs", 1).output


@pytest.mark.system
def test_result_does_not_depend_on_the_number_of_processes(run: Run, store: Path) -> None:
    assert verified(run, store, jobs=2)["records"] == COUNT


@pytest.mark.parametrize("name", sorted(path.name.removesuffix(".tar.gz") for path in GOLDEN.glob("store-*.tar.gz")))
def test_stores_of_rocketmq_verify(run: Run, tmp_path: Path, name: str) -> None:
    unpack(name, tmp_path)
    [log] = tmp_path.rglob("commitlog")
    found = verified(run, log.parent)
    assert found["damages"] == 0
    assert found["records"] > 10


def test_damage_is_reported_with_its_range_and_the_rest_is_checked(run: Run, store: Path) -> None:
    damage(store, 50_000, b"!")
    found = verified(run, store, code=3)
    assert (found["records"], found["damages"]) == (COUNT - 1, 1)
    [[one]] = [report["damages"] for report in found["reports"] if report["damages"]]
    assert one["start"] <= 50_000 < one["end"] < 52_000
    assert "damage in [" in run("log", "verify", store, "--jobs", 1, code=3).output


def test_damage_up_to_the_end_of_a_file_that_is_not_the_last_is_damage(run: Run, store: Path) -> None:
    damage(store, (128 << 10) - 3_000, bytes(3_000))
    found = verified(run, store, code=3)
    [one] = found["reports"][0]["damages"]
    assert (one["end"], one["tornTail"]) == (128 << 10, False)


def test_torn_tail_is_reported_but_is_not_damage(run: Run, store: Path) -> None:
    end = verified(run, store)["reports"][-1]
    damage(store, end["start"] + end["bytes"], b"torn")
    found = verified(run, store)
    [one] = found["reports"][-1]["damages"]
    assert (one["start"], one["end"], one["tornTail"]) == (
        end["start"] + end["bytes"],
        end["start"] + end["bytes"] + 4,
        True,
    )
    assert "torn tail" in run("log", "verify", store, "--jobs", 1).output


def test_gap_between_files_and_missing_log_are_errors(run: Run, store: Path, tmp_path: Path) -> None:
    sorted((store / "commitlog").iterdir())[1].unlink()
    assert "missing" in run("log", "verify", store, code=1).stderr
    assert "contains no commit log" in run("log", "verify", tmp_path, code=1).stderr


@pytest.mark.parametrize("range_bytes", [1_000, 4_096, 10_007, 128 << 10])
def test_ranges_of_any_size_count_every_record_once(
    store: Path, monkeypatch: pytest.MonkeyPatch, range_bytes: int
) -> None:
    monkeypatch.setattr(check_log, "RANGE_BYTES_MIN", range_bytes)
    damage(store, 50_000, b"!")
    reports = list(check_log.verify(check_log.segments_of(store), jobs=1, progress=lambda _done, _total: None))
    assert sum(report.records for report in reports) == COUNT - 1
    assert [len(report.damages) for report in reports] == [1] + [0] * (len(reports) - 1)


SIZES = ("--slots", 5_000, "--entries", 20_000)


def derived(run: Run, store: Path, *, code: int = 0, sizes: tuple[object, ...] = SIZES) -> Any:
    return json.loads(run("log", "verify", store, "--jobs", 1, "--derived", *sizes, "--json", code=code).stdout)


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_queues_and_index_of_a_valid_store_agree_with_its_log(run: Run, store: Path) -> None:
    found = derived(run, store)
    assert (found["queueEntries"], found["indexEntries"], found["derivedFaults"]) == (COUNT, 2 * COUNT, 0)
    assert found["derived"] == found["notes"] == []
    assert "derivedFaults" in run("log", "verify", store, "--jobs", 1, "--derived", *SIZES).output


@pytest.mark.parametrize("name", sorted(path.name.removesuffix(".tar.gz") for path in GOLDEN.glob("store-*.tar.gz")))
def test_queues_and_index_of_rocketmqs_stores_agree_with_their_logs(run: Run, tmp_path: Path, name: str) -> None:
    unpack(name, tmp_path)
    [log] = tmp_path.rglob("commitlog")
    found = derived(run, log.parent, sizes=index_sizes(log.parent))
    assert found["derived"] == []
    assert found["queueEntries"] > 10


def index_sizes(store: Path) -> tuple[object, ...]:
    """Return --slots and --entries for a RocketMQ store, from the file that describes its origin."""
    sizes = {path.stat().st_size for path in (store / "index").iterdir()}
    for slots, entries in ((500, 2_000), (1_000, 4_000), (5_000, 20_000), (100, 400), (5_000_000, 20_000_000)):
        if sizes == {40 + 4 * slots + 20 * entries}:
            return ("--slots", slots, "--entries", entries)
    raise AssertionError(f"index files of {sizes} bytes")


def test_wrong_queue_entry_is_reported_for_record_and_entry(run: Run, store: Path) -> None:
    file = next(path for path in (store / "consumequeue" / "T").rglob("0" * 20) if path.stat().st_size)
    change(file, 3 * 20 + 7, b"\x01")
    found = derived(run, store, code=3)
    assert found["derivedFaults"] == 2
    assert {finding["where"] for finding in found["derived"]} == {f"T/{file.parent.name}@3"}
    assert {finding["reason"] for finding in found["derived"]} == {
        "the record has no such queue entry",
        "the entry matches no record",
    }


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.system)])
@pytest.mark.parametrize(
    "wrong", [bytes(20), b"\xff" * 20, b"\x40", b"\0" * 8 + b"\x80"], ids=["zeroed", "ones", "offset", "size"]
)
def test_queue_entries_are_checked_by_default(run: Run, store: Path, wrong: bytes, jobs: int) -> None:
    file = next(path for path in (store / "consumequeue" / "T").rglob("0" * 20) if path.stat().st_size)
    before = file.read_bytes()[100:120]
    change(file, 5 * 20, wrong)
    found = verified(run, store, code=3, jobs=jobs)
    place = f"T/{file.parent.name}@5"
    assert {finding["where"] for finding in found["derived"]} == {place}
    assert (found["queueEntries"], found["damages"]) == (COUNT, 0)
    text = run("log", "verify", store, "--jobs", jobs, code=3).output
    held = int.from_bytes((wrong + before[len(wrong) :])[:8], "big", signed=True)
    assert f"{place}  log offset" in text
    assert f"its content is ({held}, " in text
    assert "derived" not in run("log", "verify", store, "--jobs", jobs, "--no-queues").output


def test_records_of_deleted_or_recreated_topics_are_not_faults(run: Run, tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", settings={"mappedFileSizeCommitLog": 128 << 10}) as cluster:
        with BlockingProducer(cluster.name_servers, group="g", queues_per_new_topic=1) as producer:
            for topic in ("Gone", "Again"):
                for _ in range(100):
                    producer.send(Message(topic, b"x" * 1_000))
                run("topic", "delete", topic, "--yes", "-n", cluster.name_servers)
            for _ in range(50):
                producer.send(Message("Again", b"y" * 700))
        store = cluster.broker().store
    found = verified(run, store)
    assert found["derivedFaults"] == 0
    assert "of 1 missing queues (deleted topics): ['Gone/0']" in found["notes"][0]
    change(store / "consumequeue" / "Again" / "0" / ("0" * 20), 20 * 30, bytes(20))
    assert {one["where"] for one in verified(run, store, code=3)["derived"]} == {"Again/0@30"}


def test_missing_queue_entries_are_faults_unless_the_broker_was_killed(run: Run, store: Path) -> None:
    file = next(path for path in (store / "consumequeue" / "T").rglob("0" * 20) if path.stat().st_size)
    entries = file.read_bytes().rstrip(b"\0")
    count = -(-len(entries) // 20)
    change(file, 20 * (count - 2), bytes(40))
    assert derived(run, store, code=3)["derivedFaults"] == 2
    (store / "abort").touch()
    found = derived(run, store)
    assert (found["derivedFaults"], found["notYetEntered"]) == (0, 2)


def test_wrong_index_entry_and_broken_chain_are_reported(run: Run, store: Path) -> None:
    [index] = (store / "index").iterdir()
    change(index, 40 + 4 * 5_000 + 20 * 7, b"\x00\x00\x00\x2a")
    found = derived(run, store, code=3)
    reasons = {finding["reason"] for finding in found["derived"]}
    assert {"a key of the record is missing", "an entry matches no key of the record"} <= reasons


def test_index_of_another_size_is_skipped_with_a_note(run: Run, store: Path) -> None:
    found = derived(run, store, sizes=())
    assert found["derivedFaults"] == 0
    assert "its size does not match --slots and --entries" in found["notes"][0]


def test_queue_entry_of_a_damaged_record_is_not_a_fault(run: Run, store: Path) -> None:
    damage(store, 50_000, b"!")
    found = derived(run, store, code=3)
    assert (found["damages"], found["derivedFaults"]) == (1, 0)


def dumped(run: Run, store: Path, *words: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("log", "dump", store, "--json", *words).stdout.splitlines()]


def test_dump_shows_records_in_order_and_filters(run: Run, store: Path) -> None:
    rows = dumped(run, store, "--count", 0)
    assert [row["keys"] for row in rows] == [[f"k{i}"] for i in range(COUNT)]
    assert rows[0]["body"] == "x" * 1_000
    assert [row["keys"] for row in dumped(run, store, "--key", "k7")] == [["k7"]]
    assert dumped(run, store, "--topic", "Other") == []
    later = dumped(run, store, "--from", rows[3]["logOffset"] + 1, "--count", 2, "--no-body")
    assert [row["keys"] for row in later] == [["k4"], ["k5"]]
    assert "body" not in later[0]


def test_dump_skips_damage_with_a_warning(run: Run, store: Path) -> None:
    damage(store, 50_000, b"!")
    printed = run("log", "dump", store, "--count", 0)
    assert len(printed.stdout.splitlines()) == COUNT - 1
    assert "damage in [" in printed.stderr


def test_rebuilt_index_finds_the_same_messages(run: Run, store: Path, ask_key: Callable[[Path, str], int]) -> None:
    before = {path.name for path in (store / "index").iterdir()}
    for path in (store / "index").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    printed = json.loads(run("log", "rebuild-index", store, "--slots", 5_000, "--entries", 20_000, "--json").stdout)
    assert (printed["records"], printed["keys"]) == (COUNT, 2 * COUNT)
    assert not [name for name in ("index.new", "index.old") if (store / name).exists()]
    assert before
    assert ask_key(store, "k123") == 1


@pytest.fixture
def ask_key() -> Callable[[Path, str], int]:
    """Return a function that counts the messages of T that a store's index finds for a key."""
    from tandemq.real.disk import RealDisk
    from tandemq.storage.key_index import KeyIndex

    def found(store: Path, key: str) -> int:
        index = KeyIndex(RealDisk(store), 5_000, 20_000)
        try:
            return len(index.find("T", key, 0, 1 << 52, 10))
        finally:
            index.close()

    return found


@pytest.mark.system
def test_index_of_a_store_in_use_is_not_rebuilt(run: Run, tandemq_broker: LocalCluster) -> None:
    import subprocess
    import sys

    # A lock is a process's own: another process must try.
    words = [sys.executable, "-m", "tandemq", "log", "rebuild-index", str(tandemq_broker.broker().store)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "another process is using" in done.stderr
