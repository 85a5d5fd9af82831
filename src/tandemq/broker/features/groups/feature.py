"""Consumer groups as a feature."""

from tandemq.broker.features.groups.broker_to_client import Broker2ClientProcessor
from tandemq.broker.features.groups.connections import ConnectionsProcessor
from tandemq.broker.features.groups.consumer_manage import ConsumerManageProcessor
from tandemq.broker.features.groups.proxied import ProxiedConsumersProcessor
from tandemq.broker.features.groups.reset_offset import ResetOffsetProcessor
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.state.proxied_consumers import ProxiedConsumers


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build what consumers and operators ask about groups."""
    proxied = ProxiedConsumers()
    return (
        ConsumerManageProcessor(kernel),
        ConnectionsProcessor(kernel, proxied),
        ProxiedConsumersProcessor(kernel, proxied),
        Broker2ClientProcessor(kernel, proxied),
        ResetOffsetProcessor(kernel),
    )
