"""Limit of a rate: requests per second, with a burst, for each key; kept in memory for at most `KEYS_MAX` keys."""

from collections import OrderedDict

KEYS_MAX = 10_000


class RateLimit:
    """A bucket per key, which is full at first; each request takes one, and it fills with time.

    The key that was used least recently is forgotten first: its bucket is full again.
    """

    def __init__(self, per_s: float, burst: int) -> None:
        """Start with full buckets of `burst`, which get `per_s` each second."""
        self._per_ms = per_s / 1000
        self._burst = float(burst)
        self._buckets: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def wait_ms(self, key: str, now_ms: int) -> int:
        """Return how long the next request of a key has to wait; 0: it may be made now. Takes nothing."""
        level = self._level(key, now_ms)
        return 0 if level >= 1 else max(1, int((1 - level) / self._per_ms))

    def take(self, key: str, now_ms: int) -> int:
        """Count a request, unless it has to wait; return how long, as `wait_ms`."""
        wait_ms = self.wait_ms(key, now_ms)
        if not wait_ms:
            level = self._level(key, now_ms) - 1
            self._buckets.pop(key, None)
            self._buckets[key] = (level, now_ms)
            while len(self._buckets) > KEYS_MAX:
                self._buckets.popitem(last=False)
        return wait_ms

    def _level(self, key: str, now_ms: int) -> float:
        level, at_ms = self._buckets.get(key, (self._burst, now_ms))
        return min(self._burst, level + max(0, now_ms - at_ms) * self._per_ms)
