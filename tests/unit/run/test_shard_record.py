"""What a process that starts shards leaves for the next one, and finds of the last one."""

import json
import os
from contextlib import closing
from pathlib import Path

import pytest

from tandemq.errors import LocalError
from tandemq.run.adopted_process import AdoptedProcess, identify
from tandemq.run.shard_record import ShardRecord, bind_reports


def test_process_that_runs_is_found_again_with_settings_and_report(tmp_path: Path) -> None:
    first = ShardRecord(str(tmp_path))
    digest = first.digest(["broker"], {"a": "1"})
    first.note("broker-a", os.getpid(), digest, {"address": "x:1"})
    first.note_other(os.getpid())
    (first.directory / "tandemq-1.conf").write_text("password")
    first.release()
    with closing(ShardRecord(str(tmp_path))) as second:
        left = second.left["broker-a"]
        assert (left.process.pid, left.settings, left.startup) == (os.getpid(), digest, {"address": "x:1"})
        assert left.process.poll() is None
        assert [other.pid for other in second.others] == [os.getpid()]
        assert second.digest(["broker"], {"a": "1"}) == digest != second.digest(["broker"], {"a": "2"})
        assert not list(second.directory.glob("*.conf"))
        assert second.directory.stat().st_mode & 0o077 == 0
    assert [path.name for path in (tmp_path / "shards").iterdir()] == ["lock"]


def test_another_process_with_the_same_id_is_not_adopted(tmp_path: Path) -> None:
    own = identify(os.getpid())
    for other in (own._replace(began=own.began + 1), own._replace(boot="another")):
        with pytest.raises(ProcessLookupError):
            AdoptedProcess(other)
    first = ShardRecord(str(tmp_path))
    first.note("broker-a", os.getpid(), "", {})
    first.release()
    file = first.directory / "shards.json"
    table = json.loads(file.read_text())
    table["shards"]["broker-a"]["process"][1] += 1
    file.write_text(json.dumps(table))
    with closing(ShardRecord(str(tmp_path))) as second:
        assert second.left == {}


def test_damaged_record_leaves_nothing(tmp_path: Path) -> None:
    first = ShardRecord(str(tmp_path))
    (first.directory / "shards.json").write_text('{"shards": {"broker-a": {}}}')
    first.release()
    with closing(ShardRecord(str(tmp_path))) as second:
        assert (second.left, second.others) == ({}, [])


def test_store_has_one_process_that_starts_its_shards(tmp_path: Path) -> None:
    with (
        closing(ShardRecord(str(tmp_path))),
        pytest.raises(LocalError, match="another process starts the shards of"),
    ):
        ShardRecord(str(tmp_path))
    ShardRecord(str(tmp_path)).close()


def test_sockets_are_elsewhere_if_the_path_is_too_long_and_stay_there(tmp_path: Path) -> None:
    store = tmp_path / ("long" * 30)
    first = ShardRecord(str(store))
    assert first.sockets.name.startswith("tandemq-shards-")
    bind_reports(first.sockets / "0").close()
    first.note("broker-a", os.getpid(), "", {})
    first.release()
    second = ShardRecord(str(store))
    assert second.sockets == first.sockets
    bind_reports(second.sockets / "0").close()
    second.close()
    assert not first.sockets.exists()
