"""Pulls as a feature."""

from tandemq.broker.features.pulls.processor import PullPath
from tandemq.broker.features.pulls.queue_entries import QueueEntryReads
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build the path of pulls, and the requests for entries beside it."""
    pulls = PullPath(kernel)
    return pulls, QueueEntryReads(kernel, pulls)
