"""When the event loop polls for the next event."""

import pytest

from tandemq.real.busy_poll import TRIAL_EVERY, TRIAL_WAITS, BusyPoll

POLL_US = 100
SETTLED = TRIAL_EVERY + TRIAL_WAITS
"""Waits after which the mean depends on them only, and no trial is made."""


def _after(*waits_us: int, poll_us: int = POLL_US) -> BusyPoll:
    poll = BusyPoll(poll_us)
    for wait_us in waits_us:
        poll.waited(wait_us * 1000)
    return poll


def _share(poll: BusyPoll, polled_us: int, slept_us: int, waits: int) -> float:
    """Return the share of waits in which a loop polls, if waking up makes waits longer."""
    polled = 0
    for _ in range(waits):
        polled += poll.is_worth
        poll.waited((polled_us if poll.is_worth else slept_us) * 1000)
    return polled / waits


@pytest.mark.parametrize(("wait_us", "is_worth"), [(1, True), (20, True), (90, True), (120, False), (1_000_000, False)])
def test_polls_if_events_come_within_the_polling_time(wait_us: int, is_worth: bool) -> None:
    assert _after(*[wait_us] * SETTLED).is_worth is is_worth


def test_does_not_poll_at_first_nor_after_a_single_short_wait() -> None:
    assert not _after().is_worth
    assert not _after(10).is_worth


def test_a_pause_among_short_waits_does_not_end_polling() -> None:
    assert _after(*[20] * SETTLED, 1_000_000).is_worth
    assert _after(*[70] * SETTLED, 1_000_000).is_worth


def test_short_waits_between_long_ones_are_not_enough() -> None:
    assert not _after(*[20, 250, 250] * SETTLED).is_worth
    assert not _after(*[250, 20, 250] * SETTLED).is_worth
    assert not _after(*[250, 250, 20] * SETTLED).is_worth


def test_polls_if_waits_are_too_long_only_because_it_sleeps() -> None:
    poll = _after(*[140] * TRIAL_EVERY)
    assert _share(poll, 70, 140, TRIAL_EVERY) > 0.9


def test_a_trial_that_finds_long_waits_costs_little() -> None:
    poll = _after(*[140] * SETTLED)
    assert _share(poll, 150, 140, 10 * TRIAL_EVERY) == TRIAL_WAITS / TRIAL_EVERY
    assert _share(_after(*[250] * SETTLED), 250, 250, 10 * TRIAL_EVERY) == 0


def test_polls_never_if_the_polling_time_is_0() -> None:
    assert _share(_after(*[0] * SETTLED, poll_us=0), 0, 0, SETTLED) == 0
