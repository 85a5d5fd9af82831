"""Which brokers to leave alone for a while: those that failed, and those that answer slowly.

A broker is isolated for a time that grows with how long it took; success shortly after does not lift it, so that load
comes back once and not in a wave. A link that opens again lifts an isolation caused by a failure.

Owner: the producer. Source: RocketMQ LatencyFaultToleranceImpl (the idea; the numbers are ours).
"""

FAILURE_MS = 30_000
"""Isolation after no answer at all."""
_STEPS = ((3_000, 60_000), (1_000, 30_000), (550, 10_000))
"""(answered after at least, isolated for)."""


class LatencyFaultTolerance:
    """Until when each broker is left alone."""

    def __init__(self) -> None:
        """Everybody is fine."""
        self._until_ms: dict[str, int] = {}
        self._failed: set[str] = set()

    def answered(self, address: str, took_ms: int, now_ms: int) -> None:
        """An answer came after `took_ms`."""
        if took_ms < _STEPS[-1][0]:
            return
        for at_least, isolated_ms in _STEPS:
            if took_ms >= at_least:
                self._isolate(address, now_ms + isolated_ms)
                return

    def failed(self, address: str, now_ms: int) -> None:
        """No answer came, or one that says the broker cannot take messages."""
        self._failed.add(address)
        self._isolate(address, now_ms + FAILURE_MS)

    def _isolate(self, address: str, until_ms: int) -> None:
        self._until_ms[address] = max(until_ms, self._until_ms.get(address, 0))

    def lift(self, address: str) -> None:
        """The broker speaks again: forget its failures, not its slowness."""
        if address in self._failed:
            self._failed.discard(address)
            self._until_ms.pop(address, None)

    def is_available(self, address: str, now_ms: int) -> bool:
        """Whether nothing speaks against it."""
        return self._until_ms.get(address, 0) <= now_ms

    def free_ms(self, address: str) -> int:
        """Until when it is left alone; 0 for one that is fine."""
        return self._until_ms.get(address, 0)
