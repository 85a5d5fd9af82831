"""Pulls as a feature."""

from tandemq.broker.features.pulls.processor import PullPath
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build the path of pulls."""
    return (PullPath(kernel),)
