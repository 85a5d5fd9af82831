"""Consumer groups as a feature."""

from tandemq.broker.features.groups.broker_to_client import Broker2ClientProcessor
from tandemq.broker.features.groups.connections import ConnectionsProcessor
from tandemq.broker.features.groups.consumer_manage import ConsumerManageProcessor
from tandemq.broker.features.groups.reset_offset import ResetOffsetProcessor
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build what consumers and operators ask about groups."""
    return (
        ConsumerManageProcessor(kernel),
        ConnectionsProcessor(kernel),
        Broker2ClientProcessor(kernel),
        ResetOffsetProcessor(kernel),
    )
