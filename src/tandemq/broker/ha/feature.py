"""Replication as features: copying the log and the tables, registration, and the requests about them."""

from tandemq.broker.ha.digest import DigestProcessor
from tandemq.broker.ha.master_lookup import MasterLookup
from tandemq.broker.ha.metadata_tables import MetadataTablesProcessor
from tandemq.broker.ha.registration import Registration
from tandemq.broker.ha.service import Replication
from tandemq.broker.ha.status import ReplicationStatus
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel


def build(kernel: Kernel, *, accept_loss: bool) -> tuple[Feature, ...]:
    """Build replication. `accept_loss`: see `Broker`."""
    replication = Replication(kernel, accept_loss=accept_loss)
    registration = Registration(kernel, replication.master_found)
    return (
        replication,
        registration,
        MasterLookup(kernel, replication, registration),
        ReplicationStatus(kernel, replication),
        MetadataTablesProcessor(kernel),
        DigestProcessor(kernel),
    )
