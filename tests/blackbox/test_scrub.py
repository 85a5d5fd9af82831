"""A running pair whose files rot: scrubbed, repaired from the twin, the same bytes again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemq.model.codes import RequestCode, ResponseCode
from tests.blackbox.programs import Caller, Program, wait_until
from tests.spec import spec

OK = ResponseCode.SUCCESS


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[dict[str, Program]]:
    # Far above what a copy takes: the machine of a test may be busy.
    patient = {"syncFlushTimeout": 60_000, "slaveTimeout": 60_000}
    master = Program(tmp_path / "master", brokerRole="SYNC_MASTER", flushDiskType="SYNC_FLUSH", **patient)
    slave = Program(
        tmp_path / "slave",
        brokerRole="SLAVE",
        brokerId=1,
        haMasterAddress=f"127.0.0.1:{master.ha_port}",
        flushDiskType="SYNC_FLUSH",
    )
    yield {"master": master, "slave": slave}
    for program in (master, slave):
        program.end()


def log_of(program: Program) -> bytes:
    """What is written of the first file: twins may differ in how far ahead they wrote zeroes."""
    return (program.directory / "store" / "commitlog" / f"{0:020d}").read_bytes().rstrip(b"\0")


def scrub(program: Program, **fields: object) -> Any:
    with Caller(program.port) as caller:
        answer = caller.ask(RequestCode.TANDEM_SCRUB, fields)
    assert answer.code == OK, answer.remark
    return json.loads(answer.body)


@spec("T19")
@pytest.mark.parametrize("side", ["master", "slave"])
def test_bytes_that_rot_in_a_running_pair_are_the_twins_again(pair: dict[str, Program], side: str) -> None:
    bodies = [b"%06d" % number * 50 for number in range(300)]
    with Caller(pair["master"].port) as caller:
        wait_until(lambda: caller.send(b"first") == OK, "the slave copies")
        before = caller.read_all()
        assert [caller.send(body) for body in bodies] == [OK] * len(bodies)
    wait_until(lambda: log_of(pair["slave"]) == log_of(pair["master"]), "the slave has all")
    good, rotten = log_of(pair["master"]), pair[side]
    path = rotten.directory / "store" / "commitlog" / f"{0:020d}"
    places = (5, 20_000, 60_001, 60_002, 100_000)
    with path.open("r+b") as file:
        for at in places:
            file.seek(at)
            file.write(bytes([good[at] ^ 0x10]))
    assert log_of(rotten) != good
    scrub(rotten, begin="true", bytesPerSecond=64 << 20)
    wait_until(lambda: scrub(rotten)["repairedTotal"] >= len(places) - 1, "all is repaired")
    wait_until(lambda: scrub(rotten)["state"] != "running", "the pass is over")
    assert scrub(rotten)["damaged"] == []
    assert log_of(rotten) == log_of(pair["slave" if side == "master" else "master"]) == good
    assert "DAMAGE" in rotten.log_text()
    with Caller(rotten.port) as caller:
        assert caller.read_all() == before + bodies
    assert rotten.stop() == 0
    rotten.start()
    assert scrub(rotten)["repairedTotal"] >= len(places) - 1
