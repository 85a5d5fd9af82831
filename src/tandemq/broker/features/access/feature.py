"""Access control as a feature."""

from tandemq.broker.features.access.account_processor import AccountProcessor
from tandemq.broker.features.access.control import AccessControl
from tandemq.broker.features.access.processor import AccessProcessor
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build what checks requests, and what changes users and accounts."""
    control = AccessControl(kernel)
    return control, AccessProcessor(control), AccountProcessor(control, kernel)
