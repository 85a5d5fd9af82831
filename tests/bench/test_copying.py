"""A slave's copy of a log: what a master reports, and a copy by our own brokers."""

import json
import shutil
from pathlib import Path

import pytest

from bench.cells import OURS
from bench.copying import acknowledged_offset, copy_log, forget_copy, seed, slave_log_end, verify
from bench.loads import LoadFailed, run_load
from bench.probe import log_end
from bench.servers import BrokerGroup
from tandemq.load.wire.sockets import connect


def test_confirmed_offset_is_the_largest_of_the_slaves_and_zero_without_one() -> None:
    slaves = [{"addr": "127.0.0.1:1", "slaveAckOffset": 70}, {"addr": "127.0.0.1:2", "slaveAckOffset": 90}]
    assert acknowledged_offset(json.dumps({"master": True, "haConnectionInfo": slaves}).encode()) == 90
    assert acknowledged_offset(b'{"master":true,"haConnectionInfo":[]}') == 0
    assert acknowledged_offset(b'{"master":true}') == 0


@pytest.mark.slow
@pytest.mark.system
def test_slave_confirms_the_whole_log_and_its_copy_is_verified(tmp_path: Path) -> None:
    with BrokerGroup(OURS, tmp_path / "group") as group:
        group.start_master()
        run_load("produce", group.master.address, topic="first", count=1)
        begin = seed(group)
        run_load("produce", group.master.address, topic="copied", lengths="varied", count=2_000)
        with connect(group.master.address) as sock:
            end = log_end(sock)
        kept = tmp_path / "copy"
        for _ in range(2):
            copied = copy_log(group, end, begin)
            assert copied.confirmed_by == "master"
            assert 0 <= copied.bytes < end - begin
            assert verify(group.slave.store) > 0
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(group.slave.store, kept)
            forget_copy(group)
        assert slave_log_end(group) == 0
        log = min(kept.glob("commitlog/*"))
        with open(log, "r+b") as file:
            file.seek(end // 2)
            file.write(b"damaged")
        with pytest.raises(LoadFailed, match="log verify"):
            verify(kept)
