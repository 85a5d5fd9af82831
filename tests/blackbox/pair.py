"""A master and its slave as processes: started, waited for, compared."""

import filecmp
from collections.abc import Callable

from tests.blackbox.programs import WAIT_S, Caller, Program, wait_until

Start = Callable[..., Program]
"""The fixture `start`: a name, then settings."""


def start_slave(start: Start, ha_port: int, name: str = "slave", /, **settings: object) -> Program:
    """A slave of the master whose replication port this is."""
    return start(name, **{"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": f"127.0.0.1:{ha_port}"} | settings)


def wait_for_copy(master: Program, slave: Program, *, seconds: float = WAIT_S) -> None:
    """Until the slave's log ends where its master's does."""
    wait_until(lambda: slave.log_end() == master.log_end(), "the slave has all", seconds=seconds)


def wait_for_status(caller: Caller, code: int) -> None:
    """Until a send is answered so."""
    wait_until(lambda: caller.send(b"probe") == code, f"a send answered {code}")


def assert_same_log(master: Program, slave: Program) -> None:
    """File by file, for logs that are too long to be compared in memory."""
    ours, theirs = master.log_files(), slave.log_files()
    assert [file.name for file in ours] == [file.name for file in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert filecmp.cmp(one, other, shallow=False), f"{other} differs from {one}"
