"""Limit of failed attempts to log in: after some, the next ones have to wait, each longer than the one before.

    per account and address    5 failures, then 2, 4, 8 … 900 s
    per address               20 failures
    per account               50 failures, from any address: a distributed search is slow, but others cannot easily lock
                              an account

Counts are kept in memory, at most `KEYS_MAX`; they are forgotten an hour after the last failure.
"""

from collections import OrderedDict
from dataclasses import dataclass

KEYS_MAX = 10_000
FORGET_MS = 3_600_000
WAIT_MAX_MS = 900_000
_FREE = {"pair": 5, "address": 20, "account": 50}


@dataclass(slots=True)
class _Failures:
    count: int = 0
    last_ms: int = 0


class LoginThrottle:
    """Failures by account and address."""

    def __init__(self) -> None:
        """Start without failures."""
        self._failures: OrderedDict[tuple[str, str, str], _Failures] = OrderedDict()

    def wait_ms(self, account: str, address: str, now_ms: int) -> int:
        """Return how long an attempt has to wait; 0: it may be made now."""
        return max(self._wait_of(key, now_ms) for key in _keys(account, address))

    def _wait_of(self, key: tuple[str, str, str], now_ms: int) -> int:
        failures = self._failures.get(key)
        if failures is None or now_ms - failures.last_ms > FORGET_MS:
            return 0
        above = failures.count - _FREE[key[0]]
        if above < 0:
            return 0
        return max(0, failures.last_ms + min(WAIT_MAX_MS, 2_000 << min(above, 20)) - now_ms)

    def failed(self, account: str, address: str, now_ms: int) -> None:
        """Count a failure."""
        for key in _keys(account, address):
            failures = self._failures.pop(key, None)
            if failures is None or now_ms - failures.last_ms > FORGET_MS:
                failures = _Failures()
            failures.count += 1
            failures.last_ms = now_ms
            self._failures[key] = failures
        while len(self._failures) > KEYS_MAX:
            self._failures.popitem(last=False)

    def succeeded(self, account: str, address: str) -> None:
        """Forget the failures of this account from this address."""
        self._failures.pop(("pair", account, address), None)


def _keys(account: str, address: str) -> list[tuple[str, str, str]]:
    return [("pair", account, address), ("address", "", address), ("account", account, "")]
