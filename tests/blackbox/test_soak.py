"""What takes minutes, in `make soak`: a hundred kills, ten thousand attempts to connect, replication's real timers."""

import re
import time
from collections.abc import Callable

import pytest

from tandemq.config.settings import BrokerConfig
from tandemq.model.codes import ResponseCode
from tests.blackbox.kills import Tell, kill_again_and_again
from tests.blackbox.pair import Start, assert_same_log, start_slave, wait_for_copy
from tests.blackbox.programs import Caller, Program, Proxy, wait_until
from tests.spec import spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]
OK = ResponseCode.SUCCESS
_DEFAULT = BrokerConfig()
REAL_TIMERS: dict[str, object] = {
    "haSendHeartbeatInterval": _DEFAULT.ha_heartbeat_ms,
    "haHousekeepingInterval": _DEFAULT.ha_housekeeping_ms,
    "haReconnectInterval": _DEFAULT.ha_reconnect_ms,
    "slaveTimeout": _DEFAULT.slave_timeout_ms,
    "metadataSyncInterval": _DEFAULT.metadata_sync_ms,
}
AWAY_S = 600
MEMORY_KIB = 8_192
"""Growth that is none: the allocator's own coming and going."""


def held(program: Program) -> tuple[int, int, int]:
    """Descriptors, threads, KiB of memory."""
    return program.descriptors(), program.threads(), program.memory_kib()


def assert_nothing_stayed(program: Program, before: tuple[int, int, int]) -> None:
    """One attempt may be under way, with its socket and its thread."""
    now = held(program)
    allowed = before[0] + 1, before[1] + 1, before[2] + MEMORY_KIB
    assert all(one <= most for one, most in zip(now, allowed, strict=True)), f"{before} became {now}"


def wait_for_attempts(proxy: Proxy, count: int) -> None:
    wait_until(lambda: proxy.accepted > count, f"{count} attempts", seconds=300)


def wait_for_time(at: float) -> None:
    """At most a minute ahead."""
    wait_until(lambda: time.monotonic() >= at, "half a minute", seconds=60)


def is_copying(slave: Program) -> bool:
    return bool(slave.ha_status()["haClientRuntimeInfo"]["activated"])


@spec("T15")
def test_slave_killed_a_hundred_times_ends_equal(start: Start, tell: Tell) -> None:
    kill_again_and_again(start, 100, tell)


@spec("V08")
def test_ten_thousand_failed_attempts_to_connect_leave_nothing(
    start: Start, proxied: Callable[[int], Proxy], nobody: int, tell: Tell
) -> None:
    proxy = proxied(nobody)
    slave = start_slave(start, proxy.port, haReconnectInterval=1)
    wait_for_attempts(proxy, 1_000)
    before = held(slave)
    for attempts in range(2_000, 11_000, 1_000):
        wait_for_attempts(proxy, attempts)
        assert_nothing_stayed(slave, before)
        tell(f"{attempts} attempts; descriptors, threads, KiB: {held(slave)}")


@spec("H17", "V08")
def test_master_is_away_for_ten_minutes_and_copied_from_within_5s_of_its_return(
    start: Start, proxied: Callable[[int], Proxy], tell: Tell
) -> None:
    """The real timers. One slave is refused at each attempt, another one's connections are opened and closed again."""
    master = start("master", **REAL_TIMERS)
    proxy = proxied(master.ha_port)
    slaves = [
        start_slave(start, port, f"slave{number}", brokerId=number, **REAL_TIMERS)
        for number, port in ((1, master.ha_port), (2, proxy.port))
    ]
    with Caller(master.port) as caller:
        assert caller.send(b"before") == OK
    for slave in slaves:
        wait_for_copy(master, slave)
    master.kill()
    gone, attempts = time.monotonic(), proxy.accepted
    wait_until(lambda: proxy.accepted > attempts + 2, "both failed a few times")
    before = [held(slave) for slave in slaves]
    for seconds in range(30, AWAY_S + 1, 30):
        wait_for_time(gone + seconds)
        for slave, first in zip(slaves, before, strict=True):
            assert_nothing_stayed(slave, first)
        tell(f"away for {seconds} of {AWAY_S} s; descriptors, threads, KiB: {[held(slave) for slave in slaves]}")
    every_s = (time.monotonic() - gone) / (proxy.accepted - attempts)
    assert 4.9 <= every_s <= 5.5
    master.start()
    back = time.monotonic()
    wait_until(lambda: all(map(is_copying, slaves)), "both copy")
    took = time.monotonic() - back
    tell(f"an attempt every {every_s:.2f} s; both copied {took:.1f} s after the return")
    assert took <= 5.0 + 1.0, "the attempts are 5 s apart; the second more is for making the connection"
    with Caller(master.port) as caller:
        assert caller.send(b"after") == OK
    for slave in slaves:
        wait_for_copy(master, slave)
        assert_same_log(master, slave)


@spec("H16", "H19")
def test_frozen_peer_is_given_up_20_to_21s_after_it_was_last_heard(start: Start, tell: Tell) -> None:
    """The real timers, by what each side logs of the silence."""
    master = start("master", **REAL_TIMERS)
    slave = start_slave(start, master.ha_port, **REAL_TIMERS)
    wait_until(lambda: is_copying(slave), "the slave copies")
    for frozen, other, said in ((slave, master, "no report for"), (master, slave, "nothing from the master for")):
        found = noticed(frozen, other, said)
        tell(f"{said} {found} ms")
        assert 20_000 <= found <= 21_000
        with Caller(master.port) as caller:
            assert caller.send(b"more") == OK
        wait_for_copy(master, slave)
    assert_same_log(master, slave)


def noticed(frozen: Program, other: Program, said: str) -> int:
    """The silence after which the other side gives a frozen process up, as it logs it, ms."""
    before = len(other.log_text())
    frozen.freeze()
    wait_until(lambda: said in other.log_text()[before:], "it is noticed", seconds=60)
    frozen.thaw()
    found = re.search(rf"{said} (\d+) ms", other.log_text()[before:])
    assert found is not None
    return int(found[1])
