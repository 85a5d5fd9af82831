"""Brokers to avoid for a while: those that failed, and those that respond slowly.

A broker is isolated for a time that depends on how slow it was. A fast response does not end the isolation early, so
that load returns once and not in waves. A connection that opens again ends an isolation caused by a failure.

Owner: the producer. Source: RocketMQ LatencyFaultToleranceImpl (the idea; the numbers are ours).
"""

FAILURE_MS = 30_000
"""Isolation after a request without a response."""
_STEPS = ((3_000, 60_000), (1_000, 30_000), (550, 10_000))
"""(latency of at least, isolated for), milliseconds."""
SLOW_MS = _STEPS[-1][0]
"""Latency from which on a response is slow."""


class LatencyFaultTolerance:
    """End of the isolation of each broker, by address. Times are milliseconds on the monotonic clock."""

    def __init__(self) -> None:
        """No broker is isolated."""
        self._until_ms: dict[str, int] = {}
        self.ends_ms = 0
        """No broker is isolated from then on."""
        self._failed: set[str] = set()

    def record_latency(self, address: str, latency_ms: int, now_ms: int) -> None:
        """Isolate a broker whose response was slow."""
        for at_least, isolated_ms in _STEPS:
            if latency_ms >= at_least:
                self._isolate(address, now_ms + isolated_ms)
                return

    def record_failure(self, address: str, now_ms: int) -> None:
        """Isolate a broker that did not respond, or refused a message."""
        self._failed.add(address)
        self._isolate(address, now_ms + FAILURE_MS)

    def _isolate(self, address: str, until_ms: int) -> None:
        self._until_ms[address] = max(until_ms, self._until_ms.get(address, 0))
        self.ends_ms = max(until_ms, self.ends_ms)

    def clear_failure(self, address: str) -> None:
        """End the isolation of a broker that failed and has responded again; one that was slow stays isolated."""
        if address in self._failed:
            self._failed.discard(address)
            self._until_ms.pop(address, None)

    def is_available(self, address: str, now_ms: int) -> bool:
        """Return whether a broker is not isolated."""
        return self._until_ms.get(address, 0) <= now_ms

    def isolated_until_ms(self, address: str) -> int:
        """Return when the isolation of a broker ends; 0 if it was never isolated."""
        return self._until_ms.get(address, 0)
