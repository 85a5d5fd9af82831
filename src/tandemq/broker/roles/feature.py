"""The role of a broker, and the features about it."""

from collections.abc import Callable

from tandemq.boundary import Now
from tandemq.broker.ha.service import Replication
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.role import BrokerRole
from tandemq.broker.roles.journal import FailoverJournal
from tandemq.broker.roles.offset_barrier import OffsetBarrier
from tandemq.broker.roles.processor import FailoverProcessor
from tandemq.broker.roles.readiness import Readiness
from tandemq.broker.roles.registry_client import BrokerRegistry
from tandemq.broker.roles.registry_role import RegistryRole
from tandemq.broker.roles.replication_metrics import ReplicationMetrics
from tandemq.broker.roles.static_role import StaticRole
from tandemq.registry import parse_address


def build(kernel: Kernel, role: Callable[[], RegistryRole | None]) -> tuple[Feature, ...]:
    """Build the features of roles. `role` returns the role, if a registry decides it."""
    return OffsetBarrier(), FailoverProcessor(kernel, role), ReplicationMetrics(kernel, role), Readiness(kernel, role)


def first_role(kernel: Kernel, now: Now) -> BrokerRole:
    """Begin the role by the settings, or by the registry of the group; all features have been added.

    Raises:
        StoreError: something could not be read or saved.
    """
    static, config = StaticRole(kernel), kernel.current.config
    if not config.registry_address:
        static.begin(now)
        return static
    client = f"{config.cluster}/{config.broker_name}/{config.broker_id}-{kernel.random.getrandbits(48):012x}"
    address = parse_address(config.registry_address)
    registry = BrokerRegistry(address, client, config.registry_session_ms, kernel.next_link, kernel.keyring)
    journal = FailoverJournal(
        kernel.disk,
        kernel.saver,
        has_messages=kernel.store.log.written_end > 0,
        may_have_lost=kernel.recovered.may_have_lost or kernel.features.find(Replication).awaits_tail,
    )
    return RegistryRole(kernel, registry, journal, static)
