"""Which brokers to leave alone for a while: those that failed, and those that answer slowly.

A broker group is isolated for a time that grows with how long it took; success shortly after does not lift it, so that
load comes back once and not in a wave. A link that opens again lifts an isolation caused by a failure.

Owner: the producer. Source: RocketMQ LatencyFaultToleranceImpl (the idea; the numbers are ours).
"""

FAILURE_MS = 30_000
"""Isolation after no answer at all."""
_STEPS = ((3_000, 60_000), (1_000, 30_000), (550, 10_000))
"""(answered after at least, isolated for)."""


class Latency:
    """Until when each broker group is left alone."""

    def __init__(self) -> None:
        """Everybody is fine."""
        self._until_ms: dict[str, int] = {}
        self._failed: set[str] = set()

    def answered(self, broker_name: str, took_ms: int, now_ms: int) -> None:
        """An answer came after `took_ms`."""
        if took_ms < _STEPS[-1][0]:
            return
        for at_least, isolated_ms in _STEPS:
            if took_ms >= at_least:
                self._isolate(broker_name, now_ms + isolated_ms)
                return

    def failed(self, broker_name: str, now_ms: int) -> None:
        """No answer came, or one that says the broker cannot take messages."""
        self._failed.add(broker_name)
        self._isolate(broker_name, now_ms + FAILURE_MS)

    def _isolate(self, broker_name: str, until_ms: int) -> None:
        self._until_ms[broker_name] = max(until_ms, self._until_ms.get(broker_name, 0))

    def lift(self, broker_name: str) -> None:
        """The group's master speaks again: forget its failures, not its slowness."""
        if broker_name in self._failed:
            self._failed.discard(broker_name)
            self._until_ms.pop(broker_name, None)

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        """Whether nothing speaks against it."""
        return self._until_ms.get(broker_name, 0) <= now_ms

    def least_bad(self, broker_names: list[str]) -> str:
        """Of several isolated groups the one that is free first."""
        return min(broker_names, key=lambda name: self._until_ms.get(name, 0))
