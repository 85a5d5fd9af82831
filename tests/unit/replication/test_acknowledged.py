"""Log offsets that enough replicas have acknowledged."""

import pytest

from tandemq.config.settings import BrokerConfig
from tandemq.replication.acknowledged import copied_offset, enough_in_reach
from tests.spec import spec


@spec("W05", "W09")
@pytest.mark.parametrize(
    ("acked", "needed", "copied"),
    [([], 1, -1), ([5], 1, 5), ([5, 9], 1, 9), ([5, 9], 2, 5), ([5, 9], 3, -1), ([-1], 1, -1), ([7, 7, 3], 2, 7)],
)
def test_copied_offset_is_held_by_enough_replicas(acked: list[int], needed: int, copied: int) -> None:
    assert copied_offset(acked, needed) == copied


def test_copied_offset_is_beyond_everything_if_no_replica_is_needed() -> None:
    assert copied_offset([], 0) > 1 << 60


@spec("W04")
@pytest.mark.parametrize(
    ("acked", "needed", "in_reach"),
    [([], 1, False), ([745], 1, True), ([744], 1, False), ([0, 999], 1, True), ([0, 999], 2, False), ([-1], 1, False)],
)
def test_replica_is_in_reach_below_the_limit(acked: list[int], needed: int, in_reach: bool) -> None:
    assert enough_in_reach(acked, needed, log_end=1000, lag_bytes_max=256) is in_reach


@spec("W04")
def test_default_limit_is_256_mib() -> None:
    assert BrokerConfig().ha_lag_bytes_max == 256 << 20
