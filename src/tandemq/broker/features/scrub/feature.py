"""Verification and repair of the log as a feature."""

from tandemq.broker.features.scrub.metrics import ScrubMetrics
from tandemq.broker.features.scrub.replica_requests import ReplicaRequests
from tandemq.broker.features.scrub.scrubber import Scrubber
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build the scrubber. It continues where the last run stopped."""
    scrubber = Scrubber(kernel)
    return scrubber, ReplicaRequests(kernel, scrubber), ScrubMetrics(kernel, scrubber)
