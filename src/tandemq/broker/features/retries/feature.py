"""Messages that consumers send back as a feature."""

from tandemq.broker.features.retries.send_back import SendBackProcessor
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build what stores messages again."""
    return (SendBackProcessor(kernel),)
