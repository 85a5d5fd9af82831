"""Administration as a feature."""

from tandemq.broker.features.admin.admin import AdminProcessor
from tandemq.broker.features.admin.config import ConfigProcessor
from tandemq.broker.features.admin.query_message import QueryMessageProcessor
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build what operators ask."""
    return AdminProcessor(kernel), ConfigProcessor(kernel), QueryMessageProcessor(kernel)
