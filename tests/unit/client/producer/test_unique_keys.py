"""Unique keys."""

import re

from tandemq.client.producer.unique_keys import UniqueKeys, month_start_ms

NOVEMBER_MS = 1_763_728_023_456
"""2025-11-21 12:27:03.456 UTC."""


def test_key_holds_address_process_and_time() -> None:
    key = UniqueKeys("192.168.1.2", 0x12345, 7).next(NOVEMBER_MS)
    assert re.fullmatch(r"[0-9A-F]{32}", key)
    assert key[:8] == "C0A80102"
    assert key[8:12] == "2345"
    assert int(key[20:28], 16) == NOVEMBER_MS - month_start_ms(NOVEMBER_MS)


def test_keys_of_one_client_differ() -> None:
    keys = UniqueKeys("127.0.0.1", 1, 0xFFFFFFFF)
    assert len({keys.next(NOVEMBER_MS) for _ in range(65_536)}) == 65_536


def test_key_of_an_ipv6_client_has_56_digits() -> None:
    assert len(UniqueKeys("::1", 1, 1).next(NOVEMBER_MS)) == 56


def test_time_starts_at_zero_each_month() -> None:
    keys = UniqueKeys("127.0.0.1", 1, 1)
    december = 1_764_547_200_000  # 2025-12-01 00:00 UTC
    assert month_start_ms(december) == december
    assert int(keys.next(december - 1)[20:28], 16) == 30 * 86_400_000 - 1
    assert int(keys.next(december + 5)[20:28], 16) == 5
