"""Waiting responses: all four outcomes of disk and slave, independence from each other, deadlines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.config.settings import BrokerConfig
from tandemq.model.codes import ResponseCode
from tandemq.replication.waiters import Waiters, Waiting
from tests.spec import spec

OK = ResponseCode.SUCCESS
DISK = ResponseCode.FLUSH_DISK_TIMEOUT
SLAVE = ResponseCode.FLUSH_SLAVE_TIMEOUT
NO_SLAVE = ResponseCode.SLAVE_NOT_AVAILABLE
FLUSH_MS, SLAVE_MS = 5_000, 3_000
NEVER = 1 << 62


def waiting(end: int, since: int = 0, verdict: ResponseCode | None = None) -> Waiting:
    return (1, b"%d" % end, end, since + FLUSH_MS, since + SLAVE_MS, verdict, 1, False)


def codes(waiters: Waiters, flushed: int, copied: int, now_ms: int) -> list[ResponseCode | None]:
    return [code for _, _, code in waiters.release(flushed, copied, now_ms)]


@spec("W07", "W11")
def test_default_times_are_those_documented() -> None:
    assert (BrokerConfig().slave_timeout_ms, BrokerConfig().sync_flush_timeout_ms) == (3_000, 5_000)


@spec("W05", "W06")
@pytest.mark.parametrize(("copied", "goes"), [(99, False), (100, True), (101, True)])
def test_response_is_released_when_the_replica_has_reached_its_offset(copied: int, goes: bool) -> None:
    waiters = Waiters()
    waiters.add(waiting(100))
    assert codes(waiters, NEVER, copied, 1) == ([OK] if goes else [])


@spec("W12", "W01", "W02")
@pytest.mark.parametrize(
    ("flushed", "copied", "code", "at_ms"),
    [(True, True, OK, 0), (False, True, DISK, 5_000), (True, False, SLAVE, 3_000), (False, False, SLAVE, 5_000)],
)
def test_each_combination_of_disk_and_slave_has_its_code_and_time(
    flushed: bool, copied: bool, code: ResponseCode, at_ms: int
) -> None:
    """If both are late, the code is that of the slave, sent after the deadline of the disk, as in RocketMQ."""
    waiters = Waiters()
    waiters.add(waiting(100))
    state = (100 if flushed else 99, 100 if copied else 99)
    if at_ms:
        assert codes(waiters, *state, at_ms - 1) == []
        assert waiters.deadline_ms() == at_ms
    assert codes(waiters, *state, at_ms) == [code]
    assert waiters.deadline_ms() is None


@spec("W12")
@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 2_000)), min_size=1, max_size=20),
    st.sampled_from([None, OK, NO_SLAVE]),
)
def test_responses_follow_the_model(steps: list[tuple[bool, bool, int]], verdict: ResponseCode | None) -> None:
    """One message: disk and slave reach its offset at some step or never; the code depends on the times."""
    waiters = Waiters()
    waiters.add(waiting(100, verdict=verdict))
    now = flushed = copied = 0
    for is_flushed, is_copied, wait_ms in steps:
        now += wait_ms
        flushed, copied = max(flushed, 100 * is_flushed), max(copied, 100 * is_copied)
        disk_open = not flushed and now < FLUSH_MS
        slave_open = verdict is None and not copied and now < SLAVE_MS
        found = codes(waiters, flushed, copied, now)
        if disk_open or slave_open:
            assert found == []
            continue
        if verdict is NO_SLAVE:
            expected = NO_SLAVE
        elif verdict is None and not copied:
            expected = SLAVE
        else:
            expected = OK if flushed else DISK
        assert found == [expected]
        return


@spec("W08")
def test_timeout_of_one_response_does_not_affect_others() -> None:
    waiters = Waiters()
    for number in range(10):
        waiters.add(waiting(100 + number, since=number * 100))
    for number in range(10):
        assert codes(waiters, NEVER, 0, 2_999 + number * 100) == []
        assert codes(waiters, NEVER, 0, 3_000 + number * 100) == [SLAVE]


@spec("W08", "W04")
def test_response_with_a_known_result_does_not_wait_for_others() -> None:
    waiters = Waiters()
    waiters.add(waiting(100))
    waiters.add(waiting(200, since=10, verdict=NO_SLAVE))
    assert codes(waiters, NEVER, 0, 10) == [NO_SLAVE]
    assert codes(waiters, NEVER, 100, 11) == [OK]


@spec("W08")
def test_deadline_is_never_in_the_past() -> None:
    """With different deadlines of disk and slave, the loop must not spin between the two."""
    for flush_ms, slave_ms in ((5_000, 3_000), (1_000, 3_000)):
        for flushed, copied in ((0, 0), (100, 0), (0, 100)):
            waiters = Waiters()
            waiters.add((1, b"", 100, flush_ms, slave_ms, None, 1, False))
            for now in range(0, 6_000, 500):
                waiters.release(flushed, copied, now)
                due = waiters.deadline_ms()
                assert due is None or due > now


def test_take_all_removes_all_waiting_responses() -> None:
    waiters = Waiters()
    waiters.add(waiting(100))
    waiters.add(waiting(200, verdict=NO_SLAVE))
    assert [answer for _, answer in waiters.take_all()] == [b"100", b"200"]
    assert len(waiters) == 0
    assert waiters.deadline_ms() is None


@pytest.mark.parametrize("verdict", [None, NO_SLAVE])
def test_response_that_promises_nothing_is_released_as_late(verdict: ResponseCode | None) -> None:
    waiters = Waiters()
    waiters.add((*waiting(100, verdict=verdict)[:-1], True))
    assert codes(waiters, NEVER, 99, SLAVE_MS) == [None]
    waiters.add((*waiting(100)[:-1], True))
    assert codes(waiters, NEVER, 100, SLAVE_MS) == [OK]
