"""Brokers as processes with a secret of replication: the same, another one, exchanged while they run."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemq.model.codes import ResponseCode
from tests.blackbox.programs import Caller, Program, wait_until
from tests.spec import spec

OK = ResponseCode.SUCCESS
SECRET, OTHER = "a secret of some length", "another secret of some length"
Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    programs: list[Program] = []

    def begin(name: str, secret: str, **settings: object) -> Program:
        write(tmp_path / f"{name}.secret", secret)
        programs.append(Program(tmp_path / name, haSecretFile=tmp_path / f"{name}.secret", **settings))
        return programs[-1]

    yield begin
    for program in programs:
        program.end()


def write(path: Path, *secrets: str) -> None:
    draft = path.with_suffix(".new")
    draft.write_text("".join(f"{secret}\n" for secret in secrets), encoding="ascii")
    draft.chmod(0o600)
    draft.replace(path)


def start_pair(start: Start, ours: str, theirs: str) -> tuple[Program, Program]:
    master = start("master", ours, brokerRole="SYNC_MASTER")
    return master, start(
        "slave",
        theirs,
        brokerRole="SLAVE",
        brokerId=1,
        haMasterAddress=f"127.0.0.1:{master.ha_port}",
        haProtocol="auto",
    )


@spec("H24")
def test_secret_is_exchanged_while_a_pair_runs(start: Start, tmp_path: Path) -> None:
    master, slave = start_pair(start, SECRET, SECRET)
    with Caller(master.port) as caller:
        wait_until(lambda: caller.send(b"one") == OK, "the slave copies")
        for first, second in ((SECRET, OTHER), (OTHER, SECRET)):
            for name in ("master", "slave"):
                write(tmp_path / f"{name}.secret", first, second)
                slave.kill()
                slave.start()
                wait_until(lambda: caller.send(b"two") == OK, "the slave copies again")
        for name in ("slave", "master"):
            write(tmp_path / f"{name}.secret", OTHER)
        slave.kill()
        slave.start()
        wait_until(lambda: caller.send(b"three") == OK, "the slave copies with the new secret alone")
    wait_until(lambda: slave.log_end() == master.log_end(), "the slave has all")
    assert slave.log_bytes() == master.log_bytes()
    for program in (master, slave):
        assert SECRET not in program.log_text()


@spec("H24")
def test_wrong_secret_is_refused_and_said_once_by_each_side(start: Start) -> None:
    master, slave = start_pair(start, SECRET, OTHER)
    with Caller(master.port) as caller:
        wait_until(lambda: "refused times=1" in slave.log_text(), "the slave says so")
        for _ in range(20):
            assert caller.send(b"alone") == ResponseCode.SLAVE_NOT_AVAILABLE
    for program in (master, slave):
        text = program.log_text()
        assert text.count("refused times=") == 1, text
        assert "another haSecretFile" in text
    assert slave.log_end() == 0
