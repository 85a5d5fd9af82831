"""Sends as a feature."""

from tandemq.broker.features.sends.processor import SendPath
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build the path of sends."""
    return (SendPath(kernel),)
